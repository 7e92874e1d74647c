"""Processes as the kernel describes them: identity, ancestors, and the use of a whole tree.

Linux only: elsewhere nothing is known of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sandboxd_client.records import dataclass

Process = tuple[int, int]
"""Process id and start time in clock ticks since boot, which name a process for good (proc_pid_stat(5), field 22)."""
MOST_ANCESTORS = 256
_MOST_DESCRIPTORS = 20_000
"""Descriptors of one tree that are looked at for its listening sockets."""
_LISTENING = b"0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def status_of(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the state on. Raises OSError.

    The name of the program, which may hold anything, stands before the last parenthesis."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def parent_of(pid: int) -> Process:
    """Return the parent of a process and its own start time. Raises OSError."""
    fields = status_of(pid)
    return int(fields[1]), int(fields[19])


def start_time(pid: int) -> int:
    """Return the start time of a process. Raises OSError."""
    return parent_of(pid)[1]


def has_ended(process: Process) -> bool:
    """Return whether a process has ended; zombies count as ended.

    False where that cannot be told (macOS)."""
    pid, started = process
    if sys.platform != "linux" or not started:
        return False
    try:
        fields = status_of(pid)
    except OSError:
        return True
    return int(fields[19]) != started or fields[0] in (b"Z", b"X")


def ancestors_of(process: Process) -> Iterator[Process]:
    """Yield the ancestors of a process, its parent first, as far as they are still its."""
    pid, started = process
    for _ in range(MOST_ANCESTORS):
        try:
            parent, now = parent_of(pid)
            if parent <= 0 or (started and now != started):
                return
            pid, started = parent, start_time(parent)
        except OSError:
            return
        yield pid, started


def names_of(pid: int) -> tuple[str, str]:
    """Return the names of a process and of its program's file, empty where unknown."""
    name = program = ""
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    with contextlib.suppress(OSError):
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
    return name, program


class ProcessEnd:
    """Watch for the end of a process. Raises OSError when it has ended already."""

    def __init__(self, process: Process, ended: Callable[[], None]) -> None:
        pid, started = process
        if sys.platform != "linux":
            raise ProcessLookupError("processes cannot be watched here")
        self._descriptor = os.pidfd_open(pid)
        if start_time(pid) != started:
            os.close(self._descriptor)
            raise ProcessLookupError(f"process {pid} is another one")
        self._ended = ended
        asyncio.get_running_loop().add_reader(self._descriptor, self._notice)

    def _notice(self) -> None:
        self.close()
        self._ended()

    def close(self) -> None:
        """Stop watching. May be called twice."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def tree_of(pid: int) -> list[int]:
    """Return a process and everything below it, at a cost that other processes do not raise.

    Blocking. For trees that do not change meanwhile (proc_pid_task(5), where the kernel has `children`)."""
    found = [pid]
    for one in found:
        with contextlib.suppress(ProcessLookupError):
            try:
                for task in os.listdir(f"/proc/{one}/task"):
                    found += map(int, Path(f"/proc/{one}/task/{task}/children").read_bytes().split())
            except FileNotFoundError:
                return ProcessTable().tree(pid)
    return found


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a tree of processes now.

    `cpu_s` are seconds of processor time of the tree, ended processes included, `memory` bytes of resident memory,
    shared pages counted in each process."""

    processes: int = 0
    threads: int = 0
    cpu_s: float = 0.0
    memory: int = 0
    ports: tuple[int, ...] = ()


class ProcessTable:
    """All processes at one moment. Blocking: microseconds for each process."""

    def __init__(self) -> None:
        self._fields: dict[int, list[bytes]] = {}
        self._children: dict[int, list[int]] = {}
        for name in filter(str.isdecimal, os.listdir("/proc") if sys.platform == "linux" else ()):
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = status_of(int(name))
                self._children.setdefault(int(fields[1]), []).append(int(name))
                self._fields[int(name)] = fields

    def tree(self, pid: int) -> list[int]:
        """Return a process and everything below it."""
        found = [pid] if pid in self._fields else []
        for one in found:
            found += self._children.get(one, ())
        return found

    def memory(self, pid: int) -> int:
        """Return the resident memory of a process in bytes."""
        return int(self._fields[pid][21]) * os.sysconf("SC_PAGE_SIZE")

    def usage(self, pid: int, *, ports: bool = True) -> Usage:
        """Return the use of the tree below a process, without that process."""
        tree, tick, page = self.tree(pid)[1:], os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        every = [self._fields[one] for one in tree]
        ticks = sum(int(field) for fields in every for field in fields[11:15])
        memory = sum(int(fields[21]) for fields in every) * page
        threads = sum(int(fields[17]) for fields in every)
        return Usage(len(tree), threads, ticks / tick, memory, _ports_of(tree) if ports else ())


def _ports_of(tree: list[int]) -> tuple[int, ...]:
    """Return the TCP ports that sockets of these processes listen on."""
    held: set[str] = set()
    left = _MOST_DESCRIPTORS
    for pid in tree:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd")[:left]:
                left -= 1
                with contextlib.suppress(OSError):
                    if found := _SOCKET.match(os.readlink(f"/proc/{pid}/fd/{name}")):
                        held.add(found[1])
    ports: set[int] = set()
    for path in (f"/proc/{tree[-1]}/net/tcp", f"/proc/{tree[-1]}/net/tcp6") if held else ():
        with contextlib.suppress(OSError):
            for line in Path(path).read_bytes().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9].decode() in held:
                    ports.add(int(fields[1].rpartition(b":")[2], 16))
    return tuple(sorted(ports))
