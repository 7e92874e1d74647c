"""Rules that give very much away, beside ordinary ones of the same kind."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.policy.changes import wide_changes
from sandboxd.policy.rule_paths import Scope
from sandboxd.settings.changes import Act, Change

SCOPE = Scope(home="/home/me", project="/home/me/project")
WRITE, READ = "sandbox.filesystem.allowWrite", "sandbox.filesystem.allowRead"
HOSTS, COMMANDS = "sandbox.network.allowedDomains", "sandbox.excludedCommands"


def wide(key: str, value: Any) -> tuple[str, ...]:
    return wide_changes(Change(Act.ADD, key, value), SCOPE)


@pytest.mark.parametrize("key", [WRITE, READ])
@pytest.mark.parametrize(
    "path",
    ["/", "//", "/**", "/*", "/**/*", "~", "~/", "~/**", "~/*", "/home", "/home/me", "/etc", "/usr/", "/usr/**",
     "/usr/local/bin", "/var", "~/.claude", "~/.claude/settings.json", "/p/.claude/settings.local.json",
     "/etc/sandboxd/managed-settings.json", "/etc/claude-code", "/v*", "/[e]tc", "/???", "/h*/me", "/home/m?", "~/.*",
     "~/[.a-z]*", "~/.claude*", "~/.claude/sett*", "~/.c*/settings.json", "/**/etc", "~/./", "/etc/."],
)  # fmt: skip
def test_a_wide_path(key: str, path: str) -> None:
    (text,) = wide(key, path)
    assert ("write" if key == WRITE else "read") in text


@pytest.mark.parametrize(
    "path",
    ["~/.cache/x", "/srv/data", "/home/me/other", "/home/you/x", "./build", "~/*.log", "~/.cache*", "~/*/x", "/v*/x",
     "./**/*.o"],
)  # fmt: skip
def test_an_ordinary_path(path: str) -> None:
    assert wide(WRITE, path) == wide(READ, path) == ()


@pytest.mark.parametrize(
    "host", ["*", "169.254.169.254", "0xA9FEA9FE", "[fd00:ec2::254]", "metadata.google.internal", "100.100.100.200:80"]
)
def test_a_wide_host(host: str) -> None:
    assert len(wide(HOSTS, host)) == 1


@pytest.mark.parametrize("host", ["ok.test", "*.ok.test", "ok.test:443", "127.0.0.1:3000", "8.8.8.8"])
def test_an_ordinary_host(host: str) -> None:
    assert wide(HOSTS, host) == ()


@pytest.mark.parametrize(
    "pattern",
    ["python3.11", "python3:*", "python", "vim", "tar", "tar *", "git", "git:*", "node20", "npm", "/usr/bin/git",
     "gdb", "make", "uv", "psql", "git*", "gi*", "s*",
     "busybox", "env", "xargs:*", "find", "npx", "python3*", "vim.basic", "vim.tiny:*", "sh -c:*", "python3 -c *",
     "git -c *", "tar -x -f *", "git -C:*"],
)  # fmt: skip
def test_a_program_that_runs_others(pattern: str) -> None:
    assert len(wide(COMMANDS, pattern)) == 1


@pytest.mark.parametrize(
    "pattern", ["docker", "docker:*", "npm run build", "git push:*", "python3 -V", "gh", "docker*", "/opt/x/*"]
)
def test_an_ordinary_program(pattern: str) -> None:
    assert wide(COMMANDS, pattern) == ()


def test_other_ways_to_write_the_same() -> None:
    assert wide("permissions.allow", "Edit(//)") or wide("permissions.allow", "Edit(//**)")
    assert wide_changes(Change(Act.SET, HOSTS, ["ok.test", "*"]), SCOPE)
    assert wide_changes(Change(Act.REMOVE, WRITE, "/"), SCOPE) == ()
    assert wide("sandbox.filesystem.denyWrite", "/") == ()


def test_a_link_to_a_wide_place() -> None:
    change = Change(Act.ADD, WRITE, "/srv/link")
    (text,) = wide_changes(change, SCOPE, {"/srv/link": "/home/me"}.__getitem__)
    assert "/srv/link leads to /home/me" in text
    assert wide_changes(change, SCOPE, {"/srv/link": "/srv/data"}.__getitem__) == ()
