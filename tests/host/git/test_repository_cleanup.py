"""The look at what commands have left in repositories: what is told apart, and what happens where it meets a limit."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from sandboxd.host.git import cleanup_pass, git_directory_cleanup, unfinished_cleanups
from sandboxd.host.git.launch_journal import LaunchJournal
from sandboxd.host.git.repository_cleanup import RepositoryCleanup
from sandboxd.plan.host_facts import Neutralised, Territory
from support.waiting import wait_until_async

HARMFUL = "\n[core]\n\tfsmonitor = /evil\n"


def git(directory: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@a.test")
    return subprocess.run(["git", *named, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


def repository(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    git(path, "commit", "-q", "--allow-empty", "-m", "1")
    return path


def trap(path: Path) -> Path:
    repository(path)
    hook = path / ".git" / "hooks" / "post-commit"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    with (path / ".git" / "config").open("a") as config:
        config.write(HARMFUL)
    return path


def is_trap(path: Path) -> bool:
    config, hook = path / ".git" / "config", path / ".git" / "hooks" / "post-commit"
    found = (HARMFUL in config.read_text(), hook.exists())
    assert found[0] == found[1]
    return found[0]


class Looks:
    """Commands in one directory. Nothing runs them: a test makes what they would make."""

    def __init__(self, top: Path) -> None:
        self.told: list[Neutralised] = []
        self.repositories = RepositoryCleanup(report=lambda _, found: self.told.append(found))
        self.temporary, self.work = top / "tmp", top / "work"
        for path in (self.temporary, self.work):
            path.mkdir()
        self._number = 0

    async def begin(self, *known: Path) -> str:
        """A command starts."""
        time.sleep(0.02)  # the clock that the file system takes its times from goes in steps
        self._number += 1
        places = (str(self.temporary), str(self.work))
        territory = Territory(places, (), tuple(map(str, known)), time.time_ns())
        await self.repositories.begin(str(self._number), territory)
        time.sleep(0.02)
        return str(self._number)

    async def end(self, command: str) -> Neutralised:
        return await self.repositories.look(command, lambda path: True)


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return Looks(tmp_path)


async def test_what_a_person_has_made_stays(looks: Looks) -> None:
    before = trap(looks.work / "a" / "b" / "c" / "d" / "e")
    command = await looks.begin()
    (before / "file").touch()
    git(before, "-c", "core.hooksPath=/none", "-c", "core.fsmonitor=false", "commit", "-q", "--allow-empty", "-m", "2")
    assert await looks.end(command) == Neutralised()
    between = trap(looks.work / "node_modules" / "x")
    command = await looks.begin()
    (looks.work / "node_modules" / "y").mkdir()
    assert await looks.end(command) == Neutralised()
    assert is_trap(before) and is_trap(between)


async def test_what_a_command_has_changed_there_does_not(looks: Looks) -> None:
    path = trap(looks.work / "a" / "b" / "c" / "d" / "e")
    command = await looks.begin()
    (path / ".git" / "hooks" / "post-merge").write_text("#!/bin/sh\n")
    (path / ".git" / "hooks" / "post-merge").chmod(0o755)
    assert (await looks.end(command)).moved == (str(path / ".git/hooks/post-merge"),)
    assert is_trap(path)
    command = await looks.begin()
    (path / ".git" / "hooks" / "post-commit").write_text("#!/bin/sh\n# other\n")
    assert (await looks.end(command)).moved == (str(path / ".git/hooks/post-commit"),)


async def test_what_was_moved_there_is_new(looks: Looks) -> None:
    """Its times are old, and its place is not."""
    command = await looks.begin()
    path = trap(looks.work / "x")
    (path / ".git" / "HEAD").rename(looks.work / "HEAD")
    (path / ".git").rename(path / "part")
    assert (await looks.end(command)).moved == ()
    command = await looks.begin()
    (path / "part").rename(path / ".git")
    (looks.work / "HEAD").rename(path / ".git" / "HEAD")
    path.rename(looks.work / "y")
    assert len((await looks.end(command)).moved) == 2
    assert not is_trap(looks.work / "y")


async def test_one_command_vouches_for_no_other(looks: Looks) -> None:
    """What is there when one starts, and when one ends, may be what another that still runs has made."""
    first = await looks.begin()
    early = trap(looks.work / "early")
    second = await looks.begin()
    assert len((await looks.end(second)).moved) == 2 and not is_trap(early)
    late = trap(looks.work / "late")
    third = await looks.begin()
    other = RepositoryCleanup()
    await other.begin("x", Territory((str(looks.work),), (), (), 0))
    assert len((await looks.end(first)).moved) == 2 and not is_trap(late)
    assert (await looks.end(third)).moved == ()


async def test_leftovers_of_commands_taken_over_are_cleaned_up(looks: Looks) -> None:
    since = time.time_ns()
    time.sleep(0.02)
    path = trap(looks.work / "x")
    looks.repositories.resume("old", Territory((str(looks.work),), (), (), since))
    new = await looks.begin()
    assert len((await looks.end(new)).moved) == 2 and not is_trap(path)
    assert (await looks.end("old")).moved == ()


async def test_one_that_failed_is_made_up_for_before_the_next_command(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, other = await looks.begin(), await looks.begin()
    path = trap(looks.work / "x")
    with monkeypatch.context() as patch:
        patch.setattr(git_directory_cleanup, "make_harmless", lambda *_: ((), OSError("no")))
        patch.setattr(git_directory_cleanup, "obeyed_items", lambda *_: ())
        assert (await looks.end(command)).failed is not None
        assert (await looks.end(other)).failed is not None, "one that failed serves no other command"
    assert is_trap(path)
    command = await looks.begin()
    assert not is_trap(path)
    assert await looks.end(command) == Neutralised()
    await looks.repositories.aclose()


@pytest.mark.parametrize("way", ["gitlink", "alternates", "worktree", "file"])
async def test_at_its_limit_it_goes_where_git_goes(looks: Looks, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Shallow ones are harmless then, what git goes to is, and the rest is told."""
    outer = repository(looks.work / "outer")
    monkeypatch.setattr(cleanup_pass, "MOST_DIRECTORIES", 200)
    command = await looks.begin(outer / ".git")
    shallow, unseen = trap(looks.work / "shallow"), trap(looks.work / "many/1/2/3/4/5/6/7/8/9/unseen")
    for number in range(300):
        (looks.work / "many" / str(number)).mkdir(exist_ok=True)
    deep = trap(outer / "many/1/2/3/4/5/6/7/8/9/deep")
    if way == "gitlink":
        git(outer, "update-index", "--add", "--cacheinfo", f"160000,{git(deep, 'rev-parse', 'HEAD').strip()},"
            f"{deep.relative_to(outer)}")  # fmt: skip
    elif way == "alternates":
        (outer / ".git/objects/info/alternates").write_text(f"{deep}/.git/objects\n")
    elif way == "worktree":
        linked = outer / ".git/worktrees/w"
        linked.mkdir(parents=True)
        (linked / "HEAD").write_text("ref: refs/heads/main\n")
        (linked / "commondir").write_text(f"{deep}/.git\n")
    else:
        (looks.work / "n").mkdir()
        (looks.work / "n" / ".git").write_text(f"gitdir: {deep}/.git\n")
    done = await looks.end(command)
    assert "more than 200 directories" in done.unseen and done.failed is None
    assert not is_trap(shallow) and is_trap(unseen)
    if way == "worktree":
        assert str(linked / "commondir") in done.moved
    else:
        assert not is_trap(deep)


