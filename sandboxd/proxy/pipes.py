"""Kernel pipes for splice(), lent out while bytes are in flight. Linux only."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Final

PIPE_SIZE: Final = 1 << 18
"""Bytes asked for. The kernel gives less to users who hold many pipes (pipe-user-pages-soft in pipe(7)): fine too."""
MOST_IDLE: Final = 16


class Pipe:
    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        """Raises OSError, EMFILE above all."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class PipePool:
    """An idle tunnel holds no pipe: a direction borrows one when bytes arrive and gives it back when they are through.
    So 1,000 tunnels need as many pipes as have a slow reader at this moment."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self._idle: list[Pipe] = []
        self._most_idle = most_idle

    def borrow(self) -> Pipe:
        """Raises OSError when there is no descriptor left."""
        return self._idle.pop() if self._idle else Pipe()

    def give_back(self, pipe: Pipe) -> None:
        """`pipe` is empty."""
        if len(self._idle) < self._most_idle:
            self._idle.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


SHARED: Final = PipePool()
"""One for the process: idle pipes are no session's state, and a pool each would cost every sandbox its descriptors."""
