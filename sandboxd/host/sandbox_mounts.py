"""The mounts of all running sandboxes, and the ends of their processes.

A command outlives a daemon that is killed, and the next daemon has to know what the command still needs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sandboxd.host import nofollow
from sandboxd.paths import mount_field

_INIT = b"sandboxd-init\n"
"""The name of process 1 of a sandbox, as the helper sets it."""
_MADE_MODES = {stat.S_IFDIR: (0o755,), stat.S_IFREG: (0o444, 0o666)}
"""The modes of mount targets that bubblewrap makes."""
_COARSE_S = 0.02
"""The time by which timestamps of files may be behind the clock."""


def mounts_of_sandboxes() -> dict[int, frozenset[str]]:
    """Return the mount points of each running sandbox, by its init pid."""
    found: dict[int, frozenset[str]] = {}
    for process in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_bytes() == _INIT:
                lines = Path(f"/proc/{process}/mountinfo").read_bytes().split(b"\n")
                found[int(process)] = frozenset(mount_field(line, 4) for line in lines if line)
    return found


def in_use(paths: Iterable[str], sandboxes: Mapping[int, frozenset[str]]) -> frozenset[str]:
    """Return the paths at or below which something is mounted."""
    mounted = itertools.chain.from_iterable(sandboxes.values())
    above = {top for path in mounted for top in itertools.accumulate(path.split("/"), lambda a, b: f"{a}/{b}")}
    return frozenset(path for path in paths if path.rstrip("/") in above)


class ProcessEnds:
    """A watch on processes that reports the first end, in the event loop."""

    def __init__(self) -> None:
        self._pidfds: list[int] = []

    def watch(self, processes: Iterable[int], ended: Callable[[], None]) -> None:
        """Watch these processes instead of earlier ones; an ended one counts at once."""
        self.close()
        loop = asyncio.get_running_loop()
        for process in processes:
            try:
                pidfd = os.pidfd_open(process)
            except ProcessLookupError:
                loop.call_soon(ended)
                continue
            except OSError:  # out of descriptors: the next daemon finds out
                continue
            self._pidfds.append(pidfd)
            loop.add_reader(pidfd, ended)

    def close(self) -> None:
        for pidfd in self._pidfds:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        self._pidfds.clear()


def remove_made(targets: Iterable[str], since: float) -> str:
    """Remove the mount targets that bubblewrap has made since a time; return the first or "".

    It makes a target that has gone since the plan; the directories above are mounts that need a source. Only what is
    empty and has its modes is removed."""
    return next(iter([target for target in targets if _remove_made(target, since)]), "")


def _remove_made(path: str, since: float) -> bool:
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError), nofollow.opened(parent) as directory:
        state = os.stat(name, dir_fd=directory, follow_symlinks=False)
        is_new = state.st_ctime >= since - _COARSE_S and state.st_uid == os.geteuid()
        if not is_new or state.st_mode & 0o777 not in _MADE_MODES.get(stat.S_IFMT(state.st_mode), ()):
            return False
        if stat.S_ISDIR(state.st_mode):
            os.rmdir(name, dir_fd=directory)
            return True
        if state.st_size == 0 and state.st_nlink == 1:
            os.unlink(name, dir_fd=directory)
            return True
    return False
