"""Protected names that a person makes outside while a command runs: read-only inside at once.

Nothing keeps such a name from being made outside, since nothing is in its place. The helper makes nothing at or below
it for the command; a mount keeps what is there from being changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.helper.expected_launch import Preparation
from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod, NamespaceProgram
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker


class Expectations(Protocol):
    """The reports of names that appear (`host.watch.appearances`)."""

    def ready(self) -> None: ...

    def expect(self, names: tuple[str, ...], appeared: Callable[[tuple[str, ...]], None], /) -> Callable[[], None]: ...


class LateNames:
    """The guarded names of one running command."""

    def __init__(self, names: tuple[str, ...], expectations: Expectations, worker: NamespaceWorker) -> None:
        self._names, self._expectations, self._worker = names, expectations, worker
        self._cancel: Callable[[], None] = lambda: None
        self._pid = 0
        self._begun: set[asyncio.Future[list[socket.socket]]] = set()

    def begin(self, pid: int) -> Awaitable[object] | None:
        """Watch for the names, and mount those that are there; `pid` is process 1. The result is awaited."""
        self._pid = pid
        self._cancel = self._expectations.expect(self._names, self._appeared)
        return asyncio.gather(*self._begun, return_exceptions=True) if self._begun else None

    def close(self) -> None:
        self._cancel()
        self._cancel = lambda: None

    def _appeared(self, names: tuple[str, ...]) -> None:
        """Mount each name on itself; one that has gone again is reported anew."""
        with contextlib.suppress(OSError):  # the command has ended
            with contextlib.ExitStack() as opened:
                mounts, network = (self._open(opened, kind) for kind in ("mnt", "net"))
                for name in names:
                    program = NamespaceProgram.of((LateMount(MountMethod.ENTRY, name, if_there=True),))
                    begun = asyncio.ensure_future(self._worker.start(network, program, mounts))
                    self._begun.add(begun)
                    begun.add_done_callback(self._done)

    def _open(self, opened: contextlib.ExitStack, kind: str) -> int:
        descriptor = os.open(f"/proc/{self._pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        return descriptor

    def _done(self, begun: asyncio.Future[list[socket.socket]]) -> None:
        self._begun.discard(begun)
        if not begun.cancelled():
            begun.exception()


class GuardedSetup:
    """A set-up that ends with the names which appeared meanwhile."""

    def __init__(self, setup: Preparation, names: LateNames) -> None:
        self._setup, self._names = setup, names
        self.born, self.abandon = setup.born, setup.abandon

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None]:
        return self._complete(self._setup.complete(pid, bubblewrap, listeners), pid)

    async def _complete(self, more: Awaitable[None] | None, pid: int) -> None:
        if more is not None:
            await more
        mounted = self._names.begin(pid)
        if mounted is not None:
            await mounted
