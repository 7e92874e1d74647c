"""What is mounted in the sandboxes that run, whoever started them, and when they end. A command outlives a daemon that
is killed, and the next one has to know what it still needs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_INIT = b"sandboxd-init\n"
"""The name of process 1 of a sandbox, as the helper sets it."""
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def mounts_of_sandboxes() -> dict[int, frozenset[str]]:
    """By the process id of their init: their mount points, as proc_pid_mountinfo(5) has them. What ends meanwhile has
    none."""
    found: dict[int, frozenset[str]] = {}
    for process in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_bytes() == _INIT:
                lines = Path(f"/proc/{process}/mountinfo").read_bytes().split(b"\n")
                found[int(process)] = frozenset(mount_field(line, 4) for line in lines if line)
    return found


def mount_field(line: bytes, number: int) -> str:
    """A field of a line of mountinfo, from 0."""
    return os.fsdecode(_ESCAPED.sub(lambda code: bytes([int(code[1], 8)]), line.split(b" ")[number]))


def in_use(paths: Iterable[str], sandboxes: Mapping[int, frozenset[str]]) -> frozenset[str]:
    """Those on which something is mounted, or on something in them."""
    mounted = itertools.chain.from_iterable(sandboxes.values())
    above = {top for path in mounted for top in itertools.accumulate(path.split("/"), lambda a, b: f"{a}/{b}")}
    return frozenset(path for path in paths if path.rstrip("/") in above)


class ProcessEnds:
    """Tells once when one of some processes has ended (pidfd_open(2)). To be used in the event loop."""

    def __init__(self) -> None:
        self._pidfds: list[int] = []

    def watch(self, processes: Iterable[int], ended: Callable[[], None]) -> None:
        """Instead of those that were watched before. One that has ended already counts."""
        self.close()
        loop = asyncio.get_running_loop()
        for process in processes:
            try:
                pidfd = os.pidfd_open(process)
            except ProcessLookupError:
                loop.call_soon(ended)
                continue
            except OSError:  # no descriptor is left: then it is found out when we end
                continue
            self._pidfds.append(pidfd)
            loop.add_reader(pidfd, ended)

    def close(self) -> None:
        for pidfd in self._pidfds:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        self._pidfds.clear()
