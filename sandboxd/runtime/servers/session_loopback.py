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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

from sandboxd.backends.base import SandboxNetwork, SessionServer
from sandboxd.errors import LaunchError
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.proxy.fair_share import Share
from sandboxd_client.records import dataclass, field

AT_MOST_EVERY_S: Final = 0.05
"""The time between two looks at one command's servers, and `REST` times what the last one took: one that listens in a
loop costs little."""
REST: Final = 10

PATIENCE_S: Final = 0.5
"""How long a command that starts waits for each of two looks at the others: one that is under way, and one due."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Member:
    """A running command: what listens in it, and which servers of others it is led to."""

    network: SandboxNetwork
    share: Callable[[], Share]
    """Pays for looks at its servers, and for leading others to them."""
    servers: frozenset[SessionServer] = frozenset()
    led_to: frozenset[SessionServer] | None = frozenset()
    """None where an earlier daemon has made the rules."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    not_before: float = 0.0
    is_due: bool = False
    """Its servers may have changed since the last look."""
    looks: asyncio.Task[None] | None = None
    ended: asyncio.Future[None] | None = None
    """The end of the look that is under way, else of the one that is due."""


class SessionLoopback:
    """The servers of all commands of one session; `spawn` runs and owns the work."""

    def __init__(self, spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._spawn = spawn
        self._members: dict[str, _Member] = {}

    def join(self, wrap_id: str, network: SandboxNetwork, share: Callable[[], Share]) -> Awaitable[None] | None:
        """Add a command that is about to start, once it reaches the others' servers."""
        waits = bool(self._looks())
        member = self._members[wrap_id] = _Member(network, share)
        return self._lead_after_looks(member) if waits or self._others(member) else None

    async def _lead_after_looks(self, member: _Member) -> None:
        for _ in range(2):
            if looks := self._looks():
                await asyncio.wait(looks, timeout=PATIENCE_S)
        await self._lead(member)

    def _looks(self) -> list[asyncio.Future[None]]:
        return [one.ended for one in self._members.values() if one.ended is not None]

    def resume(self, wrap_id: str, network: SandboxNetwork, share: Callable[[], Share]) -> None:
        """Add a running command of an earlier daemon."""
        self._members[wrap_id] = _Member(network, share, led_to=None)
        self.changed(wrap_id)

    def leave(self, wrap_id: str) -> None:
        """Forget a command that has ended."""
        member = self._members.pop(wrap_id, None)
        if member is not None and member.servers and self._members:
            self._spawn(f"localhost-without-{wrap_id}", self._lead_all(member))

    def changed(self, wrap_id: str) -> None:
        """Look for the servers of a command, soon."""
        member = self._members.get(wrap_id)
        if member is not None and not member.is_due:
            member.is_due = True
            member.ended = member.ended or asyncio.get_running_loop().create_future()
            if member.looks is None or member.looks.done():
                member.looks = self._spawn(f"localhost-of-{wrap_id}", self._look(member))

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
            await asyncio.sleep(max(member.not_before - loop.time(), 0))
            begun, member.is_due = loop.time(), False
            try:
                servers = await member.share().timed(member.network.servers())
                if servers != member.servers or member.led_to is None:
                    member.servers = servers
                    await self._lead_all(member)
            except (OSError, LaunchError) as error:
                log.debug("cannot list the servers of a command: %s", error)
            finally:
                ended, member.ended = member.ended, loop.create_future() if member.is_due else None
                if ended is not None and not ended.done():
                    ended.set_result(None)
            member.not_before = loop.time() + max(AT_MOST_EVERY_S, REST * (loop.time() - begun))

    async def _lead_all(self, changed: _Member) -> None:
        for member in list(self._members.values()):
            try:
                await changed.share().timed(self._lead(member))
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
