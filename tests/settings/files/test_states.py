"""The states of settings files: whatever changes what would be read gives another one, or is said not to be settled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.states import FileStates, look_at_file, look_at_files
from sandboxd.settings.origins import Source
from support.waiting import wait_until


def renamed_over(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("[]")
    new.rename(path)


def linked(path: Path) -> None:
    path.unlink()
    path.with_name("target").write_text("{}")
    path.symlink_to("target")


def rewritten_with_the_times_of_before(path: Path) -> None:
    before = path.stat()
    path.write_text("[]")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda path: path.write_text("{} "),
    "removed": lambda path: path.unlink(),
    "renamed over": renamed_over,
    "linked": linked,
    "mode": lambda path: path.chmod(0o606),
    "old times": rewritten_with_the_times_of_before,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_gives_another_state(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    wait_until(lambda: look_at_file(str(path)).settled, "the clock of times has gone on")
    before = look_at_file(str(path))
    change(path)
    assert look_at_file(str(path)).states != before.states


def test_what_has_just_changed_is_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    os.utime(path, (0, 0))
    assert not look_at_file(str(path)).settled
    wait_until(lambda: look_at_file(str(path)).settled, "the clock of times has gone on")


def test_a_link_to_nothing_and_nothing_are_different(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    nothing = look_at_file(str(path))
    path.symlink_to("target")
    dangling = look_at_file(str(path))
    (tmp_path / "target").write_text("{}")
    assert nothing.settled and len({nothing.states, dangling.states, look_at_file(str(path)).states}) == 3


def test_a_link_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    (tmp_path / "target").write_text("{}")
    path.symlink_to("target")
    before = look_at_file(str(path)).states
    (tmp_path / "target").write_text("{ }")
    assert look_at_file(str(path)).states != before


def test_what_keeps_a_name_absent_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    nothing = look_at_file(str(path))
    path.mkdir()
    path.chmod(0o1755)
    assert look_at_file(str(path)) == nothing
    (path / "own").write_text("")
    assert look_at_file(str(path)).states != nothing.states


def test_a_directory_counts_with_its_files(tmp_path: Path) -> None:
    directory = tmp_path / "managed-settings.d"

    def look() -> FileStates:
        return look_at_files([Location(Source.MANAGED, str(directory), directory=True)])

    seen = [look().states]
    directory.mkdir()
    seen.append(look().states)
    (directory / "a.json").write_text("{}")
    seen.append(look().states)
    (directory / "a.json").write_text("{ }")
    seen.append(look().states)
    (directory / "a.json").unlink()
    seen.append(look().states)
    assert len(set(seen)) == len(seen)


def test_a_clock_that_was_set_back_is_no_reason_to_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    os.utime(path, (time.time() + 3600,) * 2)
    wait_until(lambda: look_at_file(str(path)).settled, "the clock of times has gone on")
