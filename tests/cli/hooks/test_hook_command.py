"""`sandboxd hook install`, `uninstall` and `status`: the settings files of agents."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd.cli.hooks.dialects import DIALECTS, Dialect
from sandboxd_client import programs

FILES = [one for one in DIALECTS if one.form != "plugin"]
AGENTS = pytest.mark.parametrize("dialect", FILES, ids=[one.name for one in FILES])


@pytest.fixture
def home(cli: CommandLine, tmp_path: Path) -> Path:
    cli.env["HOME"] = str(tmp_path)
    return tmp_path


def lines(settings: dict[str, Any]) -> dict[str, list[str]]:
    return {
        event: [hook["command"] for group in groups for hook in group.get("hooks", [group])]
        for event, groups in settings["hooks"].items()
    }


@AGENTS
def test_what_is_installed_is_removed_again(cli: CommandLine, home: Path, dialect: Dialect) -> None:
    path = home / dialect.settings
    path.parent.mkdir()
    other: dict[str, Any] = {"matcher": "Write", "hooks": [{"type": "command", "command": "my hook"}]}
    other = {"command": "my hook"} if dialect.form == "flat" else other
    before = {
        "version": 1,
        "model": "é",
        "hooks": {dialect.events[0]: [other], "Stop": [other]},
        "permissions": {"allow": ["Read"]},
    }
    path.write_text(json.dumps(before))
    path.chmod(0o640)
    for _ in range(2):  # a second installation replaces the first
        done = cli.run("hook", "install", dialect.name)
        assert done.returncode == 0 and str(path) in done.stdout, done
        assert ("until you trust it there" in done.stdout) == (dialect.name == "codex")
        written = json.loads(path.read_text())
        found = lines(written)
        assert found.pop("Stop") == ["my hook"] and found.keys() == set(dialect.events)
        for event, commands in found.items():
            *others, ours = commands
            assert others == (["my hook"] if event == dialect.events[0] else [])
            assert ours.endswith(f" hook run {dialect.name} || exit 2") and ours.startswith(("/", "'/"))
        assert written["model"] == "é" and stat.S_IMODE(path.stat().st_mode) == 0o640
        assert "installed" in cli.run("hook", "status", dialect.name).stdout
    assert cli.run("hook", "uninstall", dialect.name).returncode == 0
    assert json.loads(path.read_text()) == before and sorted(os.listdir(path.parent)) == [path.name]
    assert "nothing to change" in cli.run("hook", "uninstall", dialect.name).stdout
    done = cli.run("hook", "status", dialect.name)
    assert (done.returncode, done.stdout) == (1, f"{dialect.name}: not installed\n")


@AGENTS
def test_a_project_has_a_file_of_this_machine(cli: CommandLine, home: Path, tmp_path: Path, dialect: Dialect) -> None:
    project = tmp_path / "project"
    project.mkdir()
    assert cli.run("hook", "install", dialect.name, "--project", cwd=project).returncode == 0
    assert dialect.events[0] in lines(json.loads((project / dialect.project).read_text()))
    assert not (home / dialect.settings).exists()
    assert "installed" in cli.run("hook", "status", dialect.name, cwd=project).stdout


def test_a_plug_in_is_a_file_of_its_own(cli: CommandLine, home: Path) -> None:
    path = home / ".config/opencode/plugins/sandboxd.js"
    assert cli.run("hook", "install", "opencode").returncode == 0
    assert " hook run opencode || exit 2" in path.read_text()
    assert "installed" in cli.run("hook", "status", "opencode").stdout
    assert cli.run("hook", "uninstall", "opencode").returncode == 0 and not path.exists()
    path.write_text("// mine\n")
    assert "nothing to change" in cli.run("hook", "uninstall", "opencode").stdout and path.exists()


@pytest.mark.parametrize(
    ("name", "file", "inside", "said"),
    [
        ("vscode-terminal", ".config/Code/User/settings.json", ".vscode/settings.json", "defaultProfile.linux"),
        ("zed-terminal", ".config/zed/settings.json", ".zed/settings.json", "has a session"),
    ],
)
def test_a_terminal_of_an_editor_keeps_comments(
    cli: CommandLine, home: Path, name: str, file: str, inside: str, said: str
) -> None:
    path = home / file
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // mine\n  "editor.tabSize": 2,\n}\n')
    before = path.read_text()
    assert cli.run("hook", "status", name).returncode == 1
    for _ in range(2):
        done = cli.run("hook", "install", name)
        assert done.returncode == 0 and said in done.stdout
        assert "// mine" in path.read_text() and path.read_text().count('"session"') == 1
    assert cli.run("hook", "status", name).returncode == 0
    assert cli.run("hook", "uninstall", name).returncode == 0
    assert "// mine" in path.read_text() and "sandboxd" not in path.read_text()
    path.write_text(before + "}")
    done = cli.run("hook", "install", name)
    assert done.returncode == 125 and "is not changed" in done.stderr and path.read_text() == before + "}"
    project = home / "project"
    project.mkdir()
    assert cli.run("hook", "install", name, "--project", cwd=project).returncode == 0
    assert json.loads((project / inside).read_text())


def test_a_shell_that_a_user_has_chosen_stays(cli: CommandLine, home: Path) -> None:
    path = home / ".config/zed/settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(text := '{"terminal": {"shell": {"program": "fish"}, "font_size": 12}}')
    done = cli.run("hook", "install", "zed-terminal")
    assert done.returncode == 125 and "has its own terminal.shell" in done.stderr, done
    assert "nothing to change" in cli.run("hook", "uninstall", "zed-terminal").stdout
    assert path.read_text() == text


@pytest.mark.parametrize("agent", ["claude", "opencode", "vscode-terminal"])
def test_no_program_is_named_that_commands_could_write(cli: CommandLine, home: Path, agent: str) -> None:
    record = home / programs.OPENED_RECORD
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(os.path.realpath(sys.prefix)) + "\n")
    done = cli.run("hook", "install", agent)
    assert done.returncode == 125 and "commands could write" in done.stderr
    record.unlink()
    assert cli.run("hook", "install", agent).returncode == 0


def test_a_link_stays_and_its_target_is_written(cli: CommandLine, home: Path) -> None:
    (home / "dotfiles").mkdir()
    (home / "dotfiles" / "claude.json").write_text("{}")
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").symlink_to("../dotfiles/claude.json")
    assert cli.run("hook", "install", "claude").returncode == 0
    assert (home / ".claude" / "settings.json").is_symlink()
    assert "PreToolUse" in (home / "dotfiles/claude.json").read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}', "[" * 100_000])
def test_a_file_that_is_not_understood_stays(cli: CommandLine, home: Path, text: str) -> None:
    (home / ".claude").mkdir()
    path = home / ".claude" / "settings.json"
    path.write_text(text)
    for action in ("install", "uninstall"):
        done = cli.run("hook", action, "claude")
        assert done.returncode == 125 and f"{path} is not changed" in done.stderr and "hint: " in done.stderr, done
    assert path.read_text() == text and os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "hook needs a command"),
        (("instal", "claude"), "did you mean install"),
        (("install",), "name one agent"),
        (("install", "claud"), "did you mean claude"),
        (("install", "claude", "codex"), "name one agent"),
    ],
)
def test_wrong_words_are_told(cli: CommandLine, home: Path, words: tuple[str, ...], message: str) -> None:
    done = cli.run("hook", *words)
    assert done.returncode == 2 and message in done.stderr
