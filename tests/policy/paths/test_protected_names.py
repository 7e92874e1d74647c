"""The table of protected names."""

from __future__ import annotations

import pytest

from sandboxd.policy.model import PathRule
from sandboxd.policy.paths.protected_names import PROTECTED, Absent, ProtectedIn, may_lift, rows
from sandboxd.settings.origins import Origin, Source


def test_every_row_says_why_and_names_a_path() -> None:
    for row in PROTECTED:
        assert row.why and not row.why.endswith("."), row
        assert row.name and not row.name.startswith("/") and ".." not in row.parts, row
        assert "*" not in "/".join(row.parts[:-1]), row


def test_no_name_stands_twice_in_a_place() -> None:
    names = [(row.where, row.name) for row in PROTECTED]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (ProtectedIn.HOME, [".bashrc", ".profile", ".zshenv", ".ssh", ".gitconfig", ".config/autostart", ".local/bin"]),
        (
            ProtectedIn.WORKSPACE,
            [".gitmodules", ".ripgreprc", ".mcp.json", ".vscode", ".idea", ".cursor", ".zed", ".codex", ".gemini",
             ".agents", ".windsurf", ".opencode", "opencode.json", ".claude/settings.json",
             ".claude/settings.local.json", ".claude/settings*.json", ".claude/commands", ".claude/agents",
             ".claude/hooks", ".claude/skills", ".roo", ".kiro/settings", ".kiro/hooks", ".qwen", "crush.json",
             ".crush.json", ".crushrc", "crushrc", ".factory", ".junie", ".amp", ".github/hooks", ".aider.conf.yml"],
        ),
        (ProtectedIn.GIT_DIR, ["hooks", "config", "config.worktree", "commondir"]),
    ],
)  # fmt: skip
def test_what_has_to_be_in_it(where: ProtectedIn, names: list[str]) -> None:
    assert set(names) <= {row.name for row in rows(where)}


def test_a_placeholder_in_a_working_tree_is_never_a_file() -> None:
    """git would list it as untracked."""
    assert not [row for row in rows(ProtectedIn.WORKSPACE) if row.file]


def test_only_the_configuration_of_git_can_be_opted_into() -> None:
    opened = set(rows(ProtectedIn.GIT_DIR)) - set(rows(ProtectedIn.GIT_DIR, allow_git_config=True))
    assert {row.name for row in opened} == {"config", "config.worktree"}
    assert rows(ProtectedIn.HOME) == rows(ProtectedIn.HOME, allow_git_config=True)


def test_only_names_that_a_directory_would_harm_may_be_absent() -> None:
    others = {".hg/hgrc", ".hg/hgrc-not-shared", ".jj/repo/config.toml"}
    found = {row.name for row in PROTECTED if row.absent is Absent.LEAVE}
    assert found == {"commondir", ".claude/settings*.json", *others}


@pytest.mark.parametrize(
    ("source", "glob", "may"),
    [(Source.USER, False, True), (Source.CLI, False, True), (Source.PROJECT, False, False), (Source.USER, True, False)],
)
def test_who_may_lift_a_protection(source: Source, glob: bool, may: bool) -> None:
    assert may_lift(PathRule("/w/.git/hooks", Origin(source, "sandbox.filesystem.allowWrite"), glob)) is may
