"""Who is running below this test process.

The test process makes itself a *subreaper* (prctl(2), PR_SET_CHILD_SUBREAPER): whatever is orphaned below it, daemons
included, becomes its child instead of a child of process 1. So "everything that this test has started and that is
still alive" is one walk over /proc, whatever happened to the parents, and parallel test runs do not see each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36

residents: set[int] = set()
"""Processes that serve more than one test: no test has started them, so none finds or ends them."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    state: str
    start_time: int
    name: str
    command: tuple[str, ...]

    @property
    def birth(self) -> tuple[int, int]:
        """Which process it is, also when its number is given to another one."""
        return self.pid, self.start_time

    def __str__(self) -> str:
        return f"{self.pid} {' '.join(self.command) or f'[{self.name}]'}"


def adopt_orphans() -> None:
    """Makes the calling process a subreaper. Called once, when a test run starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def read_process(pid: int) -> Process | None:
    """What /proc says about `pid`; None when there is no such process (any more)."""
    status = _status(pid)
    return None if status is None else _process(pid, *status)


def _status(pid: int) -> tuple[bytes, list[bytes]] | None:
    """Name and fields after it, of proc_pid_stat(5). Without the layers of `open`, because all tests read all processes
    some times."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        text = os.read(file, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(file)
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    return name, rest.split()


def _process(pid: int, name: bytes, fields: list[bytes]) -> Process | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = tuple(word.decode(errors="replace") for word in command.split(b"\0") if word)
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]), name.decode(errors="replace"), words)


def is_alive(pid: int) -> bool:
    """Whether `pid` runs. A zombie does not: it waits only for its status to be read."""
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def descendants(of: int | None = None) -> list[Process]:
    """Every living process below `of` (this process by default), zombies and residents left out, not their children."""
    return [one for one in _all_below(os.getpid() if of is None else of) if one.state not in "ZX"]


def _all_below(of: int) -> list[Process]:
    below: dict[int, list[tuple[int, bytes, list[bytes]]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (status := _status(int(entry))) is not None:
            below.setdefault(int(status[1][1]), []).append((int(entry), *status))
    found: list[Process] = []
    open_pids = [of]
    while open_pids:
        for pid, name, fields in below.get(open_pids.pop(), []):
            open_pids.append(pid)
            if pid not in residents and (process := _process(pid, name, fields)) is not None:
                found.append(process)
    return found


Births = frozenset[tuple[int, int]]


def there_now() -> Births:
    """Who is below this process, zombies too."""
    return frozenset(process.birth for process in _all_below(os.getpid()))


def end_others(than: Births) -> bool:
    """End all other processes below this one. True once none is left.

    No other process reads the status of adopted orphans, and process 1 of a pid namespace does not end before that
    is done for all that have been in it."""
    others = [process for process in _all_below(os.getpid()) if process.birth not in than]
    for process in others:
        if process.state not in "ZX":
            end(process.pid)
        elif process.parent == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return all(process.state in "ZX" for process in others)


def end(pid: int, *, number: int = signal.SIGKILL) -> None:
    """Sends a signal to exactly this process; one that is already gone is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
