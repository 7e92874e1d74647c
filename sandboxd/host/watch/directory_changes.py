"""Changes: reports of changed names in registered directories.

A scan registers each directory *before* it lists it, with a test for the names that matter there. `poll` then costs one
read of an empty queue when nothing happened. Where inotify cannot be trusted (network and FUSE file systems), has no
room left or would exceed the daemon's part (`WatchBudget`), the times of the directory are compared instead, and of the
files in it whose contents matter. Such registrations are *slow*: a server may not answer, so `compare` is for a thread.
Times that were just set reveal no change within the same tick of the clock, so they count as changed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable

from sandboxd.errors import HostError
from sandboxd.host.watch.file_systems import remote_devices
from sandboxd.settings.files import inotify
from sandboxd_client.records import dataclass

Matters = Callable[[str, bool], bool]
"""Returns whether a name matters; the second argument is true for a directory."""
OnChange = Callable[[str], None]
"""Receives the directory in which something that matters has changed."""

_TICK = 100_000_000
"""Nanoseconds, several times a tick of the kernel."""
_UNMEASURED = 512
"""Watches without a count of the user's others, up to an eighth of the limit."""
_MEASURED_FOR_S = 30.0
"""Seconds until a full budget is measured again."""
_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED


@dataclass(slots=True, eq=False)
class Interest:
    """One registration; end it with `Changes.cancel`."""

    directory: str
    matters: Matters
    on_change: OnChange
    watch: int | None = None
    times: tuple[int, ...] = ()
    attributes: bool = False
    slow: bool = False
    fresh: bool = False
    """Set when `times` were just set at the registration."""
    files: dict[str, tuple[int, ...]] | None = None
    """Without a watch: the times of files in it whose contents matter."""
    cancelled: bool = False
    gone: bool = False
    """Set when no more is reported; all knowledge of what is below is void."""

    def note(self, name: str) -> None:
        """Register the contents of a file before it is read, where there is no watch."""
        if self.watch is not None:
            return
        path = os.path.join(self.directory, name)
        self.files = self.files or {}
        self.files[path] = times = _times_now(path)
        self.fresh = self.fresh or _is_fresh(times)


