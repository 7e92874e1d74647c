"""The state of settings files, by which a change is noticed without a watch.

A watch reports a change a moment later, and the system may allow none. A rule that was written before a command has to
hold for it, so the files are examined again before each command, with a few system calls."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.reading import drop_ins, keeps_absent
from sandboxd_client.records import dataclass

_TICK = 100_000_000
"""Nanoseconds, several times one step of the clock of a file system."""
_COARSE_TICK = 2_100_000_000
"""The same for a file system with times in seconds."""
_SECOND = 1_000_000_000

State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileStates:
    """The states of files; with `settled`, any later change gives another state."""

    states: tuple[State, ...]
    settled: bool


def look_at_files(locations: Iterable[Location]) -> FileStates:
    """Return the states of all files of these locations, before a read. Never raises."""
    states: list[State] = []
    for location in locations:
        states.append(file_state(location.path))
        if location.directory and states[-1][0] > 0:
            states += (file_state(inner.path) for inner in drop_ins(location))
    now = time.time_ns()
    return FileStates(tuple(states), all(_is_settled(state, now) for state in states))


def look_at_file(path: str) -> FileStates:
    """Return the state of one file, before it is read. Never raises."""
    state = file_state(path)
    return FileStates((state,), _is_settled(state, time.time_ns()))


def file_state(path: str) -> State:
    """Return numbers that identify a file's version; a negative errno if absent."""
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
