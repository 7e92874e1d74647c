"""Writing settings: nothing is lost, whatever else writes, and nothing but the change is different."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.errors import DaemonError, SettingsError
from sandboxd.settings.edits import Act, Change, apply_change
from sandboxd.settings.files import writing
from sandboxd.settings.files.writing import edit_file

ROOT = Path(__file__).resolve().parents[3]
KEY = "sandbox.excludedCommands"


def add(value: str) -> Callable[[str], str]:
    return lambda text: apply_change(text, Change(Act.ADD, KEY, value))


def entries(path: Path) -> list[str]:
    found: list[str] = json.loads(path.read_text())["sandbox"]["excludedCommands"]
    return found


def test_a_new_file_is_private_and_so_is_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "new" / "settings.local.json"
    assert edit_file(str(path), add("a"))
    assert entries(path) == ["a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["settings.local.json"]


def test_comments_order_and_mode_stay(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    before = (
        '// mine\n{\n    "z": 1, // why\n    "sandbox": {"excludedCommands": ["a"]},\n    "unknown": {"k": [1]}\n}\n'
    )
    path.write_text(before)
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    owner = path.stat().st_uid
    assert edit_file(str(path), add("b"))
    assert path.read_text() == before.replace('["a"]', '["a", "b"]')
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_uid == owner


def test_adding_twice_adds_once_and_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    assert edit_file(str(path), add("a"))
    before = path.stat()
    assert not edit_file(str(path), add("a"))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_text("{}")
    path = tmp_path / "s.json"
    path.symlink_to(target)
    with pytest.raises(SettingsError) as caught:
        edit_file(str(path), add("a"))
    assert caught.value.slug == "settings_is_link"
    assert target.read_text() == "{}" and path.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["s.json", "target.json"]


def test_what_cannot_be_edited_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    for text, slug in (("{", "settings_syntax"), ("", "settings_empty"), ('{"sandbox": 1}', "settings_not_an_object")):
        path.write_text(text)
        with pytest.raises(DaemonError) as caught:
            edit_file(str(path), add("a"))
        assert caught.value.slug == slug
        assert path.read_text() == text
    path.unlink()
    path.mkdir()
    with pytest.raises(SettingsError, match="not a regular file"):
        edit_file(str(path), add("a"))
    path.rmdir()
    (tmp_path / "plain").write_text("x")
    with pytest.raises(SettingsError) as caught:
        edit_file(str(tmp_path / "plain" / "s.json"), add("a"))
    assert caught.value.slug == "settings_unwritable"
    assert sorted(os.listdir(tmp_path)) == ["plain"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    (tmp_path / ".s.json.0123.tmp").write_text("half")
    (tmp_path / "other.tmp").write_text("not ours")
    edit_file(str(path), add("a"))
    assert sorted(os.listdir(tmp_path)) == ["other.tmp", "s.json"]


def test_two_daemons_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    code = textwrap.dedent(f"""
        import sys
        from sandboxd.settings.edits import Act, Change, apply_change
        from sandboxd.settings.files.writing import edit_file
        for number in range(25):
            edit_file({str(path)!r}, lambda t: apply_change(t, Change(Act.ADD, {KEY!r}, f"{{sys.argv[1]}}-{{number}}")))
    """)
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(n)], env={"PYTHONPATH": os.pathsep.join(sys.path)}, cwd=ROOT)
        for n in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert sorted(entries(path)) == sorted(f"{n}-{number}" for n in range(3) for number in range(25))
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_lock_that_is_kept_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandboxed program that can read the directory can do that."""
    monkeypatch.setattr(writing, "LOCK_PATIENCE_S", 0.05, raising=False)
    path = tmp_path / "s.json"
    edit_file(str(path), add("a"))
    keeper = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(keeper, fcntl.LOCK_SH)
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(edit_file, str(path), add("b"))
        try:
            error = attempt.exception(30)
        finally:
            os.close(keeper)
    assert isinstance(error, SettingsError) and error.slug == "settings_busy", error
    assert str(tmp_path) in error.message and "locked" in error.message and error.hint
    assert entries(path) == ["a"] and edit_file(str(path), add("b")) and entries(path) == ["a", "b"]


class Editor:
    """Saves the file the way editors do, at the worst moment: after we have read it, before we replace it."""

    def __init__(self, path: Path, saves: int, save: Callable[[Path, int], None]) -> None:
        self.path = path
        self.left = saves
        self.save = save

    def during(self, edit: Callable[[str], str]) -> Callable[[str], str]:
        def edited(text: str) -> str:
            result = edit(text)
            if self.left:
                self.left -= 1
                self.save(self.path, self.left)
            return result

        return edited


def rename_over(path: Path, number: int) -> None:
    new = path.with_name("editor.tmp")
    new.write_text(
        apply_change(path.read_text() if path.exists() else "", Change(Act.ADD, "sandbox.presets", str(number)))
    )
    new.rename(path)


def write_in_place(path: Path, number: int) -> None:
    path.write_text(
        apply_change(path.read_text() if path.exists() else "", Change(Act.ADD, "sandbox.presets", str(number)))
    )


@pytest.mark.parametrize("save", [rename_over, write_in_place])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_save_in_between_loses_no_change(
    tmp_path: Path, save: Callable[[Path, int], None], exists: bool, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:  # a file system without RENAME_EXCHANGE
        monkeypatch.setattr(writing, "_rename_exchange", lambda: lambda *_: 22)
    path = tmp_path / "s.json"
    if exists:
        path.write_text('{"sandbox": {"excludedCommands": ["old"]}}')
    editor = Editor(path, 3, save)
    assert edit_file(str(path), editor.during(add("ours")))
    tree = json.loads(path.read_text())["sandbox"]
    assert tree["excludedCommands"] == (["old", "ours"] if exists else ["ours"])
    # Each save was made on what the editor saw at that moment; the last one is complete.
    assert "0" in tree["presets"]
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_file_deleted_in_between_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"sandbox": {"excludedCommands": ["old"]}}')
    editor = Editor(path, 1, lambda path, _: path.unlink())
    assert edit_file(str(path), editor.during(add("ours")))
    assert "ours" in entries(path)
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_file_that_changes_all_the_time_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("{}")
    editor = Editor(path, 10_000, rename_over)
    with pytest.raises(SettingsError) as caught:
        edit_file(str(path), editor.during(add("ours")))
    assert caught.value.slug == "settings_busy"
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_directory_swapped_for_a_link_changes_nothing(tmp_path: Path) -> None:
    directory, victim = tmp_path / "config", tmp_path / "victim"
    directory.mkdir()
    victim.mkdir()
    (victim / "s.json").write_text("{}")
    path = directory / "s.json"
    path.write_text("{}")

    def swap(*_: object) -> None:
        directory.rename(tmp_path / "moved")
        directory.symlink_to(victim)

    assert edit_file(str(path), Editor(path, 1, swap).during(add("a")))
    assert (victim / "s.json").read_text() == "{}"
    assert entries(tmp_path / "moved" / "s.json") == ["a"]
