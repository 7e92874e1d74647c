"""Ignored violations are hidden by command and by a part of their line."""

from __future__ import annotations

import pytest

from sandboxd.policy.ignored_violations import expanded, is_ignored

RULES = (
    ("*", ("/usr/bin",)),
    ("git push", ("/etc/x",)),
    ("npm", ("file-read* /private/",)),
)


@pytest.mark.parametrize(
    ("command", "operation", "target", "hidden"),
    [
        ("make", "file-write-create", "/usr/bin/x", True),
        ("make", "file-write-create", "/usr/local/bin/x", False),
        ("git push origin", "file-read-data", "/etc/x/y", True),
        ("git  push", "file-read-data", "/etc/x", True),
        ("git pushx", "file-read-data", "/etc/x", False),
        ("git pull", "file-read-data", "/etc/x", False),
        ("npm ci", "file-read-data", "/private/etc/hosts", True),
        ("npm ci", "file-read-metadata", "/private/etc/hosts", True),
        ("npm ci", "file-write-data", "/private/etc/hosts", False),
        ("", "file-write-data", "/private/etc/hosts", False),
        ("cd web && npm ci", "file-read-data", "/private/x", True),
        ("CI=1 /usr/bin/npm ci | tee log", "file-read-data", "/private/x", True),
        ("sh -c 'timeout 9 npm ci'", "file-read-data", "/private/x", True),
        ("echo npm", "file-read-data", "/private/x", False),
        ("make; git push", "file-read-data", "/etc/x", True),
        ("git push 'x", "file-read-data", "/etc/x", True),
        ("npm ci", "file-read-data", "/new\nline/private/x", False),
    ],
)
def test_what_is_hidden(command: str, operation: str, target: str, hidden: bool) -> None:
    assert is_ignored(RULES, command, operation, target) is hidden


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("~/.cache", "/home/u/.cache"),
        ("file-read-data ~/x", "file-read-data /home/u/x"),
        ("~", "/home/u"),
        ("a~/x", "a~/x"),
        ("~other/x", "~other/x"),
    ],
)
def test_a_tilde_is_the_home_directory(pattern: str, meant: str) -> None:
    assert expanded(pattern, "/home/u") == meant


def test_without_rules_everything_is_shown() -> None:
    assert not is_ignored((), "make", "file-read-data", "/x")
