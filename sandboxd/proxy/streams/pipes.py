"""Kernel pipes for splice(), lent while bytes are in flight. Linux only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from typing import Final

LARGE: Final = 1 << 20
"""The maximum for an ordinary user. Measured: 1 MiB moves twice as much as 64 KiB, with half the work."""
SMALL: Final = 1 << 16
MOST_LARGE: Final = 32
"""Half of the kernel's limit for one user (pipe-user-pages-soft in pipe(7): 64 MiB)."""
MOST_SMALL: Final = 448
"""Nearly the other half. Beyond it a new pipe would hold two pages, and copying is faster."""
MOST_IDLE: Final = 8


class Pipe:
    """A pipe, with the size that it really holds."""

    __slots__ = ("reader", "size", "writer")

    def __init__(self, size: int) -> None:
        """Open a pipe. Raises OSError without descriptors, or for a tiny pipe."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, size)
        self.size = fcntl.fcntl(self.writer, fcntl.F_GETPIPE_SZ)
        if self.size < SMALL:
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
        self._lent_large = 0
        self._lent_small = 0

    def borrow(self) -> Pipe:
        """Return a pipe. Raises OSError when there is none, so that the caller copies."""
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
        """Return a pipe to the pool. One that still holds bytes is closed."""
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
    """Return the limit of small pipes: with both ends, an eighth of the descriptors."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(MOST_SMALL, descriptors // 16) if descriptors > 0 else MOST_SMALL


SHARED: Final = PipePool()
"""One pool per process: a pool for each sandbox would cost each sandbox idle descriptors."""
