"""Kernel pipes for splice(), lent out while bytes are in flight. Linux only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from typing import Final

LARGE: Final = 1 << 20
"""The most that an ordinary user may ask for. Measured: 1 MiB moves twice as much as 64 KiB, with half the work."""
SMALL: Final = 1 << 16
MOST_LARGE: Final = 32
"""Half of what the kernel lets one user have (pipe-user-pages-soft in pipe(7): 64 MiB) …"""
MOST_SMALL: Final = 448
"""… and nearly the other half. Beyond that a new pipe would hold two pages: copying is better."""
MOST_IDLE: Final = 8


class Pipe:
    """`size` is what it really holds."""

    __slots__ = ("reader", "size", "writer")

    def __init__(self, size: int) -> None:
        """Raises OSError: out of descriptors, or the user holds so many pipes that this one would be tiny."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, size)
        self.size = fcntl.fcntl(self.writer, fcntl.F_GETPIPE_SZ)
        if self.size < SMALL:
            self.close()
            raise OSError(errno.EMFILE, "this user holds too many pipes")

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class PipePool:
    """An idle tunnel holds no pipe: a direction borrows one when bytes arrive and gives it back when they are through.
    So 1,000 tunnels need as many pipes as have a slow reader at this moment."""

    def __init__(self) -> None:
        self._idle: list[Pipe] = []
        self._lent_large = 0
        self._lent_small = 0

    def borrow(self) -> Pipe:
        """Raises OSError when there is none to be had: the caller copies instead."""
        if self._idle:
            pipe = self._idle.pop()
        elif self._lent_large < MOST_LARGE:
            pipe = Pipe(LARGE)
        elif self._lent_small < _most_small():
            pipe = Pipe(SMALL)
        else:
            raise OSError(errno.EMFILE, "all pipes are in use")
        self._count(pipe, 1)
        return pipe

    def give_back(self, pipe: Pipe, *, empty: bool = True) -> None:
        """One with bytes in it is closed."""
        self._count(pipe, -1)
        if empty and pipe.size > SMALL and len(self._idle) < MOST_IDLE:
            self._idle.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _count(self, pipe: Pipe, change: int) -> None:
        if pipe.size > SMALL:
            self._lent_large += change
        else:
            self._lent_small += change


def _most_small() -> int:
    """Not more than an eighth of the descriptors: a slow reader is no reason to have none for anything else."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(MOST_SMALL, descriptors // 16) if descriptors > 0 else MOST_SMALL


SHARED: Final = PipePool()
"""One for the process: idle pipes are no session's state, and a pool each would cost every sandbox its descriptors."""
