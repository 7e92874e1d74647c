"""An index of the directories below one place, kept between scans.

A directory without a change since it was listed has the same inode change time, which no program can set. A scan
compares that time for each directory, shallow ones first, and lists those where it differs. Symlinks are never
followed."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import IntFlag

from sandboxd.host.watch.file_systems import is_in_memory, is_remote
from sandboxd_client.records import dataclass

_TICK = 100_000_000
"""Nanoseconds, several times a step of the kernel's clock of change times."""
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_SHOWN = 300
"""Characters of a path in a message."""
LONGEST_LISTING = 5.0
"""Seconds that one directory may take, where there is time."""
_BETWEEN_CLOCKS = 4096
"""Entries of one directory between two checks of the clock."""


class Holds(IntFlag):
    """Names that make a repository (gitrepository-layout(5)), and any symlink."""

    NOTHING = 0
    HEAD = 1
    OBJECTS = 2
    REFS = 4
    COMMONDIR = 8
    DOT_GIT = 16
    LINK = 32


_NAMES = {
    "head": Holds.HEAD,
    "objects": Holds.OBJECTS,
    "refs": Holds.REFS,
    "commondir": Holds.COMMONDIR,
    ".git": Holds.DOT_GIT,
}
"""In lower case: some file systems ignore case."""


@dataclass(slots=True)
class Directory:
    """A directory in the index.

    `changed` is its inode change time, `listed` the time when it was read (ns of the wall clock). `first` is the number
    of the scan that first saw it at its path."""

    device: int
    inode: int
    changed: int
    listed: int
    first: int
    below: tuple[str, ...] = ()
    holds: Holds = Holds.NOTHING


