"""Prepared sandboxes: complete, without a command, until the next one of the same connection fits.

docs/prepared.md has the protocol and why it is safe."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sandboxd.backends.base import (
    AnswerConnect,
    ConnectAttempt,
    LaunchSpec,
    Listeners,
    PreparedHandle,
    SandboxNetwork,
)
from sandboxd.errors import LaunchError
from sandboxd.plan.plan import Plan
from sandboxd.policy.violation import DenialEvent
from sandboxd.runtime.command import Command
from sandboxd.runtime.wrap import WrapRequest

UNUSED_S: Final = 60.0
"""How long a prepared sandbox waits for a command."""
MOST_OF_SESSION: Final = 8
"""Prepared sandboxes of a session, one for each connection; the oldest ends."""
MADE_WITHIN_S: Final = 5.0
"""How long one that is given up while it is made has to end by itself."""
STARTS_WITHIN_S: Final = 1.0
"""How long the client waits for the start before it is told of the claim."""
FREE_BYTES: Final = 256 << 20
"""Free memory below which nothing is prepared."""


class PreparedSandbox:
    """One sandbox, the observer of its launch until a command takes its place.

    `files_hold` and `remove_made` are as those of `Command`."""

    def __init__(
        self,
        wrap_id: str,
        plan: Plan,
        owner: object,
        files_hold: Callable[[], bool] = lambda: True,
        remove_made: Callable[[float], object] = lambda since: None,
    ) -> None:
        self.wrap_id, self.plan, self.owner = wrap_id, plan, owner
        self._files_hold, self._remove_made = files_hold, remove_made
        self._claimed_at = math.inf
        self.is_over = False
        self._pid = 0
        self._inside: SandboxNetwork | None = None
        self._is_complete = False
        loop = asyncio.get_running_loop()
        self._made, self._passed = loop.create_future(), loop.create_future()
        self._spec: LaunchSpec | None = None
        self._handle: PreparedHandle | None = None
        self._looking: asyncio.Future[Any] | None = None
        self._command: asyncio.Future[Command] = loop.create_future()
        self._expiry: asyncio.TimerHandle | None = None

    def attach(self, spec: LaunchSpec, handle: PreparedHandle) -> None:
        """Take the ticket of the launch."""
        self._spec, self._handle = spec, handle
        self._expiry = asyncio.get_running_loop().call_later(UNUSED_S, self.end)

    @property
    def is_waiting(self) -> bool:
        return self._is_complete and not self.is_over

    def fits(self, plan: Plan) -> bool:
        """Return whether it is the sandbox of this plan."""
        return self.is_waiting and _sandbox_of(plan) == _sandbox_of(self.plan)

    def end(self) -> None:
        """End it, with whatever it has come to."""
        if self.is_over or self._handle is None:
            return
        self._leave()
        self.kill()

    def kill(self) -> None:
        """End it, also once it is a command's."""
        assert self._handle is not None
        if not self._pid:
            self._handle.cancel()
        elif self._is_complete:
            self._handle.kill()
        else:
            self._handle.terminate()  # a bubblewrap that is killed now may leave a child that waits for ever
            asyncio.get_running_loop().call_later(MADE_WITHIN_S, self._handle.kill)

    async def made(self) -> None:
        """Wait until it is complete or over: what is left of that takes less time than another sandbox."""
        if not self._made.done():
            await asyncio.wait((self._made,), timeout=MADE_WITHIN_S)
        self.look()

    def look(self) -> None:
        """Begin to look at its files anew, for a command that has come."""
        if self.is_waiting and self._looking is None and self._handle is not None:
            self._looking = self._handle.look()
            self._looking.add_done_callback(_take_note)

    def _leave(self) -> None:
        self.is_over = True
        _set(self._made)
        if not (self._is_complete or self._files_hold()):
            self._remove_made(self._claimed_at)
        if self._expiry is not None:
            self._expiry.cancel()

    async def claim(self, command: Command, plan: Plan) -> tuple[LaunchSpec, PreparedHandle]:
        """Make it the sandbox of a command, which `begin` starts. Raises DaemonError."""
        assert self._handle is not None and self._spec is not None
        if self._expiry is not None:
            self._expiry.cancel()
        try:
            if self._looking is not None:
                await self._looking
            await self._handle.claim(plan.argv, command)
        except BaseException:
            self.end()
            raise
        self._leave()
        return self._spec, self._handle

    async def begin(self, command: Command) -> None:
        """Let its command start, or fail. The client is told afterwards: it has given all that the command needs."""
        command.was_prepared = True
        command.claimed(self._pid)
        if not self._command.done():
            self._command.set_result(command)
            await asyncio.wait((self._passed,), timeout=STARTS_WITHIN_S)

    # what the back end tells, until it is claimed

    def claimed(self, pid: int) -> None:
        self._pid, self._claimed_at = pid, time.time()
        if self.is_over:
            self.kill()

    def starting(self, inside: SandboxNetwork | None = None) -> Awaitable[None] | None:
        if not self._files_hold():
            self._leave()
            raise LaunchError("mount_misplaced", "files have changed while the sandbox was made")
        self._inside, self._is_complete = inside, True
        _set(self._made)
        return self._start()

    async def _start(self) -> None:
        try:
            command = await self._command
            checking = command.starting(self._inside)
            if checking is not None:
                await checking
        finally:
            asyncio.get_running_loop().call_soon(_set, self._passed)  # what started it sends the last byte first

    def listening(self, listeners: Listeners) -> None:
        listeners.close()

    def started(self) -> None: ...

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self._leave()

    def refused(self, refusal: DenialEvent) -> None: ...

    def lost(self, count: int) -> None: ...

    def listens(self) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        raise LaunchError("launch_failed", "a sandbox without a command connects")

    def ended(self, status: int | None) -> None:
        self._leave()


