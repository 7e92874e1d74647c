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
from dataclasses import dataclass
from enum import IntFlag

_TICK = 100_000_000
"""Nanoseconds, several times what a kernel takes for one step of the clock that change times are taken from."""
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_BETWEEN_CLOCKS = 4096
"""Entries of one directory between two looks at the clock."""


class Holds(IntFlag):
    """Names in a directory that make git take it for a repository (gitrepository-layout(5))."""

    NOTHING = 0
    HEAD = 1
    OBJECTS = 2
    REFS = 4
    COMMONDIR = 8
    DOT_GIT = 16


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


@dataclass(slots=True)
class Budget:
    """What one look may take: a monotonic time and a number of directories. `open_up` lets a closed directory be
    listed, and returns whether it did."""

    until: float
    directories: int
    open_up: Callable[[str], bool]


class DirectoryIndex:
    """The directories below `root`, a canonical path. One look at a time."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.number = 0
        self.unseen = ""
        """Why the last look is not complete; empty when it is."""
        self._records: dict[str, Directory] = {}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, path: str) -> Directory | None:
        """A directory as the current look, or the last one, has seen it."""
        return self._records.get(path)

    def look(self, apart: frozenset[str], budget: Budget) -> Iterator[tuple[str, Directory]]:
        """Each directory, shallow ones first. `apart` are not entered. Ends early when the budget is used up."""
        before, self._records = self._records, {}
        self.number += 1
        self.unseen = ""
        todo = deque([self.root])
        while todo:
            if len(self._records) >= budget.directories:
                self.unseen = f"{self.root} has more than {budget.directories:,} directories"
                break
            if time.monotonic() > budget.until:
                self.unseen = f"the look at {self.root} took too long, after {len(self._records):,} directories"
                break
            path = todo.popleft()
            try:
                record = self._read(path, before.get(path), budget)
            except TimeoutError:
                self.unseen = f"the look at {self.root} took too long, at {path}"
                break
            except OSError as error:
                if error.errno not in _GONE:
                    self.unseen = f"{path} cannot be listed: {error.strerror}"
                continue
            if record is None:
                continue
            self._records[path] = record
            yield path, record
            todo.extend(below for name in record.below if (below := _join(path, name)) not in apart)

    def _read(self, path: str, before: Directory | None, budget: Budget) -> Directory | None:
        """None when it is not there, or closed to everybody who acts for this user."""
        state = _state(path, budget)
        if not stat.S_ISDIR(state.st_mode):
            return None
        first = self.number
        if before is not None and (before.device, before.inode) == (state.st_dev, state.st_ino):
            if before.changed == state.st_ctime_ns and before.listed - before.changed > _TICK:
                return before
            first = before.first
        record = Directory(state.st_dev, state.st_ino, state.st_ctime_ns, time.time_ns(), first)
        if not os.access(path, os.R_OK | os.X_OK) and not budget.open_up(path):
            if state.st_uid != os.geteuid() and not os.access(path, os.W_OK | os.X_OK):
                return None
            if state.st_uid == os.geteuid():
                return record  # closed since before, or none of the command's places
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
            if number % _BETWEEN_CLOCKS == _BETWEEN_CLOCKS - 1 and time.monotonic() > budget.until:
                raise TimeoutError
            name = entry.name
            if len(name) <= 9 and (mark := _NAMES.get(name.lower())) is not None:
                record.holds |= mark
            if entry.is_dir(follow_symlinks=False):
                below.append(name)
    below.sort()
    record.below = tuple(below)


def _join(directory: str, name: str) -> str:
    return directory + name if directory == "/" else f"{directory}/{name}"
