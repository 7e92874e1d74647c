"""The search for Unix sockets below directories that commands can write.

Other commands may be at work there: no symlink is followed, and the amount of work is bounded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import posixpath
import stat
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence

from sandboxd.host.nofollow import opened
from sandboxd.plan.host_facts import FoundSocket, SocketFile, SocketsAtStart

MOST_ENTRIES, MOST_SOCKETS, MOST_SECONDS = 200_000, 1_000, 3.0
"""Limits of all places together; shallow directories come first."""

_libc = ctypes.CDLL(None, use_errno=True)
_NO_FOLLOW = 0x100
_CTIME, _INODE, _TYPE, _BTIME = 0x80, 0x100, 0x1, 0x800
_STATX = struct.Struct("=I24xHxxQ40xqI4xqI4x24xII")
"""stx_mask, stx_mode, stx_ino, stx_btime, stx_ctime, stx_dev_major and stx_dev_minor (statx(2))."""


def find_sockets(places: Sequence[tuple[str, str]]) -> SocketsAtStart:
    """List the sockets at and below canonical paths of the host.

    Each path comes with its path inside the sandbox. A directory that cannot be opened is skipped."""
    found: list[FoundSocket] = []
    left, until = MOST_ENTRIES, time.monotonic() + MOST_SECONDS
    for host, inside in places:
        with contextlib.suppress(OSError), opened(posixpath.dirname(host)) as directory:
            if (file := _socket_at(directory, posixpath.basename(host))) is not None:
                found.append(FoundSocket(inside, file))
    waiting = deque(places)
    while waiting:
        host, inside = waiting.popleft()
        with contextlib.suppress(OSError), opened(host) as directory:
            for name, is_directory in _listed(directory):
                left -= 1
                if left < 0 or len(found) >= MOST_SOCKETS or time.monotonic() > until:
                    return SocketsAtStart(tuple(found), complete=False)
                path = posixpath.join(inside, name)
                if is_directory:
                    waiting.append((posixpath.join(host, name), path))
                elif (file := _socket_at(directory, name)) is not None:
                    found.append(FoundSocket(path, file))
    return SocketsAtStart(tuple(found))


def _listed(directory: int) -> Iterator[tuple[str, bool]]:
    """List the directories in one, and possible sockets; true for a directory."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if is_directory or not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    yield entry.name, is_directory
    finally:
        os.close(descriptor)


def _socket_at(directory: int, name: str) -> SocketFile | None:
    """Identify a socket as the helper does, by statx(2) with the time of its making."""
    answer = ctypes.create_string_buffer(256)
    wanted = _TYPE | _INODE | _CTIME | _BTIME
    if _libc.statx(directory, os.fsencode(name), _NO_FOLLOW, wanted, answer) != 0:
        return None
    mask, mode, inode, *times, major, minor = _STATX.unpack_from(answer)
    if not stat.S_ISSOCK(mode):
        return None
    seconds, nanoseconds = times[:2] if mask & _BTIME else times[2:]
    return SocketFile((major, minor), inode, seconds * 1_000_000_000 + nanoseconds)