async def test_a_look_that_takes_too_long_ends(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    command = await looks.begin()
    for number in range(50):
        (looks.work / str(number)).mkdir()
    monkeypatch.setattr(cleanup_pass, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(cleanup_pass, "LEAST_SECONDS", 0.0)
    assert "took too long" in (await looks.end(command)).unseen


async def test_what_was_not_seen_is_not_excused_by_its_age(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    command = await looks.begin()
    path = trap(looks.work / "many/1/2/3/4/5/6/7/8/9/unseen")
    for number in range(300):
        (looks.work / "many" / str(number)).mkdir(exist_ok=True)
    with monkeypatch.context() as limited:
        limited.setattr(cleanup_pass, "MOST_DIRECTORIES", 200)
        assert (await looks.end(command)).unseen and is_trap(path)
    await looks.repositories.unfinished.aclose()
    command = await looks.begin()
    assert len((await looks.end(command)).moved) == 2 and not is_trap(path)


async def test_names_that_a_command_made_are_seen_anywhere(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits too: what the helper has told of, and what lies in a directory that was moved."""
    wide(looks.work / "many")
    before = trap(looks.work / "many/1/2/3/4/5/6/7/8/9/before")
    command = await looks.begin()
    places = [looks.work / f"many/1/2/3/4/5/6/7/8/9/{name}" for name in ("told", "moved/a/b", "neither")]
    told, moved, neither = map(trap, places)
    for path in (told / ".git" / "config", told / ".git" / "HEAD", moved.parent.parent):
        looks.repositories.made.made(command, str(path), 0)
    monkeypatch.setattr(cleanup_pass, "MOST_DIRECTORIES", 200)
    assert (await looks.end(command)).unseen
    assert [is_trap(one) for one in (told, moved, neither, before)] == [False, False, True, True]


def wide(path: Path, count: int = 300) -> None:
    for number in range(count):
        (path / str(number)).mkdir(parents=True, exist_ok=True)


async def nothing_is_owed(looks: Looks) -> None:
    await wait_until_async(lambda: not looks.repositories.unfinished.is_busy, "nothing is owed")


@pytest.fixture
def limited(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are not whole, and what follows is made in many parts."""
    monkeypatch.setattr(cleanup_pass, "MOST_DIRECTORIES", 200)
    monkeypatch.setattr(cleanup_pass, "PART_S", 0.002)
    monkeypatch.setattr(unfinished_cleanups, "PAUSE_S", 0.001)


async def test_the_rest_of_a_look_is_made_up_for(looks: Looks, limited: None) -> None:
    """In the background: no command waits for it, and what a person has made stays."""
    wide(looks.work / "many")
    before = trap(looks.work / "many/1/2/3/4/5/6/7/8/9/before")
    command = await looks.begin()
    planted_there = [trap(looks.work / f"many/{number}/a/b/c/d") for number in (5, 150, 299)]
    wide(looks.work / "many/7/8/9", 1000)
    done = await looks.end(command)
    assert "more than 200 directories" in done.unseen and all(map(is_trap, planted_there))
    await nothing_is_owed(looks)
    assert not any(map(is_trap, planted_there)) and is_trap(before)
    moved = [path for found in looks.told for path in found.moved]
    assert len(moved) == 6 and not any(found.unseen or found.failed for found in looks.told)


async def test_a_look_at_a_part_serves_no_other_command_as_whole(looks: Looks, limited: None) -> None:
    commands = [await looks.begin() for _ in range(3)]  # the second look begins when the third command has ended
    wide(looks.work / "many")
    ends = await asyncio.gather(*map(looks.end, commands))
    assert all("more than 200 directories" in done.unseen for done in ends)
    await nothing_is_owed(looks)


async def test_what_is_owed_comes_to_its_end_while_commands_end(looks: Looks, limited: None) -> None:
    """Each of their looks leaves a rest; the one that is under way is not begun anew."""
    wide(looks.work / "many", 2000)
    command = await looks.begin()
    hidden = trap(looks.work / "many/1999/a/b/c/d")
    assert (await looks.end(command)).unseen
    while (hidden / ".git" / "hooks" / "post-commit").exists():
        assert (await looks.end(await looks.begin())).unseen
        await asyncio.sleep(0.002)
    await nothing_is_owed(looks)
    assert not is_trap(hidden)


async def test_the_next_daemon_owes_the_rest(looks: Looks, limited: None, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()

    def daemon() -> RepositoryCleanup:
        return RepositoryCleanup(LaunchJournal(str(tmp_path / "kept" / "launches")))

    looks.repositories = daemon()
    command = await looks.begin()
    looks.repositories.claimed(command, 2**22)
    wide(looks.work / "many")
    hidden = trap(looks.work / "many/299/a/b/c/d")
    assert (await looks.end(command)).unseen
    await looks.repositories.aclose()
    looks.repositories = daemon()
    await looks.repositories.take_over(frozenset())
    await wait_until_async(lambda: not (hidden / ".git" / "hooks" / "post-commit").exists(), "it is harmless")
    await nothing_is_owed(looks)
    assert not is_trap(hidden)
    await looks.repositories.aclose()
    assert not list((tmp_path / "kept").iterdir())


async def test_hooks_of_the_user_that_a_command_has_made(looks: Looks, tmp_path: Path) -> None:
    (tmp_path / "home" / ".gitconfig").write_text("[core]\n\thooksPath = .githooks\n")
    command = await looks.begin()
    path = repository(looks.work / "x")
    (path / ".githooks").mkdir()
    hook = path / ".githooks" / "post-commit"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert (await looks.end(command)).moved == (str(hook),)


async def test_more_hooks_than_git_knows_are_moved_together(looks: Looks) -> None:
    command = await looks.begin()
    path = repository(looks.work / "x")
    for number in range(2001):
        (path / ".git" / "hooks" / str(number)).touch(mode=0o755)
    assert (await looks.end(command)).moved == (str(path / ".git" / "hooks"),)


async def test_places_that_are_gone_are_forgotten(looks: Looks) -> None:
    await looks.end(await looks.begin())
    looks.temporary.rmdir()
    territory = Territory((str(looks.temporary), str(looks.work.parent)), (), (), time.time_ns())
    await looks.repositories.begin("x", territory)
    assert await looks.repositories.look("x", lambda path: True) == Neutralised()
