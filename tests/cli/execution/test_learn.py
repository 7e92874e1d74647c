"""`sandboxd run --learn FILE`: what is written, what is asked, and what a hostile command can do about the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd_client.testing import FakeDaemon
from support.terminal import Terminal

SETTINGS = {"sandbox": {"filesystem": {"allowWrite": ["~/.npm"]}, "network": {"allowedDomains": ["a.test:443"]}}}


@pytest.fixture
def learned(fake: FakeDaemon) -> dict[str, Any]:
    """What the daemon says was learned; a test may change it."""
    said: dict[str, Any] = {
        "settings": SETTINGS, "left_out": [{"target": "/h/.ssh/\x1bid", "why": "it is a place of secrets"}],
        "notes": ["~/x does not exist"],
    }  # fmt: skip
    outcome: dict[str, Any] = {
        "started": True, "exited": True, "status": 0, "reason": None, "violations": [], "learned": said,
    }  # fmt: skip
    fake.answer("wrap.outcome", lambda params: outcome if params.get("learn") else {**outcome, "learned": None})
    return said


def test_in_a_pipe_it_is_written(cli: CommandLine, learned: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    done = cli.run("run", "--learn", str(file), "-c", "exit 3", stdin=-3)
    assert done.returncode == 3 and json.loads(file.read_text()) == SETTINGS
    assert "not learned: /h/.ssh/\\x1bid: it is a place of secrets" in done.stderr
    assert "note: ~/x does not exist" in done.stderr and f"--settings {file}" in done.stderr
    learned["settings"] = {"sandbox": {"filesystem": {"allowWrite": ["~/.npm", "~/y"], "allowRead": ["/r"]}}}
    assert cli.run("run", "--learn", str(file), "--", "true", stdin=-3).returncode == 0
    joined = json.loads(file.read_text())["sandbox"]
    assert joined["filesystem"] == {"allowWrite": ["~/.npm", "~/y"], "allowRead": ["/r"]}
    assert joined["network"] == SETTINGS["sandbox"]["network"]
    assert "nothing to add" in cli.run("run", "--learn", str(file), "--", "true", stdin=-3).stderr
    assert [one.name for one in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.parametrize(("answer", "written"), [("y", True), ("n", False), ("", False)])
def test_at_a_terminal_it_is_shown_and_asked(
    cli: CommandLine, learned: dict[str, Any], tmp_path: Path, answer: str, written: bool
) -> None:
    file = tmp_path / "s.json"
    file.write_text('{"sandbox": {"enabled": true}}')
    with Terminal([*cli.argv, "run", "--learn", str(file), "--", "true"], env=cli.env) as opened:
        opened.expect(r'\+ +"~/\.npm"')
        opened.expect(r"\[y/N\]")
        opened.type(answer)
        assert opened.wait() == 0
    assert ("filesystem" in json.loads(file.read_text())["sandbox"]) is written
    assert json.loads(file.read_text())["sandbox"]["enabled"] is True


@pytest.mark.parametrize("content", ["[]", "{", "// no\n{}", "\x00"])
def test_a_file_of_somebody_else_is_left_alone_and_nothing_runs(
    cli: CommandLine, learned: dict[str, Any], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "other"
    file.write_text(content)
    done = cli.run("run", "--learn", str(file), "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 125 and "plain JSON" in done.stderr and file.read_text() == content
    assert not (tmp_path / "ran").exists()
    done = cli.run("run", "--learn", str(tmp_path / "absent" / "x"), "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 125 and not (tmp_path / "ran").exists()


def test_a_link_that_the_command_makes_is_not_followed(
    cli: CommandLine, learned: dict[str, Any], tmp_path: Path
) -> None:
    """The file may be where the command can write."""
    victim, file, inside = tmp_path / "victim", tmp_path / "w" / "s.json", tmp_path / "w"
    inside.mkdir()
    victim.write_text("kept")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cli.run("run", "--learn", str(file), "-c", f"ln -s {victim} {file}", stdin=-3)
    assert victim.read_text() == "kept" and json.loads(file.read_text()) == SETTINGS
    file.unlink()
    cli.run("run", "--learn", str(file), "-c", f"mv {inside} {inside}2; ln -s {elsewhere} {inside}", stdin=-3)
    assert list(elsewhere.iterdir()) == []
    file.parent.unlink()
    inside.mkdir()
    file.symlink_to(victim)
    assert cli.run("run", "--learn", str(file), "--", "true").returncode == 125


def test_a_bare_name_lies_where_no_command_writes(
    cli: CommandLine, learned: dict[str, Any], fake: FakeDaemon, tmp_path: Path
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    cli.env["HOME"] = str(home)
    file = home / ".local/state/sandboxd/trust/learned/needed.json"
    done = cli.run("run", "--learn", "needed.json", "--", "true", stdin=-3, cwd=work)
    assert json.loads(file.read_text()) == SETTINGS and f"written: {file}" in done.stderr
    assert "sandboxd trust" not in done.stderr and list(work.iterdir()) == []
    assert file.parent.stat().st_mode & 0o777 == file.parent.parent.stat().st_mode & 0o777 == 0o700

    def named(*words: str) -> str | None:
        fake.calls.clear()
        cli.run("run", "--settings", *words, "--", "true", stdin=-3, cwd=work)
        given = [call.params["overrides"]["settings"] for call in fake.calls if call.method == "wrap"]
        return given[0] if given else None

    assert named("needed.json") == str(file)
    assert named("other.json") == f"{work}/other.json"
    (work / "needed.json").symlink_to("nowhere")
    assert named("needed.json") is None, "one of them may be planted"
    assert named("./needed.json") == f"{work}/./needed.json"
    for name in ("", ".", ".."):
        done = cli.run("run", "--learn", name, "--", "touch", str(work / "ran"), stdin=-3, cwd=work)
        assert done.returncode != 0 and not (work / "ran").exists()
