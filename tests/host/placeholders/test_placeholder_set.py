"""Placeholders: made, shared, kept from harm, and gone afterwards, whichever process dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.host.placeholders.placeholder import is_absent
from sandboxd.host.placeholders.placeholder_set import Placeholders
from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.plan.host_facts import Neutralised
from support.waiting import wait_until, wait_until_async


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def placeholders(tmp_path: Path) -> Iterator[Placeholders]:
    made = Placeholders(str(tmp_path / "journal"), linger=0)
    yield made
    made.close()


def test_they_are_there_while_they_are_held(work: Path, placeholders: Placeholders) -> None:
    hold = placeholders.hold((f"{work}/a/", f"{work}/a/b/", f"{work}/file"))
    assert (work / "a" / "b").is_dir() and (work / "file").read_bytes() == b""
    assert all(is_absent(str(path)) for path in work.rglob("*"))
    hold.release()
    hold.release()
    assert list(work.iterdir()) == []


def test_the_last_user_removes_them(work: Path, placeholders: Placeholders) -> None:
    first, second = (placeholders.hold((f"{work}/a/",)) for _ in range(2))
    first.release()
    assert (work / "a").is_dir()
    second.release()
    assert not (work / "a").exists()


def test_a_removed_placeholder_comes_back_for_the_next(work: Path, placeholders: Placeholders) -> None:
    """`git clean -d` outside, while a command runs."""
    names = (f"{work}/a/", f"{work}/b/", f"{work}/b/c/", f"{work}/f")
    first = placeholders.hold(names)
    for name in ("a", "b/c", "b"):
        (work / name).rmdir()
    (work / "f").unlink()
    second = placeholders.hold(names)
    assert all(is_absent(str(path)) for path in work.rglob("*")) and len([*work.rglob("*")]) == 4
    assert second.release() == Neutralised()
    assert len([*work.rglob("*")]) == 4
    assert first.release() == Neutralised()
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("anew", [False, True], ids=["as it is", "made anew for another"])
def test_what_appears_where_one_was_removed_is_moved_aside(work: Path, placeholders: Placeholders, anew: bool) -> None:
    """The command whose mount is gone with it can make the name, or write in what the next command is given."""
    first = placeholders.hold((f"{work}/a/", f"{work}/f"))
    (work / "a").rmdir()
    (work / "f").unlink()
    second = placeholders.hold((f"{work}/a/",)) if anew else None
    (work / "a").mkdir(exist_ok=True)
    (work / "a" / "planted").touch()
    (work / "f").write_text("a file is written anew by renaming: it is the user's")
    done = first.release()
    if second is not None:
        assert done == Neutralised() and (work / "a" / "planted").exists()
        done = second.release()
    assert done == Neutralised((f"{work}/a",))
    (aside,) = work.glob("a.refused-*")
    assert (aside / "planted").exists() and not aside.stat().st_mode & stat.S_ISVTX
    assert sorted(one.name for one in work.iterdir()) == [aside.name, "f"]


def test_one_that_is_removed_later_is_missed_too(work: Path, placeholders: Placeholders) -> None:
    """Not only in the moment in which the directory has just been changed anyway."""
    names = (f"{work}/a/", f"{work}/b/")
    holds = [placeholders.hold(names)]
    for _ in range(2):
        wait_until(lambda: work.stat().st_ctime < time.time() - 0.3, "its times are old")
        holds += [placeholders.hold(names), placeholders.hold(names[:1])]
        (work / "a").rmdir()
        holds.append(placeholders.hold(names))
        assert is_absent(str(work / "a")) and (work / "a").is_dir()
    wait_until(lambda: work.stat().st_ctime < time.time() - 0.3, "its times are old")
    assert holds.pop().release() == Neutralised()
    (work / "b").rmdir()
    (work / "b").mkdir()
    (work / "b" / "planted").touch()
    moved = [path for hold in holds for path in hold.release().moved]
    assert moved == [f"{work}/b"] and [one.name[:10] for one in work.iterdir()] == ["b.refused-"]


def test_what_keeps_one_from_being_made_anew_is_moved_aside(work: Path, placeholders: Placeholders) -> None:
    """The first command may have made it; that a second one asked for its name changes nothing about that."""
    first = placeholders.hold((f"{work}/a/",))
    (work / "a").rmdir()
    (work / "a").mkdir()
    (work / "a" / "planted").touch()
    with pytest.raises(HostError, match="has just been created"):
        placeholders.hold((f"{work}/a/",))
    assert first.release() == Neutralised((f"{work}/a",))


def test_one_that_comes_and_goes_is_always_absent(work: Path) -> None:
    """One command has ended, and the next is planned: what is removed in the middle of a look was never there."""
    stopped = threading.Event()

    def come_and_go() -> None:
        while not stopped.is_set():
            os.mkdir(work / "a", 0o1755)
            os.mkdir(work / "a" / "b", 0o1755)
            os.rmdir(work / "a" / "b")
            os.rmdir(work / "a")

    with ThreadPoolExecutor() as pool:
        coming = pool.submit(come_and_go)
        try:
            assert {resolve(f"{work}/a", NullNameRecorder()).kind for _ in range(20_000)} == {None}
        finally:
            stopped.set()
        coming.result()


def test_what_a_person_makes_is_theirs_where_no_command_ran(work: Path, placeholders: Placeholders) -> None:
    """An unclaimed launch, and `git clean` meanwhile."""
    hold = placeholders.hold((f"{work}/a/",), ((f"{work}/HEAD",),))
    (work / "a").rmdir()
    (work / "a").mkdir()
    (work / "a" / "own").touch()
    (work / "HEAD").touch()
    assert hold.release(ran=False) == Neutralised()
    assert sorted(str(path.relative_to(work)) for path in work.rglob("*")) == ["HEAD", "a", "a/own"]


def test_an_empty_directory_where_one_was_removed_goes(work: Path, placeholders: Placeholders) -> None:
    """bubblewrap makes one to mount on."""
    hold = placeholders.hold((f"{work}/a/",))
    (work / "a").rmdir()
    (work / "a").mkdir()
    assert hold.release() == Neutralised() and list(work.iterdir()) == []


def test_another_daemon_keeps_what_it_needs(work: Path, placeholders: Placeholders, tmp_path: Path) -> None:
    """Whether another daemon lives is told by its lock, and never by a pid."""
    other = Placeholders(str(tmp_path / "other-journal"), linger=0)
    mine, theirs = placeholders.hold((f"{work}/a/",)), other.hold((f"{work}/a/",))
    mine.release()
    assert (work / "a").is_dir()
    theirs.release()
    assert not (work / "a").exists()


async def test_they_outlive_their_last_user_a_moment(work: Path, tmp_path: Path) -> None:
    placeholders = Placeholders(str(tmp_path / "journal"), linger=30)
    await placeholders.prepare((f"{work}/a/",))
    placeholders.hold((f"{work}/a/",)).release()
    inode = (work / "a").stat().st_ino
    again = placeholders.hold((f"{work}/a/",))
    assert (work / "a").stat().st_ino == inode
    again.release()
    (work / "a").rmdir()
    assert placeholders.hold((f"{work}/a/",)) is not None and (work / "a").is_dir()
    placeholders.close()
    assert not (work / "a").exists()


@pytest.mark.parametrize("name", ["a/", "a"])
def test_what_somebody_uses_becomes_theirs(work: Path, placeholders: Placeholders, name: str) -> None:
    hold = placeholders.hold((f"{work}/{name}",))
    used = work / "a" / "inner" if name.endswith("/") else work / "a"
    used.write_text("data")
    assert not is_absent(str(work / "a"))
    hold.release()
    assert used.read_text() == "data"
    assert not (work / "a").stat().st_mode & stat.S_ISVTX


@pytest.mark.parametrize("name", ["a/", "file"])
def test_one_of_another_sandbox_that_is_used_is_told_once(work: Path, placeholders: Placeholders, name: str) -> None:
    path = work / name.rstrip("/")
    first = placeholders.hold((f"{work}/{name}",))
    asked: list[str] = []

    def rests_on(one: str) -> bool:
        asked.append(one)
        return True

    placeholders.hold((f"{work}/b/",), (), rests_on).release()
    assert asked == [str(path)], "of its own it knows already"
    (path / "own" if path.is_dir() else path).write_text("own")
    placeholders.hold((f"{work}/b/",)).release()
    with pytest.raises(HostError) as caught:
        placeholders.hold((f"{work}/b/",), (), rests_on)
    assert caught.value.slug == "placeholder_taken" and caught.value.data["path"].rstrip("/") == str(path)
    assert not is_absent(str(path)) and not (work / "b").exists()
    placeholders.hold((f"{work}/b/",), (), rests_on).release()
    first.release()


@pytest.mark.parametrize("existing", ["directory", "file", "link"])
def test_what_is_already_there_is_not_touched(work: Path, placeholders: Placeholders, existing: str) -> None:
    path = work / "a"
    path.mkdir() if existing == "directory" else path.write_text("x") if existing == "file" else path.symlink_to("x")
    with pytest.raises(HostError) as caught:
        placeholders.hold((f"{work}/b/", f"{path}/"))
    assert caught.value.slug == "placeholder_taken"
    assert [one.name for one in work.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["a/", "file"])
@pytest.mark.parametrize("how", ["filled", "taken"])
def test_one_in_use_is_not_held_any_more(work: Path, placeholders: Placeholders, name: str, how: str) -> None:
    """Nothing changes in the directory that it stands in, so this is where it is noticed."""
    path = work / name.rstrip("/")
    first = placeholders.hold((f"{work}/{name}",))
    if how == "taken":
        path.chmod(0o755)
    else:
        (path / "own" if path.is_dir() else path).write_text("own")
    for holder in (placeholders, Placeholders(str(work.parent / "other"), linger=0)):
        with pytest.raises(HostError) as caught:
            holder.hold((f"{work}/{name}",))
        assert caught.value.slug == "placeholder_taken"
    if how == "filled":
        (path / "own" if path.is_dir() else work / "none").unlink(missing_ok=True)
    first.release()
    assert path.exists() and not is_absent(str(path))


def test_a_directory_that_cannot_be_made_holds_nothing(work: Path, placeholders: Placeholders) -> None:
    with pytest.raises(HostError, match="from being created"):
        placeholders.hold((f"{work}/b/", f"{work}/none/c/"))
    assert list(work.iterdir()) == []


_DIES = """
import os, sys
from sandboxd.host.placeholders.placeholder_set import Placeholders
from sandboxd.plan.host_facts import Neutralised
Placeholders(sys.argv[1], linger=0).hold(tuple(sys.argv[2:]))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("afterwards", [True, False])
def test_a_file_system_without_modes(
    work: Path, placeholders: Placeholders, monkeypatch: pytest.MonkeyPatch, afterwards: bool
) -> None:
    """Some take the sticky bit only afterwards, and some not at all: there nothing could be told from what is real."""
    mkdir, open_file, fchmod = os.mkdir, os.open, os.fchmod
    monkeypatch.setattr(os, "mkdir", lambda path, mode=0o777, **at: mkdir(path, mode & 0o777, **at))
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777, **at: open_file(path, flags, mode & 0o777, **at))
    if not afterwards:
        monkeypatch.setattr(os, "fchmod", lambda descriptor, mode: fchmod(descriptor, mode & 0o777))
    names = (f"{work}/a/", f"{work}/a/b/", f"{work}/file")
    if afterwards:
        hold = placeholders.hold(names)
        assert all(is_absent(name.rstrip("/")) for name in names)
        hold.release()
    else:
        for name in (f"{work}/file", f"{work}/a/"):
            with pytest.raises(HostError, match="modes") as error:
                placeholders.hold((name,))
            assert "another file system" in error.value.hint
    assert list(work.iterdir()) == []


