"""One localhost for the commands of a session.

Each command has a network namespace of its own: on which socket a connection arrives says which command made it. A
server that listens in one is reached from the others: their packet rules lead connections to its port to the daemon,
which connects inside the server's namespace and relays.

The helper tells of each listen(2). Which servers there are is then asked of the kernel. A server that is gone is
noticed when a connection to it fails, or its command ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandboxd.backends.base import SandboxNetwork, SessionServer
from sandboxd.errors import LaunchError
from sandboxd.policy.hosts.host_patterns import IPAddress

AT_MOST_EVERY_S: Final = 0.05
"""The time between two looks at one command's servers: one that listens in a loop costs little."""

PATIENCE_S: Final = 1.0
"""How long a command that starts waits for looks at the others."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Member:
    """A running command: what listens in it, and which servers of others it is led to."""

    network: SandboxNetwork
    servers: frozenset[SessionServer] = frozenset()
    led_to: frozenset[SessionServer] | None = frozenset()
    """None where an earlier daemon has made the rules."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    looked_at: float = 0.0
    is_due: bool = False
    """Its servers may have changed since the last look."""
    look: asyncio.Task[None] | None = None


class SessionLoopback:
    """The servers of all commands of one session; `spawn` runs and owns the work."""

    def __init__(self, spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._spawn = spawn
        self._members: dict[str, _Member] = {}

    def join(self, wrap_id: str, network: SandboxNetwork) -> Awaitable[None] | None:
        """Add a command that is about to start, once it reaches the others' servers."""
        looks = [one.look for one in self._members.values() if one.look is not None and not one.look.done()]
        member = self._members[wrap_id] = _Member(network)
        return self._lead_after(looks, member) if looks or self._others(member) else None

    async def _lead_after(self, looks: Sequence[asyncio.Task[None]], member: _Member) -> None:
        if looks:
            await asyncio.wait(looks, timeout=PATIENCE_S)
        await self._lead(member)

    def resume(self, wrap_id: str, network: SandboxNetwork) -> None:
        """Add a running command of an earlier daemon."""
        self._members[wrap_id] = _Member(network, led_to=None)
        self.changed(wrap_id)

    def leave(self, wrap_id: str) -> None:
        """Forget a command that has ended."""
        member = self._members.pop(wrap_id, None)
        if member is not None and member.servers and self._members:
            self._spawn(f"localhost-without-{wrap_id}", self._lead_all())

    def changed(self, wrap_id: str) -> None:
        """Look for the servers of a command, soon."""
        member = self._members.get(wrap_id)
        if member is not None and not member.is_due:
            member.is_due = True
            if member.look is None or member.look.done():
                member.look = self._spawn(f"localhost-of-{wrap_id}", self._look(member))

    def around(self, wrap_id: str) -> OtherServers:
        """Return the servers of all commands but this one."""
        return OtherServers(self, wrap_id)

    def serving(self, wrap_id: str, address: IPAddress, port: int) -> Iterator[tuple[str, SandboxNetwork]]:
        """Yield the other commands with a server there, the latest first."""
        for other, member in reversed(list(self._members.items())):
            if other != wrap_id and any(one.is_at(address, port) for one in member.servers):
                yield other, member.network

    async def _look(self, member: _Member) -> None:
        loop = asyncio.get_running_loop()
        while member.is_due:
            await asyncio.sleep(max(member.looked_at + AT_MOST_EVERY_S - loop.time(), 0))
            member.is_due, member.looked_at = False, loop.time()
            try:
                servers = await member.network.servers()
            except (OSError, LaunchError) as error:
                log.debug("cannot list the servers of a command: %s", error)
                return
            if servers != member.servers or member.led_to is None:
                member.servers = servers
                await self._lead_all()

    async def _lead_all(self) -> None:
        for member in list(self._members.values()):
            try:
                await self._lead(member)
            except (OSError, LaunchError) as error:
                log.debug("cannot lead a command to the servers of others: %s", error)

    async def _lead(self, member: _Member) -> None:
        async with member.lock:
            wanted = self._others(member)
            if wanted != member.led_to:
                member.led_to = None
                await member.network.lead_out(wanted)
                member.led_to = wanted

    def _others(self, member: _Member) -> frozenset[SessionServer]:
        return frozenset[SessionServer]().union(*(one.servers for one in self._members.values() if one is not member))


@dataclass(frozen=True, slots=True)
class OtherServers:
    """The servers that one command reaches in the others."""

    _loopback: SessionLoopback
    _wrap_id: str

    def serves(self, address: IPAddress, port: int) -> bool:
        return any(True for _ in self._loopback.serving(self._wrap_id, address, port))

    async def connect(self, address: IPAddress, port: int) -> socket.socket | None:
        """Return a connection to a server, None when there is none."""
        for other, network in self._loopback.serving(self._wrap_id, address, port):
            try:
                return await network.connect_inside(address, port)
            except (OSError, LaunchError):  # it has gone
                self._loopback.changed(other)
        return None
