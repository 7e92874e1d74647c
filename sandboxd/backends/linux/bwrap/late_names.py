"""Names that a person makes or replaces outside while a command runs: read-only inside at once, or closed.

What is moved over a mount takes it away. So a denied file or directory is covered again, by what is empty.
Nothing keeps such a name from being made outside, since nothing is in its place. The helper makes nothing at or below
it for the command; a mount keeps what is there from being changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.helper.expected_launch import Preparation
from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod, NamespaceProgram
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.plan.filesystem.mounts import FileView, Operation
from sandboxd.plan.masked_files import is_copy


class Expectations(Protocol):
    """The reports of names that appear (`host.watch.appearances`)."""

    def ready(self) -> None: ...

    def expect(
        self, names: tuple[str, ...], appeared: Callable[[tuple[str, ...]], None], closed: tuple[str, ...], /
    ) -> Callable[[], None]: ...


BURST, PER_SECOND = 256, 10
"""Mounts for one command beyond one for each name, and how many more a second."""


MOST_DENIED: Final = 500
"""Denied paths of one command that are watched; with more none is."""


def denied_names(view: FileView) -> frozenset[str]:
    """Return the paths that masks and copies with placeholders cover."""
    found = frozenset(
        mount.target
        for mount in view.mounts
        if (mount.operation in (Operation.MASK_FILE, Operation.MASK_DIRECTORY) and not mount.traverse_only)
        or is_copy(mount.source)
    )
    return found if len(found) <= MOST_DENIED else frozenset()


def empty_directory(view: FileView) -> str:
    """Return a directory of the daemon that shows nothing inside, or ""."""
    return next((mount.target for mount in view.mounts if mount.traverse_only), "")


class LateNames:
    """The guarded names of one running command; `closed` are those that are mounted from the start.

    `denied` are covered, directories by `empty`.

    Mounts are made one after the other and have a pace, since another session may be allowed to make such names. One
    that waits stays closed by the helper, which changes nothing there. `tell` hears once of the pace."""

    def __init__(
        self,
        names: tuple[str, ...],
        expectations: Expectations,
        worker: NamespaceWorker,
        tell: Callable[[], None],
        closed: tuple[str, ...] = (),
        denied: Collection[str] = (),
        empty: str = "",
    ) -> None:
        self._denied, self._empty = frozenset(denied), empty
        self._names, self._closed = (*names, *self._denied), (*closed, *self._denied)
        self._expectations, self._worker = expectations, worker
        self._tell: Callable[[], None] | None = tell
        self._cancel: Callable[[], None] = lambda: None
        self._pid = 0
        self._left, self._counted = float(BURST + len(self._names)), 0.0
        self._wanted: dict[str, None] = {}
        self._busy: asyncio.Future[list[socket.socket]] | asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None

    def begin(self, pid: int) -> Awaitable[object] | None:
        """Watch for the names, and mount those that are there; `pid` is process 1. The result is awaited."""
        self._pid = pid
        self._counted = asyncio.get_running_loop().time()
        self._cancel = self._expectations.expect(self._names, self._appeared, self._closed)
        if self._busy is not None:
            self._first = asyncio.get_running_loop().create_future()
        return self._first

    def close(self) -> None:
        self._cancel()
        self._cancel = lambda: None
        self._wanted.clear()
        if isinstance(self._busy, asyncio.TimerHandle):
            self._busy.cancel()

    def _appeared(self, names: tuple[str, ...]) -> None:
        """Mount each name on itself; one that has gone again is reported anew."""
        self._wanted |= dict.fromkeys(names)
        if self._busy is None:
            self._next()

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        self._busy, now = None, loop.time()
        self._left, self._counted = min(self._left + (now - self._counted) * PER_SECOND, BURST + len(self._names)), now
        if self._wanted and self._left < 1:
            if self._tell is not None:
                self._tell()
                self._tell = None
            self._busy = loop.call_later(1 / PER_SECOND, self._next)
        elif self._wanted:
            name = next(iter(self._wanted))
            del self._wanted[name]
            self._left -= 1
            with contextlib.suppress(OSError):  # the command has ended
                self._busy = self._mount(name)
                self._busy.add_done_callback(self._done)
        if self._busy is None and self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _mount(self, name: str) -> asyncio.Future[list[socket.socket]]:
        with contextlib.ExitStack() as opened:
            mounts, network = (self._open(opened, kind) for kind in ("mnt", "net"))
            program = NamespaceProgram.of((self._late(name),))
            return self._worker.start(network, program, mounts)

    def _late(self, name: str) -> LateMount:
        """Return the mount for a name. Raises OSError."""
        if name not in self._denied:
            return LateMount(MountMethod.ENTRY, name, if_there=True)
        is_directory = stat.S_ISDIR(os.lstat(name).st_mode) and self._empty
        return LateMount(MountMethod.ENTRY, name, self._empty if is_directory else "/dev/null", if_there=True)

    def _open(self, opened: contextlib.ExitStack, kind: str) -> int:
        descriptor = os.open(f"/proc/{self._pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        return descriptor

    def _done(self, begun: asyncio.Future[list[socket.socket]]) -> None:
        if not begun.cancelled():
            begun.exception()
        self._next()


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
