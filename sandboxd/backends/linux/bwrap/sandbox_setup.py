"""The sandbox set-up: steps from outside before the command starts.

The capture of the network needs a namespace and no mounts, so it begins when process 1 exists, long before bubblewrap
has made the mounts. The worker stays in the namespaces, and makes the late mounts when process 1 waits for GO: in the
usual case those of overlays, too. Meanwhile the mounts of bubblewrap are checked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import lru_cache, partial
from weakref import WeakKeyDictionary

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions
from sandboxd.backends.linux.bwrap.mount_check import ExpectedMount, expected_mounts, misplaced
from sandboxd.backends.linux.network.capture import Capture
from sandboxd.backends.linux.network.namespace_hold import NamespaceHold
from sandboxd.backends.linux.network.namespace_program import (
    MAX_PROGRAM,
    Continuation,
    LateMount,
    NamespaceProgram,
    Step,
)
from sandboxd.backends.linux.network.namespace_request import HeldDescriptor, NamespaceError
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker, WaitingProgram
from sandboxd.backends.linux.session_overlays import SessionOverlays, When, at_once, close_all, cover
from sandboxd.errors import LaunchError
from sandboxd.paths import mount_field
from sandboxd_client.records import dataclass

_KEPT = 4
"""Programs of one plan: the mounts in overlays may differ."""
Lost = Callable[[tuple[str, ...]], None]


class SandboxSetup:
    """The set-up steps of one daemon; `worker` runs them in the namespaces."""

    def __init__(self, worker: NamespaceWorker, overlays: SessionOverlays) -> None:
        self.worker = worker
        self.overlays = overlays
        self._expected: WeakKeyDictionary[BwrapOptions, tuple[bytes, tuple[ExpectedMount, ...]]] = WeakKeyDictionary()
        """The host's mountinfo, and the mounts to expect with it."""
        self._programs: WeakKeyDictionary[BwrapOptions, dict[tuple[Step, ...], tuple[NamespaceProgram, ...]]] = (
            WeakKeyDictionary()
        )
        """The programs for the late mounts, by the steps that precede them."""

    def of(self, options: BwrapOptions, capture: Capture | None, lost: Lost) -> RunningSetup:
        """Return the set-up of one launch; `lost` hears which late mounts were not made, if any."""
        return RunningSetup(self, options, capture, lost)

    def programs(
        self, before: tuple[Step, ...], options: BwrapOptions, *, covered: bool = False
    ) -> tuple[NamespaceProgram, ...]:
        """Return the programs for these steps and the late mounts; those are in the overlays, once `covered`."""
        known = self._programs.setdefault(options, {})
        programs = known.get(before)
        if programs is None:
            if len(known) >= _KEPT:
                known.clear()
            late = () if options.overlays and not covered else options.lasting
            programs = known[before] = tuple(programs_of((*before, *late)))
        return programs

    def check_mounts(self, inside: bytes, outside: bytes, options: BwrapOptions) -> None:
        """Check mounts against the plan, given bubblewrap's own. Raises LaunchError."""
        known = self._expected.get(options)
        if known is None or known[0] != outside:
            known = self._expected[options] = outside, expected_mounts(options.mounts, outside)
        if (wrong := misplaced(known[1], inside)) is not None:
            raise LaunchError(
                "mount_misplaced",
                f"{wrong} was moved or replaced while the sandbox was made",
                hint="end other commands in the same place, one of which replaces it, and try again",
                data={"path": wrong},
            )


@dataclass(frozen=True, slots=True)
class _Begun:
    """Begun steps: init pid, and device and inode of its network namespace."""

    pid: int
    network: tuple[int, int]
    stay: WaitingProgram


