"""Real proxies on loopback, with scripted origins, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.host_patterns import HostPattern, IPAddress
from sandboxd.policy.hosts.parent_proxies import parse_parent, read_environment
from sandboxd.policy.model import HostRule, NetworkPolicy
from sandboxd.policy.violation import DenialEvent, ViolationSource
from sandboxd.proxy.credentials.injector import SessionSecrets
from sandboxd.proxy.dial import Connector, Dialer, DialError, PinnedResolver, connect_socket
from sandboxd.proxy.gate import Ask, AskRequest, Gate
from sandboxd.proxy.http.credentials import Check
from sandboxd.proxy.limits import ProxyLimits, SessionRoom
from sandboxd.proxy.server import ProxyServer
from sandboxd.proxy.session_bounds import SessionBounds
from sandboxd.proxy.tls.authority import Authority
from sandboxd.proxy.upstream.parent_dialer import ParentDialer
from sandboxd.settings.origins import Origin, Source

SETTINGS = Origin(Source.USER, "sandbox.network.deniedDomains", "/home/me/.claude/settings.json", 3)
NAMES = ("ok.test", "also.test", "no.test", "ask.test")
"""All pinned to loopback, so that only the policy is between them and the origin."""

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def rules(*texts: str) -> tuple[HostRule, ...]:
    return tuple(HostRule(HostPattern.parse(text), SETTINGS) for text in texts)


@dataclass(frozen=True, slots=True)
class BlockedRequest:
    """A denial as these tests read it. `port` is 0 where there was none."""

    operation: str
    host: str
    port: int
    decision: Decision


class Blocked(list[BlockedRequest]):
    """The denials that a proxy has reported."""

    def add(self, denial: DenialEvent) -> None:
        assert denial.decision is not None and denial.source is ViolationSource.PROXY
        authority = denial.target.partition("/")[0]
        host, colon, port = authority.rpartition(":")
        if not colon or not port.isdecimal():
            host, port = authority, "0"
        self.append(BlockedRequest(denial.operation, host, int(port), denial.decision))


class NoNames:
    """The resolver behind the pins: everything that gets there is counted, and does not exist."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Sequence[IPAddress]:
        self.asked.append(host)
        raise DialError("dns_failed", f"{host} does not resolve")


@dataclass(slots=True)
class ScriptedOrigin:
    """A loopback server that runs `talk` for each connection and counts them: the oracle of "nothing was dialled"."""

    port: int
    connections: int = 0
    faults: list[BaseException] = field(default_factory=list)


@contextlib.asynccontextmanager
async def scripted_origin(talk: Talk) -> AsyncIterator[ScriptedOrigin]:
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin.connections += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            origin.faults.append(error)
        finally:
            running.discard(task)
            await finish(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    origin = ScriptedOrigin(server.sockets[0].getsockname()[1])
    try:
        yield origin
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()
        if running:
            await asyncio.wait(running)


@dataclass(slots=True)
class Proxies:
    """A `ProxyServer` with its two ports. `policy` may be replaced while it runs; `blocked` is what it reported."""

    policy: NetworkPolicy
    http_port: int = 0
    socks_port: int = 0
    blocked: Blocked = field(default_factory=lambda: Blocked())
    names: NoNames = field(default_factory=NoNames)
    server: ProxyServer = field(init=False)

    async def http(self) -> Wire:
        return await asyncio.open_connection("127.0.0.1", self.http_port)

    async def socks(self) -> Wire:
        return await asyncio.open_connection("127.0.0.1", self.socks_port)

    async def ask_http(self, request: bytes, *, half_close: bool = False) -> bytes:
        """Everything that comes back until the proxy closes."""
        return await exchange(await self.http(), request, half_close=half_close)

    async def tunnel(self, authority: str) -> Wire:
        """Through CONNECT, which must succeed."""
        reader, writer = await self.http()
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return reader, writer

    async def socks_tunnel(self, name: bytes, port: int) -> Wire:
        """Through SOCKS5, which must succeed."""
        reader, writer = await self.socks()
        writer.write(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
        answer = await reader.readexactly(12)
        assert answer[:4] == b"\x05\x00\x05\x00", answer
        return reader, writer

    def deny(self, *texts: str) -> None:
        self.policy = replace(self.policy, denied=rules(*texts))


@contextlib.asynccontextmanager
async def running_proxies(
    *allowed: str,
    denied: Sequence[str] = (),
    pinned: Sequence[str] = NAMES,
    ask: Ask | None = None,
    limits: ProxyLimits | None = None,
    room: SessionRoom | None = None,
    connector: Connector = connect_socket,
    parent: str = "",
    environment: Mapping[str, str] | None = None,
    check: Check | None = None,
    network: NetworkPolicy | None = None,
    ask_request: AskRequest | None = None,
    authority: Authority | None = None,
    vault: SessionSecrets | None = None,
    bounds: SessionBounds | None = None,
) -> AsyncIterator[Proxies]:
    """`parent` is the setting parentProxy, `environment` the daemon's own. `network` adds to the lists of hosts."""
    limits = limits or ProxyLimits(linger_s=0.2)
    setting = parse_parent(parent, "parentProxy") if parent else None
    lists = replace(network or NetworkPolicy(), allowed=rules(*allowed), denied=rules(*denied), parent_proxy=setting)
    proxies = Proxies(lists)
    resolver = PinnedResolver({name: ("127.0.0.1",) for name in pinned}, proxies.names)
    gate = Gate(
        lambda: proxies.policy,
        ask,
        resolver,
        resolver.pins,
        proxies=read_environment(environment or {}),
        ask_request=ask_request,
        bounds=bounds,
    )
    dialer = Dialer(connector, limits)
    proxies.server = ProxyServer(
        gate,
        dialer,
        proxies.blocked.add,
        "test",
        limits=limits,
        room=room,
        parents=ParentDialer(dialer, resolver, limits),
        user_http=lambda: proxies.policy.http_proxy_port,
        user_socks=lambda: proxies.policy.socks_proxy_port,
        authority=lambda: authority,
        vault=vault,
    )
    http, socks = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    proxies.http_port, proxies.socks_port = http.getsockname()[1], socks.getsockname()[1]
    proxies.server.serve(http, socks, check)
    try:
        yield proxies
    finally:
        await proxies.server.aclose()
        assert proxies.server.connections == 0


async def exchange(wire: Wire, data: bytes, *, half_close: bool = False) -> bytes:
    reader, writer = wire
    writer.write(data)
    if half_close:
        writer.write_eof()
    answer = await reader.read()
    await finish(writer)
    return answer


async def finish(writer: asyncio.StreamWriter) -> None:
    """Close, whatever the other side did."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
