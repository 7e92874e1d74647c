"""inotify(7) through ctypes, since the standard library has no interface to it.

Nothing here runs in the background. The kernel queues events, and the owner of an instance reads them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import termios
from collections.abc import Iterator

from sandboxd.errors import HostError
from sandboxd_client.records import dataclass

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
OVERFLOW = 0x4000
IGNORED = 0x8000
ISDIR = 0x40000000
DONT_FOLLOW = 0x02000000
DIRECTORY = 0x01000000 | DONT_FOLLOW | 0x04000000
"""Only a directory, without following a link, and no events of files that are unlinked already."""
_MASK_ADD = 0x20000000

NAMES_CHANGE = CREATE | DELETE | MOVED_FROM | MOVED_TO | DELETE_SELF | MOVE_SELF
_HEADER = struct.Struct("iIII")
_BUFFER = 65536

_LEFT_TO_OTHERS = 8
"""Instances that optional watches leave to other programs of the user."""
_USUAL_LIMIT = 8192
_LIMITS = ("/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Event:
    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance."""

    def __init__(self) -> None:
        """Create an instance. Raises `HostError` (`inotify_unavailable`)."""
        if not hasattr(_libc, "inotify_init1"):
            raise HostError("inotify_unavailable", "this system has no inotify")
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            reason = os.strerror(ctypes.get_errno())
            raise HostError(
                "inotify_unavailable",
                f"cannot create an inotify instance: {reason}",
                hint="raise fs.inotify.max_user_instances",
            )

    def fileno(self) -> int:
        """The descriptor, which is readable when events are queued."""
        return self._fd

    def add(self, path: str, mask: int) -> int:
        """Watch a path and return the number that its events carry.

        A path that is watched already keeps its number, and `mask` is added to its own.
        Raises the OSError of inotify_add_watch(2)."""
        watch: int = _libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask | _MASK_ADD))
        if watch < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
        return watch

    def remove(self, watch: int) -> None:
        _libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> Iterator[Event]:
        """The events that are queued now.

        Later ones wait for the next call, so that a command that makes events without end cannot hold the reader."""
        left = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]
        while left > 0:
            data = os.read(self._fd, _BUFFER)
            left -= len(data)
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size
                yield Event(watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0")))
                at += length

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def leaves_room() -> bool:
    """Return whether the user would have a few instances left beside one more.

    The kernel offers no count, so that many are made and given back at once. This takes a tenth of a millisecond."""
    made: list[Inotify] = []
    try:
        while len(made) < _LEFT_TO_OTHERS + 1:
            made.append(Inotify())
    except HostError:
        return False
    finally:
        for one in made:
            one.close()
    return True


def watch_limit() -> int:
    """Return the number of watches that the user may have, by all limits."""
    found = []
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            found.append(int(file.read()))
    return min(found, default=_USUAL_LIMIT)


def watches_in_use() -> int:
    """Count the visible watches of the user, in a thread (proc_pid_fdinfo(5))."""
    user, count = os.geteuid(), 0
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{process}").st_uid != user:
                continue
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                count += _watches_of(process, descriptor)
    return count


def _watches_of(process: str, descriptor: str) -> int:
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/{process}/fd/{descriptor}") == "anon_inode:inotify":
            with open(f"/proc/{process}/fdinfo/{descriptor}", "rb") as info:
                return sum(line.startswith(b"inotify ") for line in info)
    return 0