class PreparedSandboxes:
    """The prepared sandboxes of a session."""

    def __init__(self) -> None:
        self._ready: dict[object, PreparedSandbox] = {}

    @property
    def waiting(self) -> int:
        """Return the number of those that a command could have now."""
        return sum(one.is_waiting for one in self._ready.values())

    def add(self, one: PreparedSandbox) -> None:
        """Add one in place of that of the same connection."""
        self.drop(one.owner)
        self._ready[one.owner] = one
        if len(self._ready) > MOST_OF_SESSION:
            self.drop(next(iter(self._ready)))

    def drop(self, owner: object) -> None:
        if (one := self._ready.pop(owner, None)) is not None:
            one.end()

    def clear(self) -> None:
        for owner in tuple(self._ready):
            self.drop(owner)

    def look(self, request: WrapRequest) -> None:
        """Begin what a claim of the one that a request names takes longest for."""
        if (one := self._named(request)) is not None:
            one.look()

    async def made(self, request: WrapRequest) -> None:
        """Wait until the one that a request names is complete."""
        if (one := self._named(request)) is not None:
            await one.made()

    def take(self, request: WrapRequest, plan: Plan, tag: str = "") -> PreparedSandbox | None:
        """Take the one that a request names, if it is its connection's and fits; what does not fit ends.

        `tag` is that of the changes to the environment."""
        if (one := self._named(request)) is None:
            return None
        del self._ready[request.owner]
        if request.publish or not one.fits(plan) or request.given not in (None, tag):
            one.end()
            return None
        return one

    def _named(self, request: WrapRequest) -> PreparedSandbox | None:
        one = None if request.prepared is None else self._ready.get(request.owner)
        return one if one is not None and one.wrap_id == request.prepared else None


def _take_note(future: asyncio.Future[Any]) -> None:
    """Take the exception, which is for a claim that may not come."""
    if not future.cancelled():
        future.exception()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def env_tag(env_set: Mapping[str, str], env_unset: tuple[str, ...]) -> str:
    """Return a short text that tells whether changes to an environment are the same, in this process."""
    return f"{hash((tuple(env_set.items()), env_unset)) & (1 << 64) - 1:x}"


def _sandbox_of(plan: Plan) -> tuple[object, ...]:
    """Return what of a plan makes the sandbox: all but the command and its environment.

    The same view is the same policy and place, with files as they were."""
    return (
        id(plan.view), plan.cwd, plan.layers, plan.supervision, plan.network, plan.removed_variables, plan.processes,
        plan.limits,
    )  # fmt: skip


def is_memory_short() -> bool:
    """Return whether so little memory is free that nothing should be prepared."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10 < FREE_BYTES
    return False