class WatchBudget:
    """The limit on watches: a quarter of what the user has left, measured anew."""

    def __init__(self, limit: Callable[[], int], in_use: Callable[[], int]) -> None:
        self._limit, self._in_use = limit, in_use
        self._most = self._next = min(_UNMEASURED, limit() // 8)
        self._measured = -_MEASURED_FOR_S

    @property
    def most(self) -> int:
        return self._most

    def look(self, taken: int) -> None:
        """Measure what is left, if it is time to. Takes milliseconds."""
        now = time.monotonic()
        if taken < self._next or (taken >= self._most and now < self._measured + _MEASURED_FOR_S):
            return
        self._measured = now
        self._most = max(self._limit() - self._in_use() + taken, 0) // 4
        self._next = min(max(2 * taken, 1), self._most)


class Changes:
    """The registrations; scans add some from threads while the event loop polls."""

    def __init__(self, budget: WatchBudget | None = None) -> None:
        self._lock = threading.Lock()
        self._budget = budget or WatchBudget(inotify.watch_limit, inotify.watches_in_use)
        self.registered = 0
        """Number of registrations that were not cancelled."""
        self._inotify: inotify.Inotify | None = None
        self._compared: set[Interest] = set()
        if inotify.leaves_room():
            with contextlib.suppress(HostError):
                self._inotify = inotify.Inotify()
        self._by_watch: dict[int, list[Interest]] = {}
        self._by_times: dict[Interest, None] = {}
        self._mounts = -1
        self._mounts_poll = select.poll()
        self._remote: frozenset[int] = frozenset()
        if sys.platform != "darwin":  # macOS has neither inotify nor /proc: compare times only
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._mounts_poll.register(self._mounts, select.POLLPRI | select.POLLERR)
            self._remote = remote_devices(self._mounts)

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        if self._mounts >= 0:
            os.close(self._mounts)

    @property
    def compared(self) -> str:
        """Return the inotify limit that keeps directories unwatched, else empty."""
        if not self._compared or sys.platform == "darwin":
            return ""
        return "instances" if self._inotify is None else "watches"

    @property
    def crowded(self) -> bool:
        """Return whether so many watches exist that new ones may soon fail."""
        return len(self._by_watch) * 4 > self._budget.most * 3

    def register(
        self,
        directory: str,
        matters: Matters,
        on_change: OnChange,
        *,
        contents: bool = False,
        attributes: bool = False,
    ) -> Interest:
        """Report names that come, go, are replaced or change their mode to `on_change`.

        With `contents` also written files, with `attributes` changes of the directory's own mode, owner or access list.
        Raises the OSError of an unreadable directory."""
        interest = Interest(directory, matters, on_change, attributes=attributes)
        more = inotify.CLOSE_WRITE if contents else 0
        state = os.stat(directory)  # outside the lock: a server may not answer
        self._budget.look(len(self._by_watch))
        with self._lock:
            self.registered += 1
            self._watch(interest, state, inotify.NAMES_CHANGE | inotify.ATTRIB | more)
        return interest

    def _watch(self, interest: Interest, state: os.stat_result, mask: int) -> None:
        remote = state.st_dev in self._remote
        interest.slow = self._inotify is None or remote or len(self._by_watch) >= self._budget.most
        if self._inotify is not None and not interest.slow:
            try:
                interest.watch = self._inotify.add(interest.directory, mask | inotify.DIRECTORY)
            except OSError as error:
                interest.slow = error.errno == errno.ENOSPC  # the limit is reached
        if interest.watch is not None:
            self._by_watch.setdefault(interest.watch, []).append(interest)
        else:
            if interest.slow and not remote:
                self._compared.add(interest)
            interest.times = _times(state)
            interest.fresh = _is_fresh(interest.times)
            self._by_times[interest] = None

    def cancel(self, interest: Interest) -> None:
        """End a registration; harmless when it is gone already."""
        interest.gone = True
        with self._lock:
            self.registered -= not interest.cancelled
            interest.cancelled = True
            self._by_times.pop(interest, None)
            self._compared.discard(interest)
            others = self._by_watch.get(interest.watch) if interest.watch is not None else None
            if others is None or interest not in others:
                return
            others.remove(interest)
            if not others and interest.watch is not None:
                del self._by_watch[interest.watch]
                if self._inotify is not None:
                    self._inotify.remove(interest.watch)

    def poll(self) -> None:
        """Report the changes since the last call, but for slow registrations."""
        changed: list[Interest] = []
        with self._lock:
            if self._inotify is not None:
                for event in self._inotify.read():
                    changed += self._concerned(event)
            changed += [interest for interest in self._by_times if not interest.slow and _differs(interest)]
            if self._mounts_poll.poll(0):
                self._remote = remote_devices(self._mounts)
                changed += self._everyone()
        for interest in changed:
            interest.on_change(interest.directory)

    def compare(self, interests: Iterable[Interest]) -> None:
        """Report the changes of these slow registrations, in a thread."""
        for interest in list(interests):
            if not interest.gone and _differs(interest):
                interest.on_change(interest.directory)

    def _concerned(self, event: inotify.Event) -> list[Interest]:
        if event.mask & inotify.OVERFLOW:
            return self._everyone()
        interests = self._by_watch.get(event.watch, [])
        if event.mask & _GONE:
            self._by_watch.pop(event.watch, None)
            for interest in interests:
                interest.gone = True
            if event.mask & inotify.MOVE_SELF and interests and self._inotify is not None:
                self._inotify.remove(event.watch)
            return interests
        if event.mask & inotify.ATTRIB:
            if not event.name:
                return [interest for interest in interests if interest.attributes]
            # a placeholder loses its mark when a program uses it; other directories matter by name
            return [interest for interest in interests if interest.matters(event.name, False)]
        is_directory = bool(event.mask & inotify.ISDIR)
        return [interest for interest in interests if interest.matters(event.name, is_directory)]

    def _everyone(self) -> list[Interest]:
        return [*self._by_times, *(one for many in self._by_watch.values() for one in many)]


def _differs(interest: Interest) -> bool:
    if not interest.fresh and _times_now(interest.directory) == interest.times:
        files = interest.files
        if not files or all(_times_now(path) == times for path, times in list(files.items())):
            return False
    interest.gone = True
    return True


def _is_fresh(times: tuple[int, ...]) -> bool:
    return bool(times) and times[3] > time.time_ns() - _TICK


def _times(state: os.stat_result) -> tuple[int, ...]:
    return (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns)


def _times_now(directory: str) -> tuple[int, ...]:
    try:
        return _times(os.stat(directory))
    except OSError:
        return ()