class RunningSetup:
    """The set-up of one launch, see `Preparation`."""

    def __init__(self, setup: SandboxSetup, options: BwrapOptions, capture: Capture | None, lost: Lost) -> None:
        self._setup = setup
        self._lost = lost
        self._options = options
        self._capture = capture
        self._begun: _Begun | None = None
        self._trees: asyncio.Task[list[HeldDescriptor]] | None = None
        self._around: bytes | None = None
        """The mounts around bubblewrap when it copied them."""
        self._makes_overlays = False
        """The overlays of its session began with its birth."""
        self._pids = 0, 0

    def begin(self) -> None:
        """Begin with the directories of overlays: bubblewrap has just been started."""
        self._setup.overlays.make_directories(self._options.overlays)

    def born(self, pid: int, bubblewrap: int) -> None:
        with contextlib.suppress(LaunchError):  # it has ended already, which is reported elsewhere
            self._around = _mounts_around(bubblewrap)
        overlays = self._options.overlays
        copies = bool(overlays) and self._setup.overlays.are_kept(overlays)
        if self._capture is None and not copies:
            return
        try:
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if self._capture is not None:
                stay = self._setup.worker.stay(network, _early(self._capture))
                self._begun = _Begun(pid, _identity(network), stay)
            if overlays:
                self._makes_overlays = not copies
                when = at_once if copies or self._begun is None else partial(_has_ids, self._begun)
                self._trees = self._take_trees(network, when)
        finally:
            os.close(network)

    def _take_trees(self, network: int, when: When = at_once) -> asyncio.Task[list[HeldDescriptor]]:
        """Take a mount of each overlay. One that has to be made is made after `when`."""
        options, held = self._options, os.dup(network)
        trees = self._setup.overlays.trees(held, options.overlays, options.tmp_size, when)
        taking = asyncio.ensure_future(trees)
        taking.add_done_callback(lambda _: os.close(held))  # of a task that was cancelled before it began, too
        return taking

    def abandon(self) -> None:
        if self._trees is not None:
            self._trees.add_done_callback(_close_trees)
            self._trees.cancel()
            self._trees = None
        if self._begun is not None:
            self._begun.stay.close()
            self._begun = None

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None] | None:
        """Finish the set-up. Raises LaunchError."""
        network, self._pids = listeners.namespace, (pid, bubblewrap)
        listeners.inside, listeners.namespace = NamespaceHold(self._setup.worker, network), -1
        begun, self._begun = self._begun, None
        if begun is not None and (begun.pid != pid or begun.network != _identity(network)):
            begun.stay.close()
            if self._makes_overlays:
                self._setup.overlays.forget(self._options.overlays)
            raise LaunchError("launch_failed", "bubblewrap reported another process as process 1 of the sandbox")
        if begun is not None and begun.stay.has_failed:
            begun.stay.close()
            begun = None
        work: _Work | None = None
        try:
            inside = _mounts_around(pid)
            work = self._whole(pid, network) if begun is None else self._rest(begun, pid, inside)
            around = _mounts_around(bubblewrap) if self._around is None else self._around
            self._setup.check_mounts(inside, around, self._options)
        except LaunchError:
            if begun is not None:
                begun.stay.close()
            if work is not None:
                work.first.cancel()
            raise
        more = None if work is None else self._finish(begun, work, pid, listeners, around)
        if self._options.overlays and (work is None or not work.covers):
            more = self._finish_covered(more, pid, listeners, around)
        return more if more is None or not self._options.searched else self._mount_again(more, pid, listeners)

    def mounts(self) -> tuple[bytes, ...]:
        """Return all mounts in the complete sandbox, and around it. Raises LaunchError."""
        return tuple(map(_mounts_around, self._pids))

    async def _mount_again(self, more: Awaitable[None], pid: int, listeners: Listeners) -> None:
        """Try once more what was missing when it was to be mounted: a program that saves a file removes it first."""
        await more
        assert listeners.inside is not None
        if missing := self._missing(pid):
            for program in programs_of(missing):
                await self._start(pid, listeners.inside.fileno(), program)
            if missing := self._missing(pid):
                self._lost(tuple(one.target for one in missing))

    def _missing(self, pid: int) -> list[LateMount]:
        points = {mount_field(line, 4) for line in _mounts_around(pid).split(b"\n") if line}
        return [one for one in self._options.searched if one.target not in points]

    async def _finish_covered(
        self, more: Awaitable[None] | None, pid: int, listeners: Listeners, around: bytes
    ) -> None:
        """Mount the overlays, and in them what was there; meanwhile finish the rest."""
        covering = asyncio.ensure_future(self._cover(pid, listeners, around))
        try:
            if more is not None:
                await more
            await covering
        finally:
            covering.cancel()

    async def _cover(self, pid: int, listeners: Listeners, around: bytes) -> None:
        assert listeners.inside is not None
        network, options = listeners.inside.fileno(), self._options
        trees = await self._taken(network)
        try:
            steps = cover(options.overlays, _mounts_around(pid))
            mounts = _mounts_of(pid)
            try:
                program, numbers = NamespaceProgram.of(steps), [one.fileno() for one in trees]
                covered = self._setup.worker.start(network, program, mounts, numbers)
            finally:
                os.close(mounts)
            await covered
        finally:
            close_all(trees)
        self._setup.check_mounts(_mounts_around(pid), around, options)  # what was moved meanwhile is elsewhere now
        for late in programs_of(options.lasting):
            await self._start(pid, network, late)

    async def _taken(self, network: int) -> list[HeldDescriptor]:
        """Return the mounts that were taken at the birth, else those of now."""
        taking, self._trees = self._trees, None
        if taking is not None:
            with contextlib.suppress(NamespaceError):
                return await taking
        return await self._take_trees(network)

    def _whole(self, pid: int, network: int) -> _Work | None:
        """Run all steps now."""
        programs = self._setup.programs(self._capture.steps if self._capture else (), self._options)
        return _Work(self._start(pid, network, programs[0]), programs[1:]) if programs else None

    def _rest(self, begun: _Begun, pid: int, inside: bytes) -> _Work:
        """Run the steps that were not possible with the init pid alone, with overlays whose mounts have come."""
        assert self._capture is not None
        programs, trees = tuple[NamespaceProgram, ...](), list[HeldDescriptor]()
        if self._trees is not None and self._trees.done() and self._trees.exception() is None:
            steps = self._capture.routes, *cover(self._options.overlays, inside)
            programs = self._setup.programs(steps, self._options, covered=True)
        if len(programs) == 1 and self._trees is not None:  # the trees come with the first
            trees, self._trees = self._trees.result(), None
        else:
            programs = self._setup.programs((self._capture.routes,), self._options)
        try:
            mounts = _mounts_of(pid)
            try:
                first = begun.stay.finish(programs[0], mounts, [one.fileno() for one in trees])
            finally:
                os.close(mounts)
        finally:
            close_all(trees)
        return _Work(first, programs[1:], covers=bool(trees))

    async def _finish(self, begun: _Begun | None, work: _Work, pid: int, listeners: Listeners, around: bytes) -> None:
        assert listeners.inside is not None
        covers = work.covers
        network = listeners.inside.fileno()
        try:
            if begun is None:
                sockets = await work.first
            else:
                try:
                    sockets = await begun.stay.opened()
                except NamespaceError:  # try once more with all mounts made; that attempt reports the error
                    again = self._whole(pid, network)
                    assert again is not None
                    work, begun = again, None
                    sockets = await work.first
            if self._capture is not None:
                self._capture.hand_over(sockets, listeners)
            if begun is not None:
                await work.first
            elif covers:
                await self._cover(pid, listeners, around)
        finally:
            if begun is not None:
                begun.stay.close()
        for program in work.following:
            await self._start(pid, network, program)
        if work.covers:
            self._setup.check_mounts(_mounts_around(pid), around, self._options)

    def _start(self, pid: int, network: int, program: NamespaceProgram) -> asyncio.Future[list[socket.socket]]:
        if not program.has_mounts:
            return self._setup.worker.start(network, program)
        mounts = _mounts_of(pid)
        try:
            return self._setup.worker.start(network, program, mounts)
        finally:
            os.close(mounts)


