"""The directories below one place, kept between looks so that a later one reads only those that have changed.

A directory that nothing was made in, removed from or renamed in since it was listed has the inode change time that it
had then, which no program can set. A look asks for that time of each directory, shallow ones first, and lists those
where it differs. Symlinks are never followed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntFlag

from sandboxd.host.watch.directory_changes import is_in_memory, is_remote

_TICK = 100_000_000
"""Nanoseconds, several times what a kernel takes for one step of the clock that change times are taken from."""
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_SHOWN = 300
"""Characters of a path in a message."""
LONGEST_LISTING = 5.0
"""Seconds that one directory may take, where there is time."""
_BETWEEN_CLOCKS = 4096
"""Entries of one directory between two looks at the clock."""


class Holds(IntFlag):
    """Names in a directory that make git take it for a repository (gitrepository-layout(5)), and whether there is any
    symlink."""

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
"""In lower case: there are file systems where case makes no difference."""


@dataclass(slots=True)
class Directory:
    """`changed` is the inode change time, `listed` when the names were read (both ns of the wall clock). `first` is the
    number of the look that first saw this very directory at its path."""

    device: int
    inode: int
    changed: int
    listed: int
    first: int
    below: tuple[str, ...] = ()
    holds: Holds = Holds.NOTHING


SLOWEST = 3.0
"""How much longer than its processor time a look may take, on a machine that has other work."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When the work of this thread has to end: a time of `time.thread_time`, and one of `time.monotonic`."""

    work: float
    clock: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """In so many seconds of processor time."""
        return cls(time.thread_time() + seconds, time.monotonic() + SLOWEST * seconds)

    def is_over(self) -> bool:
        return time.thread_time() > self.work or time.monotonic() > self.clock

    def share(self, parts: int, least: float) -> Deadline:
        """The first of so many equal parts of what is left, with at least `least` seconds."""
        work, clock = time.thread_time(), time.monotonic()
        return Deadline(work + max(least, (self.work - work) / parts), clock + max(least, (self.clock - clock) / parts))


@dataclass(slots=True)
class Budget:
    """What one look may take: time, and a number of directories. `open_up` lets a closed directory be listed, and
    returns whether it did."""

    until: Deadline
    directories: int
    open_up: Callable[[str], bool]


Rest = deque[tuple[str, Iterator[str]]]
"""Where a look has stopped: directories with a slash at their end, and those in them that are still to be looked at."""


class DirectoryIndex:
    """The directories below `root`, a canonical path. One look at a time."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.number = 0
        self.unseen = ""
        """Why there was too much for the last look to see whole; empty when there was not."""
        self.failed: OSError | None = None
        """What the last look could not list: a command may have made it so."""
        self._records: dict[str, Directory] = {}
        self._not_reached: dict[str, Directory] = {}
        """Records of earlier looks that the last one, which ended early, did not come to."""
        self.rest: Rest = deque()
        """What the last look did not come to, for `go_on`."""
        self._device = -1
        self._in_memory = False

    def __len__(self) -> int:
        return len(self._records) + len(self._not_reached)

    def get(self, path: str) -> Directory | None:
        """A directory as the current look, or the last one, has seen it."""
        return self._records.get(path)

    @property
    def keeps_times(self) -> bool:
        """Whether change times below the root are taken from this machine's clock, and are set by every change."""
        return self._device >= 0 and not self._in_memory

    def is_on_device(self, path: str) -> bool:
        """Whether the change time of a directory is one of the root's file system."""
        try:
            return os.lstat(path).st_dev == self._device
        except OSError:
            return False

    def look(self, apart: frozenset[str], budget: Budget, *, again: bool = False) -> Iterator[tuple[str, Directory]]:
        """Each directory, shallow ones first. `apart` are not entered. Ends early when the budget is used up; the same
        look can then be made `again`, and the next one goes on from what was reached."""
        before, records = {**self._not_reached, **self._records}, dict[str, Directory]()
        self._records, self._not_reached = records, {}
        if not again:
            self.number += 1
        self.unseen, self.failed = "", None
        self._place()
        apart = frozenset(path for path in apart if path.startswith(self.root))
        self.rest = todo = deque([("", iter((self.root,)))])
        while todo:
            above, names = todo[0]
            name = next(names, None)
            if name is None:
                todo.popleft()
                continue
            path = above + name
            if above and path in apart:
                continue
            if len(records) >= budget.directories:
                self.unseen = f"{self.root} has more than {budget.directories:,} directories"
            elif budget.until.is_over():
                self.unseen = f"the look at {self.root} took too long, after {len(records):,} directories"
            try:
                record = None if self.unseen else self._seen(path, before.get(path), budget)
            except TimeoutError:
                self.unseen = f"the look at {self.root} took too long, at {path}"
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

    def go_on(self, rest: Rest, apart: frozenset[str], budget: Budget) -> Iterator[tuple[str, Directory]]:
        """What an earlier look has not come to, taken from `rest`, until the budget is used up: deep ones first, so
        that what is left to do stays small. Only as many directories are remembered as the budget has."""
        self.unseen, self.failed = "", None
        self._place()
        while rest and not budget.until.is_over():
            above, names = rest[-1]
            name = next(names, None)
            if name is None:
                rest.pop()
                continue
            path = above + name
            if path in apart:
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

    def _seen(self, path: str, before: Directory | None, budget: Budget) -> Directory | None:
        """A directory as it is now; None when there is none to be looked at. Raises TimeoutError."""
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
        self._device = self._own_device()
        self._in_memory = is_in_memory(self.root)

    def _own_device(self) -> int:
        """-1 where another machine sets the change times: they prove nothing here."""
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
        """None when it is not there, or closed to everybody who acts for this user."""
        if not stat.S_ISDIR(state.st_mode):
            return None
        same = before is not None and (before.device, before.inode) == (state.st_dev, state.st_ino)
        first = before.first if before is not None and same else self.number
        record = Directory(state.st_dev, state.st_ino, state.st_ctime_ns, time.time_ns(), first)
        if not os.access(path, os.R_OK | os.X_OK) and not budget.open_up(path):
            if state.st_uid == os.geteuid():
                return record  # closed since before, or none of the command's places
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
