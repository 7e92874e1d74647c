"""Noticing changes: each one, once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandboxd.settings.files.locations import find_locations
from sandboxd.settings.files.watched_paths import Watch, watched_paths
from sandboxd.settings.files.watching import SettingsWatcher, WatchfilesFeed
from support.waiting import wait_until_async


class Watched:
    """A watcher over the settings of a home and a project, with a count of its reports."""

    def __init__(self, base: Path, watcher: SettingsWatcher) -> None:
        self.home = base / "home"
        self.project = base / "project"
        self.config = self.home / ".claude"
        self.file = self.config / "settings.json"
        self.managed = base / "managed/etc/sandboxd"
        self.watcher = watcher
        self.reports = 0

    async def count(self) -> None:
        async for _ in self.watcher.changes():
            self.reports += 1

    async def notices(self, *acts: Callable[[], object]) -> None:
        """These acts, in one go, lead to exactly one report."""
        before = self.reports
        for act in acts:
            act()
        await wait_until_async(lambda: self.reports > before, "a report")
        await self.settle()
        assert self.reports == before + 1

    async def ignores(self, *acts: Callable[[], object]) -> None:
        """These acts lead to none. A change that is reported marks the end, so that nothing has to be waited out."""
        before = self.reports
        for act in acts:
            act()
        marker = self.project / ".claude"
        marker.mkdir()
        await wait_until_async(lambda: self.reports > before, "the marker's report")
        await self.settle()
        assert self.reports == before + 1
        await self.notices(marker.rmdir)

    async def settle(self) -> None:
        """Until the feed has nothing left to say: events that are queued have been read."""
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    base = Path(os.path.realpath(tmp_path))
    for name in ("home", "project"):
        (base / name).mkdir()
    locations = find_locations({}, str(base / "home"), str(base / "project"), managed_root=str(base / "managed"))
    async with SettingsWatcher(locations.files, shortest=0.02, longest=0.2) as watcher:
        watched = Watched(base, watcher)
        task = asyncio.create_task(watched.count())
        yield watched
        task.cancel()


def write(path: Path, text: str = "{}") -> Callable[[], object]:
    return lambda: path.write_text(text)


def replace(path: Path, text: str = "{}") -> Callable[[], object]:
    def act() -> None:
        path.with_name("new.tmp").write_text(text)
        path.with_name("new.tmp").rename(path)

    return act


async def test_the_life_of_a_file(watched: Watched) -> None:
    await watched.notices(watched.config.mkdir)  # nothing existed when the watch began
    await watched.notices(write(watched.file))
    await watched.notices(write(watched.file, "{ }"))
    await watched.notices(replace(watched.file))
    await watched.notices(replace(watched.file))
    await watched.notices(lambda: watched.file.chmod(0))
    await watched.notices(watched.file.unlink)
    await watched.notices(write(watched.file))
    await watched.notices(lambda: watched.file.rename(watched.config / "settings.json~"))
    await watched.notices(write(watched.file))
    await watched.notices(lambda: os.truncate(watched.file, 1))


async def test_ten_writes_are_one_report(watched: Watched) -> None:
    await watched.notices(watched.config.mkdir)
    await watched.notices(*[write(watched.file, "{" + " " * n + "}") for n in range(10)])
    await watched.notices(*[replace(watched.file, "{" + " " * n + "}") for n in range(10)])


async def test_other_files_are_no_news(watched: Watched) -> None:
    await watched.notices(watched.config.mkdir, write(watched.file))
    await watched.ignores(
        write(watched.config / "history.jsonl"),
        write(watched.config / ".settings.json.swp"),
        write(watched.config / "settings.json~"),
        write(watched.home / "x"),
        (watched.project / "src").mkdir,
        lambda: watched.file.read_text(),
        lambda: os.listdir(watched.config),
    )


async def test_directories_come_and_go(watched: Watched) -> None:
    old = watched.home / "old"
    await watched.notices(watched.config.mkdir, write(watched.file))
    await watched.notices(lambda: watched.config.rename(old))
    await watched.ignores(write(old / "settings.json"))
    await watched.notices(watched.config.mkdir, write(watched.file))
    await watched.notices(lambda: watched.config.rename(watched.home / "older"), lambda: old.rename(watched.config))
    await watched.notices(write(watched.file))
    await watched.notices(lambda: shutil.rmtree(watched.config))
    await watched.notices(write(watched.config, "a file"))
    await watched.notices(watched.config.unlink, watched.config.mkdir)
    await watched.notices(write(watched.file))
    await watched.notices(lambda: watched.home.rename(watched.home.with_name("gone")))
    await watched.notices(lambda: watched.home.with_name("gone").rename(watched.home))
    await watched.notices(write(watched.file))


async def test_links_are_followed_and_watched_themselves(watched: Watched) -> None:
    real = watched.home / "dotfiles" / "settings.json"
    real.parent.mkdir()
    real.write_text("{}")
    await watched.notices(watched.config.mkdir, lambda: watched.file.symlink_to("../dotfiles/settings.json"))
    await watched.notices(write(real))
    await watched.notices(replace(real))
    await watched.notices(write(real))

    def repoint() -> None:
        (watched.config / "link").symlink_to(watched.home / "later.json")
        (watched.config / "link").rename(watched.file)

    await watched.notices(repoint)
    await watched.ignores(write(real))
    await watched.notices(write(watched.home / "later.json"))
    await watched.notices(watched.file.unlink, lambda: watched.file.symlink_to(watched.file.name))
    await watched.notices(watched.file.unlink, write(watched.file))


async def test_a_linked_directory(watched: Watched) -> None:
    for name in ("one", "two"):
        (watched.home / name).mkdir()
        (watched.home / name / "settings.json").write_text("{}")
    await watched.notices(lambda: watched.config.symlink_to("one"))
    await watched.notices(write(watched.home / "one/settings.json"))
    await watched.notices(watched.config.unlink, lambda: watched.config.symlink_to("two"))
    await watched.ignores(write(watched.home / "one/settings.json"))
    await watched.notices(write(watched.home / "two/settings.json"))


async def test_drop_ins(watched: Watched) -> None:
    directory = watched.managed / "managed-settings.d"
    await watched.notices(lambda: directory.mkdir(parents=True))
    await watched.notices(write(directory / "a.json"))
    await watched.notices(write(directory / "a.json"))
    await watched.notices(replace(directory / "a.json"))
    await watched.notices(lambda: (directory / "a.json").rename(directory / "b.json"))
    await watched.notices((directory / "b.json").unlink)
    await watched.ignores(write(directory / "README"), write(directory / ".a.json.swp"))


async def test_projects_can_be_exchanged(watched: Watched, tmp_path: Path) -> None:
    other = Path(os.path.realpath(tmp_path)) / "other"
    (other / ".claude").mkdir(parents=True)
    locations = find_locations({}, str(watched.home), str(other), managed_root=str(tmp_path / "managed"))
    watched.watcher.set_locations(locations.files)
    await watched.notices(write(other / ".claude/settings.json"))
    third = other.with_name("third")
    third.mkdir()
    files = find_locations({}, str(watched.home), str(third), managed_root=str(tmp_path / "managed")).files
    watched.watcher.include(files)
    assert len(watched.watcher) == len({*locations.files, *files})
    await watched.notices((third / ".claude").mkdir, write(third / ".claude/settings.json"))
    await watched.notices(write(other / ".claude/settings.json"))  # as before
    watched.watcher.set_locations(locations.files)
    await watched.notices(write(other / ".claude/settings.json"))
    assert len(watched.watcher) == len(locations.files)


async def wake_ups(within_s: float) -> int:
    """How often this whole process has woken up."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    quiet = asyncio.Event()
    asyncio.get_running_loop().call_later(within_s, quiet.set)
    await quiet.wait()
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before.ru_nvcsw