@dataclass(frozen=True, slots=True)
class _Work:
    """A running first program; `following` are to come after it."""

    first: asyncio.Future[list[socket.socket]]
    following: Sequence[NamespaceProgram]
    covers: bool = False
    """It mounts the overlays, too, and all that lies in them."""


@lru_cache(maxsize=64)
def _early(capture: Capture) -> NamespaceProgram:
    return NamespaceProgram.of((*capture.rest, Continuation()))


def programs_of(steps: Sequence[Step]) -> Iterator[NamespaceProgram]:
    """Yield programs that do the steps, in order, none too long."""
    part: list[Step] = []
    size = 0
    for step in steps:
        length = len(step.encode())
        if part and size + length > MAX_PROGRAM:
            yield NamespaceProgram.of(part)
            part, size = [], 0
        part.append(step)
        size += length
    if part:
        yield NamespaceProgram.of(part)


async def _has_ids(begun: _Begun) -> None:
    """Wait for the first steps, by which a new user namespace has its ids. Raises NamespaceError where it has none."""
    await begun.stay.settled()
    try:
        if all(_read(f"/proc/{begun.pid}/{kind}_map") for kind in ("uid", "gid")):
            return
    except OSError:
        pass  # it has ended
    raise NamespaceError("the user namespace has no ids yet")


def _close_trees(taking: asyncio.Future[list[HeldDescriptor]]) -> None:
    """Close what a launch has not used."""
    if not taking.cancelled() and taking.exception() is None:
        close_all(taking.result())


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _mounts_of(pid: int) -> int:
    """Return a descriptor of a process's mount namespace. Raises LaunchError."""
    try:
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _ended(error) from error


def _mounts_around(bubblewrap: int) -> bytes:
    """Return the mounts around bubblewrap. Raises LaunchError."""
    try:
        return _read(f"/proc/{bubblewrap}/mountinfo")
    except OSError as error:
        raise _ended(error) from error


def _ended(error: OSError) -> LaunchError:
    return LaunchError("launch_failed", f"the sandbox ended before it was complete: {error.strerror}")


def _read(path: str) -> bytes:
    """Read in one call, so that the kernel's text is consistent."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()
