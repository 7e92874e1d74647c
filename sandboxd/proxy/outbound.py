"""The connections of one command to the outside, watched while open.

Every outgoing connection is made by `Outbound.open`, whatever the protocol. It reports each refusal exactly once, and
ends connections that a new policy denies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from sandboxd.errors import DaemonError
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, IPAddress, parse_host, quote, without_user
from sandboxd.policy.hosts.parent_proxies import Protocol
from sandboxd.policy.hosts.request_rules import HttpRequest
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd.proxy.credentials.injector import NOTHING, Injection, Injector
from sandboxd.proxy.dial import Dialer, DialError
from sandboxd.proxy.dns.synthetic_names import NO_NAMES, SyntheticNames
from sandboxd.proxy.fair_share import Share
from sandboxd.proxy.gate import Admission, Gate
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.sandbox_servers import SandboxServers
from sandboxd.proxy.session_bounds import Meter
from sandboxd.proxy.streams.client_watch import ClientWatch
from sandboxd.proxy.streams.connection import Closed, Opened, OutboundConnection
from sandboxd.proxy.streams.idle_connections import IdleConnections
from sandboxd.proxy.streams.relay import Inspect
from sandboxd.proxy.streams.stream import Stream
from sandboxd.proxy.streams.tunnel import TunnelRecord, Tunnels
from sandboxd.proxy.transparent.server_names import ServerNameCheck
from sandboxd.proxy.upstream.parent_dialer import ParentDialer


def blocked(operation: str, host: str, port: int, decision: Decision, path: str = "") -> DenialEvent:
    """The event of a refused request.

    `operation` is CONNECT or the HTTP method, `host` printable ASCII without brackets, `port` 0 where there is none,
    `path` that of a request for which a rule decided."""
    target = (f"{host}:{port}" if port else host) + path
    return DenialEvent(ViolationKind.NETWORK, operation, target, ViolationSource.PROXY, decision=decision)


HTTPS_PORT: Final = 443
ServeTunnel = Callable[[Stream, OutboundConnection, bytes], Awaitable[None]]
Report = Callable[[DenialEvent], None]


class Refused(DaemonError):
    """A connection that policy denied, already reported."""

    def __init__(self, host: Host, port: int, decision: Decision) -> None:
        super().__init__("denied", decision.text, hint=decision.hint)
        self.host = host
        self.port = port
        self.decision = decision


def ignore(*_: object) -> None:
    """Observer that does nothing."""


class Outbound:
    def __init__(
        self,
        gate: Gate,
        dialer: Dialer,
        report: Report,
        parents: ParentDialer | None = None,
        opened: Opened = ignore,
        closed: Closed = ignore,
        names: SyntheticNames = NO_NAMES,
    ) -> None:
        """`parents` is required where the gate may choose a parent proxy.

        `names` maps synthetic addresses to names: programs may resolve a name first and then pass the address to a
        proxy."""
        self._gate = gate
        self._opened = opened
        self._closed = closed
        self._dialer = dialer
        self._parents = parents
        self._report = report
        self._open: set[OutboundConnection] = set()
        self._names = names
        self.inside: SandboxServers | None = None
        """The servers inside the sandbox, where its network can be reached."""
        self.tunnels = Tunnels(self)
        self.idle = IdleConnections(self.release)
        """Connections that further requests may use."""
        self.injector: Injector | None = None
        """Puts credentials into requests."""
        self.request_tunnels: ServeTunnel | None = None
        """Serves tunnels whose requests are decided; without it they are refused."""

    async def open(
        self, operation: str, host: Host, port: int, *, plain: bool = False, captured: bool = False
    ) -> OutboundConnection:
        """Open a connection to `host` for the calling task, which releases it later.

        A synthetic address means its name. `plain` is for a request of a plain `http://` URL, which may end at a parent
        proxy that gets the whole URL. `captured`: no server inside listens there, or it would not have been captured.
        Raises Refused, and DialError for failures other than policy."""
        host = self._meant(host)
        if self.inside is not None and not captured and (found := await self.inside.connect(host, port)) is not None:
            return self.connected_inside(operation, host, port, *found)
        admission = await self._gate.admit(host, port, plain=plain)
        if not admission.decision.allowed:
            raise self._refused(operation, host, port, admission.decision)
        if port == HTTPS_PORT and not plain and (unseen := self._gate.why_unseen(host, port)) is not None:
            raise self._refused(operation, host, port, unseen)
        forward = plain and admission.parent is not None and admission.parent.protocol is Protocol.HTTP
        sock, address = await self._connect(admission, host, port, forward)
        verdict = self._gate.still_allowed(host, port, admission.decision, address)
        if not verdict.allowed:
            sock.close()
            raise self._refused(operation, host, port, verdict)
        owner = asyncio.current_task()
        connection = OutboundConnection(
            operation, host, port, admission.decision, address, sock, owner, admission.parent, forward
        )
        self._watch(connection)
        self._opened(connection)
        return connection

    def _watch(self, connection: OutboundConnection) -> None:
        """Include a connection in later checks, and count what is sent."""
        self._open.add(connection)

        def spent(decision: Decision) -> None:
            self.report(connection.operation, connection.host, connection.port, decision)

        connection.meter = Meter(self._gate.bounds, connection.host, connection.port, spent)
        connection.meter.follow(self._gate.network())

    async def admit_request(
        self, client: Stream, limits: ProxyLimits, host: Host, port: int, request: HttpRequest, known: bytes = b""
    ) -> None:
        """Decide on one request by the rules for requests. Raises Refused, and ClientGone during a prompt."""
        host = self._meant(host)
        if not self._gate.covers_requests(host, port):
            return
        async with ClientWatch(client, limits.half_closed_s, known=known):
            await self.decide_request(client.share, host, port, request)

    async def decide_request(self, share: Share, host: Host, port: int, request: HttpRequest) -> None:
        """Decide on one request, for a caller that watches its client. Raises Refused."""
        decision = await share.timed(self._gate.decide_request(host, port, request))
        if decision is not None and not decision.allowed:
            raise self._refused(request.method, host, port, decision, request.path)

    async def injection(self, host: Host, port: int, request: HttpRequest, *, secure: bool) -> Injection:
        """Return what a decided request gets. Raises DialError for a credential without a value."""
        if self.injector is None:
            return NOTHING
        return await self.injector.injection(self._meant(host), port, request, secure=secure)

    def _meant(self, host: Host) -> Host:
        name = self._names.name_of(host.address) if host.address is not None else None
        return host if name is None else parse_host(name)

    def connected_inside(
        self, operation: str, host: Host, port: int, sock: socket.socket, address: IPAddress
    ) -> OutboundConnection:
        """Return the record of a connection to a server of the session."""
        decision = Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, f"{host.authority(port)} is a server in the sandbox")
        return OutboundConnection(
            operation, host, port, decision, address, sock, asyncio.current_task(), is_inside=True
        )

    def resume(self, record: TunnelRecord, sock: socket.socket) -> OutboundConnection:
        """Resume the connection of a tunnel that another process opened through its gate."""
        sock.setblocking(False)
        connection = OutboundConnection(
            record.operation,
            record.host,
            record.port,
            record.decision,
            record.address,
            sock,
            asyncio.current_task(),
            record.parent,
            record.forward,
            record.is_inside,
        )
        if not connection.is_inside:
            self._watch(connection)
        return connection

    async def _connect(
        self, admission: Admission, host: Host, port: int, forward: bool
    ) -> tuple[socket.socket, IPAddress | None]:
        parent = admission.parent
        if parent is None:
            return await self._dialer.dial(admission.addresses, port, host.name)
        if self._parents is None:
            raise DialError("upstream_unusable", f"cannot use the parent proxy {parent}: no dialer for it")
        if not admission.addresses:
            return await self._parents.open(parent, host, port, forward=forward), None
        address = admission.addresses[0]
        return await self._parents.open(parent, Host.of_address(address), port, forward=forward), address

    async def open_for(
        self,
        client: Stream,
        limits: ProxyLimits,
        operation: str,
        host: Host,
        port: int,
        *,
        plain: bool = False,
        captured: bool = False,
        known: bytes = b"",
    ) -> OutboundConnection:
        """Open a connection for a waiting client, and watch the client during a prompt.

        The prompt ends when the client is gone. `known` is the beginning of every possible answer. Raises ClientGone
        too."""
        if not self._gate.may_ask(self._meant(host), port):
            return await self.open(operation, host, port, plain=plain, captured=captured)
        async with ClientWatch(client, limits.half_closed_s, known=known):
            return await self.open(operation, host, port, plain=plain, captured=captured)

    async def join(self, client: Stream, connection: OutboundConnection, first: bytes) -> None:
        """Join a client and its connection until both have ended; `first` goes to the client before all else."""
        if connection.is_inside or not self._gate.sees_requests(connection.host, connection.port):
            await self.tunnels.run(client, connection, first, self.inspect(connection))
        elif self.request_tunnels is not None:
            await self.request_tunnels(client, connection, first)
        else:
            raise AssertionError("internal error: no server for requests in tunnels")

    def covers_requests(self, host: Host, port: int) -> bool:
        """Return whether rules for requests cover a host."""
        return self._gate.covers_requests(host, port)

    def ends_tls(self, host: Host, port: int) -> bool:
        """Return whether TLS for a host ends in the proxy."""
        return self._gate.ends_tls(host, port)

    def report(self, operation: str, host: Host, port: int, decision: Decision) -> None:
        """Report a denial that the client learns in another way."""
        self._report(blocked(operation, host.name, port, decision))

    def inspect(self, connection: OutboundConnection) -> Inspect | None:
        """Return the inspection of the first bytes of a tunnel, None when it is off."""
        mode = self._gate.server_names
        if connection.is_inside or (mode == "off" and not self._gate.decides_requests):
            return None
        port = connection.port

        def refuse(name: str, decision: Decision) -> None:
            self._report(blocked("TLS", name, port, decision))

        return ServerNameCheck(
            connection.host,
            lambda host: mode == "off" or self._gate.allows_listed(host, port),
            refuse,
            enforce=mode == "enforce",
            managed_only=self._gate.managed_domains_only,
            sees_requests=lambda host: self._gate.covers_requests(host, port),
        ).receive

    def is_local_port(self, port: int) -> bool:
        """Return whether this port of the loopback addresses stands for the host's."""
        return self._gate.is_local_port(port)

    def may_reuse(self, connection: OutboundConnection) -> bool:
        """Return whether another request may use the connection."""
        if connection.is_inside:
            return True
        if connection.parent != self._gate.parent(connection.host, connection.port, plain=connection.forward):
            return False
        return self._gate.still_allowed(
            connection.host, connection.port, connection.decision, connection.address
        ).allowed

    def rest(self, connection: OutboundConnection) -> bool:
        """Keep an idle connection for other requests, unless it was opened for its client alone."""
        for_one = connection.decision.reason is Reason.GRANTED and connection.decision.rule is None
        if connection.is_inside or for_one or not self.may_reuse(connection):
            return False
        self.idle.put(connection)
        return True

    def forget(self, connection: OutboundConnection) -> None:
        """Drop a connection that another owner continues; it is not closed."""
        self._open.discard(connection)

    def release(self, connection: OutboundConnection, sent: int = 0, received: int = 0) -> None:
        """Record that the connection is closed. The byte counts are those of a tunnel."""
        if connection.is_inside:
            return
        self._open.discard(connection)
        self._closed(connection, sent, received)

    def refuse_invalid(self, operation: str, text: bytes, error: HostSyntaxError) -> Decision:
        """Report an unreadable host, and return the DENY decision."""
        decision = Decision(Behavior.DENY, Reason.HOST_INVALID, error.message, hint=error.hint)
        self._report(blocked(operation, quote(without_user(text))[1:-1], 0, decision))
        return decision

    def targets(self) -> list[str]:
        """Return `HOST:PORT` of every open connection."""
        return [one.host.authority(one.port) for one in self._open]

    def recheck(self) -> int:
        """End every connection that the policy denies by now; return their number."""
        cut = 0
        self.idle.drop_unless(self.may_reuse)
        unseen = self.tunnels.unseen
        for connection in tuple(self._open):
            verdict = self._gate.still_allowed(
                connection.host, connection.port, connection.decision, connection.address
            )
            if verdict.allowed and connection in unseen and self.covers_requests(connection.host, connection.port):
                text = f"{connection.host.authority(connection.port)} has rules for requests by now"
                verdict = Decision(Behavior.DENY, Reason.REQUEST_UNSEEN, text, hint="run the command again")
            if verdict.allowed:
                if connection.meter is not None:
                    connection.meter.follow(self._gate.network())
                continue
            cut += 1
            self._open.discard(connection)
            self._report(blocked(connection.operation, connection.host.name, connection.port, verdict))
            if connection.owner is not None:
                connection.owner.cancel()
        return cut

    def _refused(self, operation: str, host: Host, port: int, decision: Decision, path: str = "") -> Refused:
        decision = self._gate.advised(decision)
        self._report(blocked(operation, host.name, port, decision, path))
        return Refused(host, port, decision)