def test_a_killed_daemon_leaves_nothing_to_the_next(work: Path, tmp_path: Path) -> None:
    paths = (f"{work}/a/", f"{work}/a/b/", f"{work}/file", f"{work}/used/")
    journal = str(tmp_path / "journal")
    subprocess.run([sys.executable, "-c", _DIES, journal, *paths], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert len(list(work.rglob("*"))) == 4
    (work / "used" / "data").write_text("data")
    with open(journal, "ab") as file:
        file.write(b"/a/line/without/its/end")
    next_daemon = Placeholders(journal, linger=0)
    assert set(next_daemon.recover()) == set(paths[:3])
    assert [one.name for one in work.rglob("*")] == ["used", "data"]
    assert not Path(journal).exists()


def test_recovery_touches_only_placeholders(work: Path, tmp_path: Path) -> None:
    (work / "own").mkdir()
    (work / "file").write_text("")
    journal = tmp_path / "journal"
    journal.write_bytes(f"{work}/own/\0{work}/file\0{work}/gone/\0".encode())
    assert Placeholders(str(journal)).recover() == ()
    assert sorted(one.name for one in work.iterdir()) == ["file", "own"]


def test_a_damaged_journal_keeps_no_daemon_from_starting(work: Path, tmp_path: Path) -> None:
    """Whatever stands there, and whatever lies under such a name: the rest is recovered all the same."""
    journal = str(tmp_path / "journal")
    subprocess.run([sys.executable, "-c", _DIES, journal, f"{work}/a/"], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    (left,) = tmp_path.glob("journal-*")
    shared = work / "shared"  # as /tmp is for root: sticky, and in use
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "data").touch()
    rubbish = [b"x" * 5000, b"/" + b"y" * 5000, b"relative/", b"\xff\xfe\n", b"/", b"/proc/self/fd/0"]
    with left.open("ab") as file:
        file.write(b"\0".join([*rubbish, os.fsencode(shared), b"\0\0\0/cut"]))
    os.mkfifo(f"{journal}-fifo")
    Path(f"{journal}-directory").mkdir()
    Path(f"{journal}-loop").symlink_to(f"{journal}-loop")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    Path(f"{journal}-link").symlink_to(elsewhere)
    assert Placeholders(journal, linger=0).recover() == (f"{work}/a/",)
    assert elsewhere.read_text() == "mine" and not left.exists()
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_another_pid_namespaces_commands_keep_their_entries(work: Path, tmp_path: Path) -> None:
    """A container that shares the directories: from here it is unknown whether a command still needs it."""
    journal = str(tmp_path / "journal")
    dies = _DIES.replace(
        "Placeholders(sys", "placeholder_journal._pid_namespace = lambda: '1'\nPlaceholders(sys"
    ).replace("import Placeholders", "import Placeholders\nfrom sandboxd.host.placeholders import placeholder_journal")
    subprocess.run([sys.executable, "-c", dies, journal, f"{work}/a/"], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert Placeholders(journal, linger=0).recover() == () and (work / "a").is_dir()
    (left,) = tmp_path.glob("journal-1-*")
    os.utime(left, (1, 1))  # the machine has been started since: nothing of it can run
    assert Placeholders(journal, linger=0).recover() == (f"{work}/a/",)
    assert not left.exists()


def test_nothing_is_made_that_could_not_be_written_down(work: Path, tmp_path: Path) -> None:
    """The disk of the journal fills in the middle of a line; the limit of the kernel on a file's size does the same."""
    placeholders = Placeholders(str(tmp_path / "journal"), linger=0)
    placeholders.hold((f"{work}/a/",))
    (journal,) = tmp_path.glob("journal-*")
    before = journal.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, old[1]))
    try:
        with pytest.raises(HostError) as caught:
            placeholders.hold((f"{work}/b/",))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert (caught.value.slug, journal.read_bytes()) == ("placeholder_failed", before)
    assert [one.name for one in work.iterdir()] == ["a"]
    placeholders.hold((f"{work}/b/",))
    assert journal.read_bytes() == before + f"{work}/b/\0".encode()
    placeholders.close()


