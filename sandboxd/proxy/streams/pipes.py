"""Kernel pipes for splice(), lent while bytes are in flight. Linux only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Final

SIZE: Final = 1 << 20
"""The maximum for an ordinary user. Measured: 64 KiB takes nearly twice the processor time, as copying does."""
LEAST: Final = 1 << 17
MOST: Final = 32
"""Half of the kernel's limit for one user (pipe-user-pages-soft in pipe(7): 64 MiB). Without one the relay copies."""
MOST_IDLE: Final = 8


class Pipe:
    """A pipe, with the size that it really holds."""

    __slots__ = ("reader", "size", "writer")

    def __init__(self, ends: tuple[int, ...] = ()) -> None:
        """Open a pipe, or take over its ends. Raises OSError without descriptors, or for a small pipe."""
        self.reader, self.writer = ends or os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if not ends:
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, SIZE)
        self.size = fcntl.fcntl(self.writer, fcntl.F_GETPIPE_SZ)
        if not ends and self.size < LEAST:
            self.close()
            raise OSError(errno.EMFILE, "the user has too many pipes")

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class PipePool:
    """Pipes that directions of tunnels borrow while bytes are in flight.

    An idle tunnel holds no pipe, so 1,000 tunnels need only as many as there are slow readers at the moment."""

    def __init__(self) -> None:
        self._idle: list[Pipe] = []
        self._lent = 0

    def borrow(self) -> Pipe:
        """Return a pipe. Raises OSError when there is none, so that the caller copies."""
        if self._lent >= MOST:
            raise OSError(errno.EMFILE, "all pipes are in use")
        pipe = self._idle.pop() if self._idle else Pipe()
        self._lent += 1
        return pipe

    def resume(self, ends: tuple[int, ...]) -> Pipe:
        """Lend a pipe that another process has handed over."""
        self._lent += 1
        return Pipe(ends)

    def hand_over(self, pipe: Pipe) -> tuple[int, int]:
        """Return the ends of a lent pipe, which belong to the caller from now on."""
        self._lent -= 1
        return pipe.reader, pipe.writer

    def give_back(self, pipe: Pipe, *, empty: bool = True) -> None:
        """Return a pipe to the pool. One that still holds bytes is closed."""
        self._lent -= 1
        if empty and len(self._idle) < MOST_IDLE:
            self._idle.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


SHARED: Final = PipePool()
"""One pool per process: a pool for each sandbox would cost each sandbox idle descriptors."""
