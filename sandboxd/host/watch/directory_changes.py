"""Changes: whether directories that were looked at still hold the names that mattered.

A scan registers each directory *before* it lists it, with a test that says which names matter there. `poll` then costs
one read of an empty queue when nothing happened, whatever the number of directories. Where inotify cannot be trusted
(network and FUSE file systems), has no room left or would take more than the daemon's part (`WatchBudget`), the times
of the directory are compared instead, and of the files in it whose contents matter. That takes a question for each of
them, to a server that may not answer: such registrations are *slow*, and `compare` is for a thread. Times that were
just set when they were read tell of no change within the same tick of the clock, so they count as old ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandboxd.errors import HostError
from sandboxd.settings.files import inotify

Matters = Callable[[str, bool], bool]
"""Whether a name matters, given the name and whether it is a directory."""
OnChange = Callable[[str], None]
"""Told the directory in which something that matters changed."""

_TICK = 100_000_000
"""Nanoseconds, several times what a kernel takes for one."""
_UNMEASURED = 512
"""Watches that are taken without a look at what others have, if that is an eighth of the limit at most."""
_MEASURED_FOR_S = 30.0
"""Seconds until a full budget is measured again."""
_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "afs", "ceph", "lustre", "gfs2", "ocfs2", "vboxsf", "drvfs")

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@dataclass(slots=True, eq=False)
class Interest:
    """One registration. `cancel` through `Changes.cancel`."""

    directory: str
    matters: Matters
    on_change: OnChange
    watch: int | None = None
    times: tuple[int, ...] = ()
    attributes: bool = False
    slow: bool = False
    fresh: bool = False
    """`times` had just been set."""
    files: dict[str, tuple[int, ...]] | None = None
    """Without a watch: files in it whose contents matter, with their times."""
    cancelled: bool = False
    gone: bool = False
    """Nothing will be reported any more: the directory is not at its path, or its times were compared and differ. What
    is known about it and everything below it is void."""

    def note(self, name: str) -> None:
        """The contents of this file matter too. To be called before it is read; nothing to do where there is a watch,
        which tells of it."""
        if self.watch is not None:
            return
        path = os.path.join(self.directory, name)
        self.files = self.files or {}
        self.files[path] = times = _times_now(path)
        self.fresh = self.fresh or _is_fresh(times)


class WatchBudget:
    """How many watches the daemon takes: a quarter of what its user has left, found out again as their number grows."""

    def __init__(self, limit: Callable[[], int], in_use: Callable[[], int]) -> None:
        self._limit, self._in_use = limit, in_use
        self._most = self._next = min(_UNMEASURED, limit() // 8)
        self._measured = -_MEASURED_FOR_S

    @property
    def most(self) -> int:
        return self._most

    def look(self, taken: int) -> None:
        """Find out what is left, if it is time to. Takes milliseconds."""
        now = time.monotonic()
        if taken < self._next or (taken >= self._most and now < self._measured + _MEASURED_FOR_S):
            return
        self._measured = now
        self._most = max(self._limit() - self._in_use() + taken, 0) // 4
        self._next = min(max(2 * taken, 1), self._most)


class Changes:
    """Thread-safe: scans register from worker threads while the event loop polls."""

    def __init__(self, budget: WatchBudget | None = None) -> None:
        self._lock = threading.Lock()
        self._budget = budget or WatchBudget(inotify.watch_limit, inotify.watches_in_use)
        self.registered = 0
        """Registrations that have not been cancelled."""
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
        if sys.platform != "darwin":  # there is neither inotify nor /proc there: everything goes by times
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._mounts_poll.register(self._mounts, select.POLLPRI | select.POLLERR)
            self._remote = _remote_devices(self._mounts)

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        if self._mounts >= 0:
            os.close(self._mounts)

    @property
    def compared(self) -> str:
        """What keeps directories from being watched that could be, so that they are compared; empty when nothing."""
        if not self._compared or sys.platform == "darwin":
            return ""
        return "instances" if self._inotify is None else "watches"

    @property
    def crowded(self) -> bool:
        """Whether the watches are so many that new registrations may soon have none."""
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
        """From now on `on_change` hears of names that come, go, are replaced or change their mode; with `contents` also
        of files that were written, with `attributes` of a change of the directory's own mode, owner or access list.
        Raises the OSError that says why the directory cannot be looked at."""
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
                interest.slow = error.errno == errno.ENOSPC  # no room for any
        if interest.watch is not None:
            self._by_watch.setdefault(interest.watch, []).append(interest)
        else:
            if interest.slow and not remote:
                self._compared.add(interest)
            interest.times = _times(state)
            interest.fresh = _is_fresh(interest.times)
            self._by_times[interest] = None

    def cancel(self, interest: Interest) -> None:
        """No more calls for this registration. Harmless when it is gone already."""
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
        """Tell everyone what has changed since the last call, but for slow registrations."""
        told: list[Interest] = []
        with self._lock:
            if self._inotify is not None:
                for event in self._inotify.read():
                    told += self._concerned(event)
            told += [interest for interest in self._by_times if not interest.slow and _differs(interest)]
            if self._mounts_poll.poll(0):
                self._remote = _remote_devices(self._mounts)
                told += self._everyone()
        for interest in told:
            interest.on_change(interest.directory)

    def compare(self, interests: Iterable[Interest]) -> None:
        """The same for these slow registrations, in a thread."""
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
            # a placeholder that a program has put something into loses its mark; other directories matter by their name
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


def is_remote(directory: str) -> bool:
    """Whether looking at a directory may take as long as a server takes. False where it is not there."""
    if sys.platform == "darwin":
        return False
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb", buffering=0) as mounts:
        return os.stat(directory).st_dev in _remote_devices(mounts.fileno())
    return False


def is_in_memory(directory: str) -> bool:
    """Whether a file there keeps its times when it is written through a mapping (tmpfs(5))."""
    if sys.platform == "darwin":
        return False
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb", buffering=0) as mounts:
        return os.stat(directory).st_dev in _remote_devices(mounts.fileno(), _IN_MEMORY)
    return False


def _remote_devices(mountinfo: int, kinds: tuple[str, ...] = _REMOTE) -> frozenset[int]:
    """The device numbers of file systems whose changes may come from elsewhere, or that are of other `kinds`. Reading
    to the end also arms the next notification of poll(2) (proc_pid_mountinfo(5))."""
    os.lseek(mountinfo, 0, os.SEEK_SET)
    text = b""
    while part := os.read(mountinfo, 1 << 20):
        text += part
    found = set()
    for line in text.decode("utf-8", "surrogateescape").split("\n"):
        left, _, right = line.partition(" - ")
        if right.startswith(kinds):
            major, _, minor = left.split()[2].partition(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)
