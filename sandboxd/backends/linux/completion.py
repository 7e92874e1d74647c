"""What is done to a sandbox after bubblewrap and before its command: its mounts are checked; meanwhile another process
makes the late mounts and sets up the network."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Iterator, Sequence
from weakref import WeakKeyDictionary

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.bwrap import BwrapOptions
from sandboxd.backends.linux.capture import Capture
from sandboxd.backends.linux.namespace_program import MAX_PROGRAM, Program, Step
from sandboxd.backends.linux.netns import NamespaceHold, NamespaceWorker
from sandboxd.backends.linux.placement import Expected, expected_mounts, misplaced
from sandboxd.errors import LaunchError


class Completion:
    """One per daemon. `worker` does what is to be done in the namespaces."""

    def __init__(self, worker: NamespaceWorker) -> None:
        self._worker = worker
        self._expected: WeakKeyDictionary[BwrapOptions, tuple[bytes, tuple[Expected, ...]]] = WeakKeyDictionary()
        """For the mounts of the host that it was worked out from."""
        self._programs: WeakKeyDictionary[BwrapOptions, tuple[Capture | None, tuple[Program, ...]]] = (
            WeakKeyDictionary()
        )
        """For the capture that they begin with."""

    def begin(
        self, pid: int, bubblewrap: int, listeners: Listeners, *, options: BwrapOptions, capture: Capture | None
    ) -> Awaitable[None] | None:
        """What is to be done to a sandbox before its command may start; `pid` is its process 1. Raises LaunchError."""
        programs = self._programs_for(options, capture)
        first = self._start(pid, listeners.namespace, programs[0]) if programs else None
        listeners.inside, listeners.namespace = NamespaceHold(self._worker, listeners.namespace), -1
        try:
            self._check_mounts(pid, bubblewrap, options)
        except LaunchError:
            if first is not None:
                first.cancel()
            raise
        return None if first is None else self._finish(first, pid, programs[1:], listeners, capture)

    async def _finish(
        self,
        first: asyncio.Future[list[socket.socket]],
        pid: int,
        following: Sequence[Program],
        listeners: Listeners,
        capture: Capture | None,
    ) -> None:
        sockets = await first
        if capture is not None:
            capture.hand_over(sockets, listeners)
        assert listeners.inside is not None
        for program in following:
            await self._start(pid, listeners.inside.fileno(), program)

    def _start(self, pid: int, network: int, program: Program) -> asyncio.Future[list[socket.socket]]:
        if not program.has_mounts:
            return self._worker.start(network, program)
        try:
            mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _ended(error) from error
        try:
            return self._worker.start(network, program, mounts)
        finally:
            os.close(mounts)

    def _programs_for(self, options: BwrapOptions, capture: Capture | None) -> tuple[Program, ...]:
        known = self._programs.get(options)
        if known is None or known[0] != capture:
            before = capture.program.steps if capture is not None else ()
            known = self._programs[options] = capture, tuple(programs_of((*before, *options.late)))
        return known[1]

    def _check_mounts(self, pid: int, bubblewrap: int, options: BwrapOptions) -> None:
        try:
            inside, outside = _read(f"/proc/{pid}/mountinfo"), _read(f"/proc/{bubblewrap}/mountinfo")
        except OSError as error:
            raise _ended(error) from error
        known = self._expected.get(options)
        if known is None or known[0] != outside:
            known = self._expected[options] = outside, expected_mounts(options.mounts, outside)
        if (wrong := misplaced(known[1], inside)) is not None:
            raise LaunchError(
                "mount_misplaced",
                f"{wrong} was moved or replaced while the sandbox was made",
                hint="try again; when it happens again, a command that still runs in the same place does this",
                data={"path": wrong},
            )


def programs_of(steps: Sequence[Step]) -> Iterator[Program]:
    """Programs that do the steps, in order, none too long."""
    part: list[Step] = []
    size = 0
    for step in steps:
        length = len(step.encode())
        if part and size + length > MAX_PROGRAM:
            yield Program.of(part)
            part, size = [], 0
        part.append(step)
        size += length
    if part:
        yield Program.of(part)


def _ended(error: OSError) -> LaunchError:
    return LaunchError("launch_failed", f"the sandbox ended before it was complete: {error.strerror}")


def _read(path: str) -> bytes:
    """In one piece, as the kernel makes it."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()