def test_watched_names_are_moved_aside_when_all_are_there(work: Path, placeholders: Placeholders) -> None:
    together = tuple(f"{work}/{name}" for name in ("HEAD", "refs"))
    hold = placeholders.hold((), (together,))
    (work / "HEAD").write_text("x")
    assert hold.release() == Neutralised()
    hold = placeholders.hold((), (together,))
    (work / "refs").mkdir()
    assert hold.release() == Neutralised((f"{work}/HEAD",))
    (moved,) = work.glob("HEAD.refused-*")
    assert moved.read_text() == "x"


def test_a_link_in_the_way_is_not_followed(work: Path, tmp_path: Path) -> None:
    """A running sandbox swaps a directory for a link: nothing may be made where that leads."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (work / "link").symlink_to(outside)
    placeholders = Placeholders(str(tmp_path / "journal"), linger=0)
    for path in (f"{work}/link/.vscode/", f"{work}/link/.gitconfig"):
        with pytest.raises(HostError, match="cannot keep"):
            placeholders.hold((path,))
    assert list(outside.iterdir()) == []


def test_a_short_lived_daemon_leaves_the_journals_of_others(work: Path, tmp_path: Path) -> None:
    """A locked journal belongs to a living daemon."""
    journal = str(tmp_path / "journal")
    path = f"{work}/.vscode/"
    subprocess.run([sys.executable, "-c", _WITH_ANOTHER, journal, path], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert Path(path).is_dir()
    assert Placeholders(journal, linger=0).recover() == (path,)
    assert list(tmp_path.glob("journal*")) == []


_WITH_ANOTHER = """
import os, sys
from sandboxd.host.placeholders.placeholder_set import Placeholders
from sandboxd.plan.host_facts import Neutralised
mine = Placeholders(sys.argv[1], linger=0)
mine.hold((sys.argv[2],))
other = Placeholders(sys.argv[1], linger=0)
other.recover()
other.close()
os._exit(1)
"""


def test_recovery_goes_on_after_a_kill(work: Path, tmp_path: Path) -> None:
    journal, paths = str(tmp_path / "journal"), (f"{work}/a/", f"{work}/b/")
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", _DIES, journal, *paths], env=environment)
    killed = subprocess.run([sys.executable, "-c", _DIES_RECOVERING, journal], env=environment)
    assert killed.returncode == -9 and [one.name for one in work.iterdir()] == ["a"]
    assert Placeholders(journal, linger=0).recover() == (paths[0],)
    assert list(work.iterdir()) == [] and list(tmp_path.glob("journal*")) == []


_DIES_RECOVERING = """
import os, sys
from sandboxd.host.placeholders import placeholder_set as placeholders
from sandboxd.host.placeholders import placeholder
remove = placeholder.remove
def once(found):
    remove(found)
    os.kill(os.getpid(), 9)
