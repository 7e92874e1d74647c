"""A watch of settings files: one report for each burst of changes.

    async with SettingsWatcher(locations.files) as watcher:
        async for _ in watcher.changes():
            ...read all files again...

Changes are reported after a quiet moment (`shortest`), and at the latest after `longest` while they go on. The set of
watched files is updated *before* a report, so that no change is missed between the report and the read. The reader
finds out whether anything differs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.watched_paths import Watch, WatchedPath, watched_paths

SHORTEST = 0.03
LONGEST = 0.3


class Feed(Protocol):
    """The system's source of events: sets `changed` after an event at a watched path."""

    changed: asyncio.Event

    def watch(self, paths: frozenset[WatchedPath]) -> None: ...

    def watch_also(self, paths: frozenset[WatchedPath]) -> None: ...

    def close(self) -> None: ...


class SettingsWatcher:
    """A watch of settings locations, which can be replaced; an async context manager."""

    def __init__(
        self,
        locations: Iterable[Location],
        *,
        shortest: float = SHORTEST,
        longest: float = LONGEST,
        feed: Feed | None = None,
    ) -> None:
        self._locations = dict.fromkeys(locations)
        self._shortest = shortest
        self._longest = longest
        self._feed = feed

    async def __aenter__(self) -> SettingsWatcher:
        """Start; no later change is missed. Raises `HostError` without a watch."""
        if self._feed is None:
            self._feed = _system_feed()
        self._arm()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._feed is not None:
            self._feed.close()

    def set_locations(self, locations: Iterable[Location]) -> None:
        """Watch these locations from now on. Read the files after the call."""
        self._locations = dict.fromkeys(locations)
        self._arm()

    def include(self, locations: Iterable[Location]) -> None:
        """Watch these locations in addition. Read the files after the call."""
        new = dict.fromkeys(location for location in locations if location not in self._locations)
        self._locations |= new
        assert self._feed is not None
        self._watch_all(new, self._feed.watch_also)

    def __len__(self) -> int:
        """Return the number of watched locations."""
        return len(self._locations)

    async def changes(self) -> AsyncIterator[None]:
        """Yield once for each burst of changes, for ever."""
        assert self._feed is not None, "enter the watcher first"
        loop = asyncio.get_running_loop()
        while True:
            await self._feed.changed.wait()
            deadline = loop.time() + self._longest
            while self._feed.changed.is_set():
                self._feed.changed.clear()
                pause = min(self._shortest, deadline - loop.time())
                if pause <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._feed.changed.wait()
            self._arm()
            yield

    def _arm(self) -> None:
        assert self._feed is not None
        self._watch_all(self._locations, self._feed.watch)

    @staticmethod
    def _watch_all(locations: Iterable[Location], watch: Callable[[frozenset[WatchedPath]], None]) -> None:
        """Watch until the list of paths is stable, since it may change meanwhile."""
        before: frozenset[WatchedPath] | None = None
        for _ in range(8):
            paths = watched_paths(locations)
            if paths == before:
                return
            watch(paths)
            before = paths


def _system_feed() -> Feed:
    if os.uname().sysname == "Linux":
        from sandboxd.settings.files.inotify_watcher import InotifyWatcher

        return InotifyWatcher()
    return WatchfilesFeed()


def _existing_directories(paths: Iterable[str]) -> set[str]:
    """Return these paths that are directories, and the parents of the others."""
    directories = {path if os.path.isdir(path) else os.path.dirname(path) for path in paths}
    return {directory for directory in directories if os.path.isdir(directory)}


class WatchfilesFeed:
    """The feed of other platforms, by watchfiles; it polls a few times a second."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._paths: frozenset[WatchedPath] = frozenset()

    def watch(self, paths: frozenset[WatchedPath]) -> None:
        if paths == self._paths and self._task is not None:
            return
        self._paths = paths
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._follow(paths), name="settings watcher")

    def watch_also(self, paths: frozenset[WatchedPath]) -> None:
        self.watch(self._paths | paths)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, paths: frozenset[WatchedPath]) -> None:
        from watchfiles import awatch

        concerned = {path.path for path in paths if path.watch in (Watch.CONTENT, Watch.PLACE)}
        concerned |= {os.path.join(path.path, name) for path in paths for name in path.names}
        listed = {path.path for path in paths if path.watch is Watch.NAMES and not path.names}
        directories = _existing_directories(concerned | listed)

        def matters(_: object, path: str) -> bool:
            return path in concerned or os.path.dirname(path) in listed

        async for _ in awatch(*directories, watch_filter=matters, recursive=False, step=400, debounce=400):
            self.changed.set()