async def test_it_idles_without_waking_up(watched: Watched) -> None:
    """The worker of a test run has threads of its own, which are spoken to now and then, but not all the time."""
    await watched.notices(watched.config.mkdir, write(watched.file))
    for _ in range(100):
        if await wake_ups(0.3) <= 3:
            return
    raise AssertionError("it does not sleep")


async def test_a_watch_leaves_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    async with SettingsWatcher(find_locations({}, str(tmp_path)).files):
        assert len(os.listdir("/proc/self/fd")) > len(before)
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_the_portable_feed_notices_as_well(tmp_path: Path) -> None:
    config = tmp_path / ".claude"
    config.mkdir()
    locations = find_locations({}, str(tmp_path), managed_root=str(tmp_path))
    async with SettingsWatcher(locations.files, feed=WatchfilesFeed()) as watcher:
        changes = watcher.changes()
        waiting = asyncio.ensure_future(anext(changes))
        path = config / "settings.json"
        while not waiting.done():  # watchfiles starts in a thread and says nothing when it is ready
            path.write_text("{}")
            await asyncio.wait([waiting], timeout=0.2)
        waiting.result()
        await changes.aclose()  # type: ignore[attr-defined]


def test_an_existing_file_is_watched_not_its_directory(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_text("{}")
    found = watched_paths(find_locations({}, str(tmp_path), managed_root=str(tmp_path)).files)
    kinds = {(path.path.removeprefix(str(tmp_path)), path.watch): path.names for path in found}
    assert kinds["/.claude/settings.json", Watch.CONTENT] == frozenset()
    assert kinds["/.claude", Watch.PLACE] == frozenset()
    assert kinds["", Watch.NAMES] == {"etc"}