placeholder.remove = once
placeholders.Placeholders(sys.argv[1], linger=0).recover()
"""


def test_what_is_moved_aside_or_removed_is_not_behind_a_link(
    work: Path, placeholders: Placeholders, tmp_path: Path
) -> None:
    """A command that still runs beside puts a link where the directory was."""
    (work / "d").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "commondir").write_text("theirs")
    (outside / "file").touch()
    (outside / "file").chmod(0o1644)
    hold = placeholders.hold((f"{work}/d/file",), ((f"{work}/d/commondir",),))
    (work / "d").rename(work / "e")
    (work / "d").symlink_to(outside)
    assert hold.release() == Neutralised()
    assert sorted(one.name for one in outside.iterdir()) == ["commondir", "file"]


async def test_the_first_ones_at_once(tmp_path: Path) -> None:
    """Each of the threads that write the journal found it missing, opened it, and waited for the lock of the other."""
    for number in range(20):
        placeholders = Placeholders(str(tmp_path / f"journal-{number}"))
        async with asyncio.timeout(30):
            await asyncio.gather(*(placeholders.prepare((f"{tmp_path}/{one}/",)) for one in range(6)))
        placeholders.close()


def test_one_that_a_program_keeps_locked_is_not_waited_for(work: Path, placeholders: Placeholders) -> None:
    """A command in a directory above can open it and never let go: the event loop would stand still."""
    placeholders.hold((f"{work}/a/",)).release()
    (work / "a").mkdir(mode=0o700)
    (work / "a").chmod(0o1755)
    locked = os.open(work / "a", os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(placeholders.hold, (f"{work}/a/",))
        try:
            error = waiting.exception(30)
        finally:
            os.close(locked)
    assert isinstance(error, HostError) and error.slug == "placeholder_failed", error
    assert f"{work}/a" in error.message and "locked" in error.message
    placeholders.hold((f"{work}/a/",)).release()
    assert not (work / "a").exists()


async def test_leftovers_of_another_daemon_are_removed_meanwhile(work: Path, tmp_path: Path) -> None:
    """No daemon may start for days. The placeholders of this one stay."""
    journal = str(tmp_path / "journal")
    mine = Placeholders(journal, linger=0)
    mine.recover()
    mine.follow()
    hold = mine.hold((f"{work}/both/",))
    paths = (f"{work}/both/", f"{work}/theirs/", f"{work}/theirs/inner/")
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DIES, journal, *paths, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert await dying.wait() == -9
    await wait_until_async(lambda: not (work / "theirs").exists(), "what it has left is removed")
    await wait_until_async(lambda: len(list(tmp_path.glob("journal*"))) == 1, "so is its journal")
    assert (work / "both").is_dir()
    hold.release()
    assert list(work.iterdir()) == []
    mine.close()
    assert list(tmp_path.glob("journal*")) == []
