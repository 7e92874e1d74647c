"""The state of settings files by which a change is noticed without a watch: a few system calls before each command.

A watch reports a change a moment after it, and the system may allow none. A rule that was written before a command is
asked for has to hold for it, so the files are looked at again then.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.reading import drop_ins, keeps_absent

_TICK = 100_000_000
"""Nanoseconds, several times what the clock of a file system takes for one step."""
_COARSE_TICK = 2_100_000_000
"""The same where times are kept in seconds."""
_SECOND = 1_000_000_000

State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileStates:
    """`settled` is False where a further change could leave the same state, since it comes within one step of the
    clock: then the files have to be read again although nothing differs."""

    states: tuple[State, ...]
    settled: bool


def look_at_files(locations: Iterable[Location]) -> FileStates:
    """The states of all files of these locations. To be called before they are read. Never raises."""
    states: list[State] = []
    for location in locations:
        states.append(file_state(location.path))
        if location.directory and states[-1][0] > 0:
            states += (file_state(inner.path) for inner in drop_ins(location))
    now = time.time_ns()
    return FileStates(tuple(states), all(_is_settled(state, now) for state in states))


def look_at_file(path: str) -> FileStates:
    """The same for one file."""
    state = file_state(path)
    return FileStates((state,), _is_settled(state, time.time_ns()))


def file_state(path: str) -> State:
    """Device, inode, mode, size and times in nanoseconds; of a link its own and those of the file that it leads to. A
    negative errno for what is not there."""
    try:
        state = os.lstat(path)
        if stat.S_ISREG(state.st_mode):
            return _numbers(state)
        if stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX and keeps_absent(path):
            return (-2,)
        if not stat.S_ISLNK(state.st_mode):
            return _numbers(state)
    except (OSError, ValueError) as fault:
        return (-(getattr(fault, "errno", None) or 1),)
    try:
        return (*_numbers(state), *_numbers(os.stat(path)))
    except OSError as fault:
        return (*_numbers(state), -(fault.errno or 1))


def _numbers(state: os.stat_result) -> State:
    return (state.st_dev, state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def _is_settled(state: State, now: int) -> bool:
    for changed in state[5::6]:
        tick = _TICK if changed % _SECOND else _COARSE_TICK
        if abs(now - changed) < tick:
            return False
    return True