SLOWEST = 3.0
"""Factor by which a scan may exceed its processor time on a busy machine."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a thread's work, by `time.thread_time` and `time.monotonic`."""

    work: float
    clock: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline in so many seconds of processor time."""
        return cls(time.thread_time() + seconds, time.monotonic() + SLOWEST * seconds)

    def is_over(self) -> bool:
        return time.thread_time() > self.work or time.monotonic() > self.clock

    def share(self, parts: int, least: float) -> Deadline:
        """Return the end of the first of equal parts, with at least `least` seconds."""
        work, clock = time.thread_time(), time.monotonic()
        return Deadline(work + max(least, (self.work - work) / parts), clock + max(least, (self.clock - clock) / parts))


@dataclass(slots=True)
class Budget:
    """The limits of one scan; `open_up` reopens a directory and returns its success."""

    until: Deadline
    directories: int
    open_up: Callable[[str], bool]


Rest = deque[tuple[str, Iterator[str]]]
"""The unfinished part of a scan: directories, with `/`, and their entries."""


class DirectoryIndex:
    """The directories below `root`, a canonical path; one scan at a time."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.number = 0
        self.unseen = ""
        """The reason why the last scan was incomplete, else empty."""
        self.failed: OSError | None = None
        """The error at an unreadable directory; a command may have caused it."""
        self._records: dict[str, Directory] = {}
        self._not_reached: dict[str, Directory] = {}
        """Records of earlier scans that the last one did not reach."""
        self.rest: Rest = deque()
        """The unfinished part of the last scan, for `go_on`."""
        self._excluded: frozenset[str] = frozenset()
        self._device = -1
        self._in_memory = False

    def __len__(self) -> int:
        return len(self._records) + len(self._not_reached)

    def get(self, path: str) -> Directory | None:
        """Return a directory as the current or last scan has seen it."""
        return self._records.get(path)

    @property
    def keeps_times(self) -> bool:
        """Return whether this machine's clock sets change times here at every change."""
        return self._device >= 0 and not self._in_memory

    def is_on_device(self, path: str) -> bool:
        """Return whether a directory is on the root's file system."""
        try:
            return os.lstat(path).st_dev == self._device
        except OSError:
            return False

    def look(self, excluded: frozenset[str], budget: Budget, *, again: bool = False) -> Iterator[tuple[str, Directory]]:
        """Yield each directory, shallow ones first, without entering those in `excluded`.

        Ends early when the budget is used up. The same scan can then be made `again`, and the next one continues it."""
        before, records = {**self._not_reached, **self._records}, dict[str, Directory]()
        self._records, self._not_reached = records, {}
        if not again:
            self.number += 1
        self.unseen, self.failed = "", None
        self._place()
        self._excluded = excluded = frozenset(path for path in excluded if path.startswith(self.root))
        self.rest = todo = deque([("", iter((self.root,)))])
        while todo:
            above, names = todo[0]
            name = next(names, None)
            if name is None:
                todo.popleft()
                continue
            path = above + name
            if above and path in excluded:
                continue
            if len(records) >= budget.directories:
                self.unseen = f"{self.root} has more than {budget.directories:,} directories"
            elif budget.until.is_over():
                self.unseen = f"the search of {self.root} took too long, after {len(records):,} directories"
            try:
                record = None if self.unseen else self._seen(path, before.get(path), budget)
            except TimeoutError:
                self.unseen = f"the search of {self.root} took too long, at {path}"
            if self.unseen:
                todo.appendleft((above, iter((name,))))
                break
            if record is not None:
                records[path] = record
                yield path, record
                if record.below:
                    todo.append((path if path == "/" else f"{path}/", iter(record.below)))

        if self.unseen:
            self._not_reached = {path: record for path, record in before.items() if path not in records}

    def is_unchanged(
        self, excluded: frozenset[str], most: int, is_settled: Callable[[str, Directory], bool]
    ) -> bool:
        """Return whether another scan would find the same, and all of it settled; False for more than a few."""
        if self.unseen or self.failed or self._not_reached or not 0 < len(self._records) <= most or self._device < 0:
            return False
        if frozenset(path for path in excluded if path.startswith(self.root)) != self._excluded:
            return False
        try:
            return all(
                record.device == self._device
                and is_settled(path, record)
                and (state := os.lstat(path)).st_ctime_ns == record.changed
                and self._still_holds(record, state)
                for path, record in self._records.items()
            )
        except OSError:
            return False

    def go_on(self, rest: Rest, excluded: frozenset[str], budget: Budget) -> Iterator[tuple[str, Directory]]:
        """Continue an earlier scan from `rest` within the budget, deep directories first."""
        self.unseen, self.failed = "", None
        self._place()
        while rest and not budget.until.is_over():
            above, names = rest[-1]
            name = next(names, None)
            if name is None:
                rest.pop()
                continue
            path = above + name
            if path in excluded:
                continue
            before = self._records.get(path) or self._not_reached.get(path)
            try:
                record = self._seen(path, before, replace(budget, until=Deadline.after(LONGEST_LISTING)))
            except TimeoutError:
                self.unseen = f"{path[:_SHOWN]} has too many entries"
                continue
            if record is None:
                continue
            if before is None and len(self) < budget.directories:
                self._not_reached[path] = record
            yield path, record
            if record.below:
                rest.append((path if path == "/" else f"{path}/", iter(record.below)))

    def at(self, path: str, budget: Budget) -> Directory | None:
        """Return one directory as it is now, None when it is gone or takes too long."""
        try:
            return self._seen(path, self.get(path), budget)
        except TimeoutError:
            return None

    def _seen(self, path: str, before: Directory | None, budget: Budget) -> Directory | None:
        """Return a directory as it is now, None when it is gone. Raises TimeoutError."""
        try:
            state = _state(path, budget)
            if before is not None and before.changed == state.st_ctime_ns and self._still_holds(before, state):
                return before
            return self._read(path, state, before, budget)
        except TimeoutError:
            raise
        except OSError as error:
            if error.errno not in _GONE:
                self.failed = OSError(error.errno, f"{path[:_SHOWN]} cannot be listed: {error.strerror}")
            return None

    def _place(self) -> None:
        self._device = self._device_of_root()
        self._in_memory = is_in_memory(self.root)

    def _device_of_root(self) -> int:
        """Return -1 where another machine sets change times: they prove nothing here."""
        try:
            return -1 if is_remote(self.root) else os.lstat(self.root).st_dev
        except OSError:
            return -1

    def _still_holds(self, record: Directory, state: os.stat_result) -> bool:
        return (
            record.inode == state.st_ino
            and record.device == state.st_dev == self._device
            and record.listed - record.changed > _TICK
        )

    def _read(self, path: str, state: os.stat_result, before: Directory | None, budget: Budget) -> Directory | None:
        """Read a directory; None when it is gone, or closed to this user."""
        if not stat.S_ISDIR(state.st_mode):
            return None
        same = before is not None and (before.device, before.inode) == (state.st_dev, state.st_ino)
        first = before.first if before is not None and same else self.number
        record = Directory(state.st_dev, state.st_ino, state.st_ctime_ns, time.time_ns(), first)
        if not os.access(path, os.R_OK | os.X_OK) and not budget.open_up(path):
            if state.st_uid == os.geteuid():
                return record  # closed earlier, or not in a place of the command
            if not os.access(path, os.W_OK | os.X_OK):
                return None
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        _list(record, path, budget)
        return record


def _state(path: str, budget: Budget) -> os.stat_result:
    try:
        return os.lstat(path)
    except PermissionError:
        if not budget.open_up(os.path.dirname(path)):
            raise
        return os.lstat(path)


def _list(record: Directory, path: str, budget: Budget) -> None:
    below: list[str] = []
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number % _BETWEEN_CLOCKS == _BETWEEN_CLOCKS - 1 and budget.until.is_over():
                raise TimeoutError
            name = entry.name
            if len(name) <= 9 and (mark := _NAMES.get(name.lower())) is not None:
                record.holds |= mark
            if entry.is_dir(follow_symlinks=False):
                below.append(name)
            elif entry.is_symlink():
                record.holds |= Holds.LINK
    below.sort()
    record.below = tuple(below)
