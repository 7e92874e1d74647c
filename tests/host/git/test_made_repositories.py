"""Record of repositories made by commands, by path, inode and the times at which commands ran."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.host.busy_places import BusyPlaces
from sandboxd.host.git import made_repositories
from sandboxd.host.git.made_repositories import MadeRepositories
from sandboxd.plan.host_facts import Territory


def _touch(git: Path) -> None:
    (git / "index").write_text("")


def _exchange(git: Path) -> None:
    git.rename(git.parent / "other")
    git.mkdir()


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda git: None, True),
    "a change": (_touch, False),
    "a worktree": (lambda git: (git / "worktrees").mkdir(), False),
    "a common directory": (lambda git: (git / "commondir").write_text(".."), False),
    "another inode": (_exchange, False),
    "removal": (lambda git: git.rmdir(), False),
}


@pytest.fixture
def busy(tmp_path: Path) -> BusyPlaces:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    found = BusyPlaces()
    found.begin("launch", Territory((str(tmp_path),), since=time.time_ns() - 10**9))
    return found


def searched(busy: BusyPlaces, git: Path, *, searched: bool = True) -> MadeRepositories:
    """A repository of a command that has ended."""
    made = MadeRepositories(busy)
    git.mkdir(parents=True)
    made.made("launch", str(git), os.lstat(git).st_ino & 0xFFFFFFFF)
    assert not made.can_be_removed(str(git))
    made.ended("launch", searched=searched)
    busy.end("launch", busy.running["launch"])
    return made


@pytest.mark.parametrize("change", CHANGES)
def test_what_ends_it(busy: BusyPlaces, tmp_path: Path, change: str) -> None:
    made = searched(busy, tmp_path / "a" / ".git")
    do, expected = CHANGES[change]
    do(tmp_path / "a" / ".git")
    assert made.can_be_removed(str(tmp_path / "a" / ".git")) is expected


@pytest.mark.parametrize("outer", ["none", "a command's"])
def test_one_within_no_repository_of_the_user_is_protected(busy: BusyPlaces, tmp_path: Path, outer: str) -> None:
    made = searched(busy, tmp_path / "a/b" / ".git")
    assert made.can_be_removed(str(tmp_path / "a/b/.git"))
    (tmp_path / ".git/HEAD").unlink()
    if outer != "none":
        made.made("other", str(tmp_path / "a/.git"), 0)
        (tmp_path / "a/.git").mkdir()
        (tmp_path / "a/.git/HEAD").write_text("")
    assert not made.can_be_removed(str(tmp_path / "a/b/.git"))


def test_without_a_search_it_stays_protected(busy: BusyPlaces, tmp_path: Path) -> None:
    made = searched(busy, tmp_path / "a" / ".git", searched=False)
    assert not made.can_be_removed(str(tmp_path / "a" / ".git"))


def test_what_commands_change_meanwhile_ends_nothing(busy: BusyPlaces, tmp_path: Path) -> None:
    made = searched(busy, tmp_path / "a" / ".git")
    busy.begin("next", Territory((str(tmp_path),), since=time.time_ns() - 10**6))
    _touch(tmp_path / "a" / ".git")
    assert made.can_be_removed(str(tmp_path / "a" / ".git"))


def test_the_number_is_bounded(busy: BusyPlaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_repositories, "MOST", 2)
    made = MadeRepositories(busy)
    places = [tmp_path / name / ".git" for name in "abc"]
    for place in places:
        place.mkdir(parents=True)
        made.made(str(place), str(place), os.lstat(place).st_ino & 0xFFFFFFFF)
        made.ended(str(place), searched=True)
    assert [made.can_be_removed(str(place)) for place in places] == [False, True, True]
