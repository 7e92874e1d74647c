"""A configuration is taken for harmless only where git itself reads nothing else in it."""

from __future__ import annotations

import subprocess
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxd.host.git.git_config import EXACT, HARMLESS, cleaned

CLONE = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
[remote "origin"]
\turl = https://code.test/a b.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "feature/x.y"]
\tremote = origin
\tmerge = refs/heads/feature/x.y
"""


def test_what_git_writes_is_harmless() -> None:
    assert cleaned(CLONE) is None
    assert cleaned(CLONE.replace("\n", "\r\n")) is None
    assert cleaned("") is None and cleaned("# only words\n\n;\n") is None
    assert cleaned('[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\trequired = true\n') is None
    assert cleaned("[core]\n\tworktree = ../x\n", worktree="../x") is None
    assert cleaned("[core]\n\tworktree = ../x\n") == ""


@pytest.mark.parametrize(
    "line",
    [
        "[core]\n\tfsmonitor = ./evil", "[core] fsmonitor = ./evil", "[CORE]\nFSMonitor = x", "[core]\n\thooksPath = h",
        "[core]\n\tsshCommand = x", "[core]\n\tpager = x", "[core]\n\teditor = x", "[include]\n\tpath = ../x",
        '[includeIf "gitdir:**"]\n\tpath = x', "[alias]\n\tst = !x", '[filter "x"]\n\tclean = x',
        '[filter "lfs"]\n\tclean = ./git-lfs clean -- %f', '[diff "x"]\n\ttextconv = x', "[diff]\n\texternal = x",
        '[merge "x"]\n\tdriver = x', "[credential]\n\thelper = !x", "[gpg]\n\tprogram = x",
        '[remote "o"]\n\tuploadpack = x', '[remote "o"]\n\turl = ext::sh -c x', '[branch "b"]\n\tremote = ext::x',
        '[submodule "x"]\n\tupdate = !x', "[protocol]\n\text.allow = always", '[url "ext::x"]\n\tinsteadOf = y',
        "[gc]\n\trecentObjectsHook = x", "[core]\n\tgitProxy = x", "[core.x]\n\ty = z", "[sequence]\n\teditor = x",
        "[user]\n\tname = a\\\n[core]\n\tfsmonitor = x", '[user]\n\tname = "a', "[user]\n\tname = a\x0b[alias]",
        "fsmonitor", "[core", "\ufeff[core]\n\tfsmonitor = x", "[init]\n\ttemplateDir = x", "[new]\n\tkey = x",
    ],
)  # fmt: skip
def test_anything_else_is_not(line: str) -> None:
    rest = cleaned(CLONE + line + "\n")
    assert rest is not None
    assert cleaned(rest) is None and 'remote "origin"' in rest and "evil" not in rest


LINES = st.sampled_from(
    ["[core]", "[user]", '[remote "a"]', "[alias]", "[core]fsmonitor=x", "\tname = v", "bare", "\tfsmonitor = x", "# c",
     "; c", "name=a\\", "name = \"a", "name = a # [core]", "name=a;b", '[user "\\"]', "\x0b", "\x0c\tpager=x", " ", "]",
     "[user]\tname = x [alias]", "url = a\x85pager = x", "name = a\u2028[alias]", "\tname = a\r", "\r"]
)  # fmt: skip


def git_reads(text: str) -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config"
        file.write_bytes(text.encode())
        done = subprocess.run(
            ["git", "config", "-z", "-f", str(file), "--list"], capture_output=True, text=True, cwd=directory
        )
    pairs = (record.partition("\n") for record in done.stdout.split("\0") if record)
    return [(key, value) for key, _, value in pairs]


@settings(max_examples=60)
@given(st.lists(LINES, max_size=8).map(lambda lines: "\n".join(lines)))
@example("[user]\nname=a\\\n[core]\nfsmonitor=x")
def test_git_reads_nothing_more_than_we_do(text: str) -> None:
    rest = cleaned(text)
    for key, value in git_reads(text if rest is None else rest):
        section, _, name = key.rpartition(".")
        section = section if "." not in section else section.partition(".")[0] + ".x"
        known = key in HARMLESS or any(fnmatchcase(f"{section}.{name}", pattern) for pattern in HARMLESS)
        assert known or EXACT.get(key) == value, key


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("[extensions]\n\tpartialClone = origin\n", False),
        ('[remote "o"]\n\tpromisor = true\n', False),
        ('[remote "o"]\n\tpartialclonefilter = blob:none\n', False),
        ("[core]\n\tprotectHFS = false\n", False),
        ("[core]\n\tprotectNTFS = 0\n", False),
        ("[core]\n\tprotectHFS\n\tprotectNTFS = true\n", True),
        ('[remote "o"]\n\turl = /somewhere\n', True),
    ],
)
def test_what_fetches_by_itself_or_checks_out_what_is_refused(line: str, harmless: bool) -> None:
    assert (cleaned(line) is None) is harmless
