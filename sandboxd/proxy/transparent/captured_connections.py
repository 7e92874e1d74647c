"""Captured connections, of programs that ignore the proxy variables.

The local address of the accepted socket is the destination that the program named. A synthetic address means its name,
every other one itself. The gate decides as for the proxies; refused connections are reset.

| Destination | Decided as | Dialled |
| --- | --- | --- |
| synthetic address | its name | addresses of the name |
| a loopback address, where another command has a server | | that server |
| 127.0.0.1, ::1, on `allowLocalPorts` only | that address | a server inside, else the host's: on either address |
| another address | that address | itself |

**connect() that waits.** With capture alone every connect() succeeds, and the error comes afterwards. So where the back
end reports a connect() before it happens, `Captures.connecting` opens the outside connection first and answers with the
outcome. The open connection is kept for the captured one that arrives next.

| Outcome | connect() returns | On a non-blocking socket |
| --- | --- | --- |
| allowed, and the server answers | success | success |
| denied | EACCES | reset |
| the name does not resolve, no route | EHOSTUNREACH | reset |
| the server refuses | ECONNREFUSED | reset |
| no answer | ETIMEDOUT | reset |"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Protocol

from sandboxd.errors import DaemonError
from sandboxd.policy.hosts.host_patterns import Host, IPAddress, parse_host
from sandboxd.policy.hosts.synthetic_addresses import SANDBOX_V4, SANDBOX_V6
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.dns.synthetic_names import SyntheticNames
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound, Refused
from sandboxd.proxy.streams.connection import OutboundConnection
from sandboxd.proxy.streams.relay import SocketRelay
from sandboxd.proxy.streams.stream import Stream
from sandboxd_client.records import dataclass

ARRIVES_WITHIN_S: Final = 5.0
"""Maximum time from the answer to connect() to the captured connection; both ends are in this kernel."""

OPERATION: Final = "connect"
DENIED: Final = errno.EACCES
"""The error of connect(2) for a local firewall rule."""

ERRNO_OF_SLUG: Final = {
    "connection_refused": errno.ECONNREFUSED,
    "connect_timeout": errno.ETIMEDOUT,
    "connection_lost": errno.ECONNRESET,
    "out_of_descriptors": errno.EAGAIN,
}
_LOOPBACK: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
_SANDBOX: Final = (SANDBOX_V4, SANDBOX_V6)
_DNS_PORT: Final = 53


class CapturedNetwork(Protocol):
    """The part of the sandbox network that captures need."""

    async def is_listening(self, address: IPAddress, port: int) -> bool: ...
    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket: ...


class Elsewhere(Protocol):
    """The servers of the session's other commands."""

    def serves(self, address: IPAddress, port: int) -> bool: ...

    async def connect(self, address: IPAddress, port: int) -> socket.socket | None:
        """Return a connection to a server, None when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Destination:
    address: IPAddress
    port: int

    @classmethod
    def of(cls, address: str, port: int) -> Destination:
        """Parse an address; IPv4 in IPv6 form is IPv4. Raises ValueError."""
        parsed = ip_address(address.partition("%")[0])
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return cls(parsed, port)


class Captures:
    """The captured connections of one command.

    `inside` is None where the sandbox network cannot be queried. `own_ports` are the ports of the daemon's listeners
    there."""

    def __init__(
        self,
        outbound: Outbound,
        names: SyntheticNames,
        limits: ProxyLimits,
        inside: CapturedNetwork | None = None,
        own_ports: Callable[[], Collection[int]] = frozenset,
        is_local_port: Callable[[int], bool] = lambda port: True,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._outbound = outbound
        self._names = names
        self._limits = limits
        self._inside = inside
        self._own_ports = own_ports
        self._is_local_port = is_local_port
        self._elsewhere = elsewhere
        self._kept: dict[Destination, deque[_Kept]] = {}

    async def serve(self, client: Stream, outbound: Outbound, limits: ProxyLimits) -> None:
        """Serve one captured connection until it ends, and close it."""
        client.begin()
        try:
            destination = Destination.of(*client.socket.getsockname()[:2])
            with self._held(destination.address):
                await self._join(client, destination)
        except (OSError, DaemonError):
            client.reset()
        except BaseException:
            client.reset()
            raise
        finally:
            client.close()

    async def _join(self, client: Stream, destination: Destination) -> None:
        inner = await self._inner_server(destination)
        if inner is not None:
            client.commit()
            await SocketRelay(client.socket, inner, share=client.share).run()
            return
        connection = self._take(destination) or await self._open_elsewhere(destination)
        if connection is None:
            connection = await self._open(destination, client)
        await self._outbound.join(client, connection, b"")

    async def connecting(self, address: str, port: int, answer: Callable[[int], None]) -> None:
        """Decide a connect() that waits, and call `answer` once: 0 or an error number.

        Returns when the captured connection has arrived, or has not in time."""
        answered = False
        try:
            destination = Destination.of(address, port)
            if not await self._is_captured(destination):
                return  # not captured: the kernel decides
            with self._held(destination.address):
                try:
                    connection = await self._open(destination)
                except Refused:
                    answered = True
                    answer(DENIED)
                    return
                except DialError as error:
                    answered = True
                    answer(ERRNO_OF_SLUG.get(error.slug, errno.EHOSTUNREACH))
                    return
                kept = self._keep(destination, connection)
                answered = True
                answer(0)
                await self._wait_for_client(kept)
        finally:
            if not answered:
                answer(0)

    async def _is_captured(self, destination: Destination) -> bool:
        """Return whether a connection is captured; on loopback without a server inside."""
        address, port = destination.address, destination.port
        if address in _LOOPBACK and self._outbound.is_local_port(port):
            served = [await self._is_served_inside(one, port) for one in (address, _other(address))]
            return not any(served) and (self._elsewhere is None or not self._elsewhere.serves(address, port))
        stays_inside = address.is_loopback or address.is_unspecified or address in _SANDBOX
        return not (stays_inside or address.is_multicast or port == _DNS_PORT)

    async def _inner_server(self, destination: Destination) -> socket.socket | None:
        """Connect to the command's server on the other loopback address, if any.

        `localhost` is two addresses, and a server often listens on one. The command's own server precedes the host's.
        """
        if destination.address not in _LOOPBACK or self._inside is None:
            return None
        other = _other(destination.address)
        if not await self._is_served_inside(other, destination.port):
            return None
        return await self._inside.connect_inside(other, destination.port)

    async def _open_elsewhere(self, destination: Destination) -> OutboundConnection | None:
        """Connect to a server of another command. Raises OSError where it has gone."""
        address, port = destination.address, destination.port
        if self._elsewhere is None or not self._elsewhere.serves(address, port):
            return None
        sock = await self._elsewhere.connect(address, port)
        if sock is not None:
            return self._outbound.connected_inside(OPERATION, Host.of_address(address), port, sock, address)
        if address in _LOOPBACK and self._is_local_port(port):
            return None
        raise ConnectionRefusedError(errno.ECONNREFUSED, "the server has gone")

    async def _is_served_inside(self, address: IPAddress, port: int) -> bool:
        if self._inside is None or port in self._own_ports():
            return False
        try:
            return await self._inside.is_listening(address, port)
        except DaemonError:  # the sandbox is ending, or has no such family
            return False

    # outside connections

    async def _open(self, destination: Destination, client: Stream | None = None) -> OutboundConnection:
        """Open the connection. Raises Refused, DialError, and ClientGone during a prompt."""
        if destination.address not in _LOOPBACK:
            return await self._open_host(self._host(destination.address), destination.port, client)
        other = _other(destination.address)
        try:
            return await self._open_host(Host.of_address(destination.address), destination.port, client)
        except DialError as refused:
            if refused.slug != "connection_refused":
                raise
            with contextlib.suppress(DialError):
                return await self._open_host(Host.of_address(other), destination.port, client)
            raise

    async def _open_host(self, host: Host, port: int, client: Stream | None) -> OutboundConnection:
        if client is None:
            return await self._outbound.open(OPERATION, host, port, captured=True)
        return await self._outbound.open_for(client, self._limits, OPERATION, host, port, captured=True)

    def _host(self, address: IPAddress) -> Host:
        name = self._names.name_of(address)
        return Host.of_address(address) if name is None else parse_host(name)

    @contextlib.contextmanager
    def _held(self, address: IPAddress) -> Iterator[None]:
        release = self._names.hold(address)
        try:
            yield
        finally:
            release()

    # connections that wait for their client

    def _keep(self, destination: Destination, connection: OutboundConnection) -> _Kept:
        kept = _Kept(destination, connection, asyncio.get_running_loop().create_future())
        self._kept.setdefault(destination, deque()).append(kept)
        return kept

    async def _wait_for_client(self, kept: _Kept) -> None:
        """Wait for the captured connection; cancelled when the policy denies it by now."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ARRIVES_WITHIN_S):
                    await kept.taken
        finally:
            if not kept.is_taken:
                self._forget(kept)
                self._outbound.release(kept.connection)
                kept.connection.socket.close()

    def _take(self, destination: Destination) -> OutboundConnection | None:
        waiting = self._kept.get(destination)
        if not waiting:
            return None
        kept = waiting[0]
        if not self._outbound.may_reuse(kept.connection):
            return None  # denied by now: its waiting task is about to close it
        self._forget(kept)
        kept.is_taken = True
        if not kept.taken.done():
            kept.taken.set_result(None)
        kept.connection.owner = asyncio.current_task()
        return kept.connection

    def _forget(self, kept: _Kept) -> None:
        waiting = self._kept[kept.destination]
        waiting.remove(kept)
        if not waiting:
            del self._kept[kept.destination]


def _other(loopback: IPAddress) -> IPAddress:
    return _LOOPBACK[loopback.version == 4]


@dataclass(eq=False, slots=True)
class _Kept:
    destination: Destination
    connection: OutboundConnection
    taken: asyncio.Future[None]
    is_taken: bool = False
