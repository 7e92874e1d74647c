"""Tunnels whose requests are decided one by one: CONNECT, SOCKS and captured connections to certain hosts.

| The client begins with | rules for requests cover the host | no rule covers it, and TLS ends here |
| --- | --- | --- |
| TLS, for a host of `tls.terminate` | each request is decided | requests are parsed and passed on |
| TLS, otherwise | refused (`requestUnseen`) | passed on as it is |
| a request of HTTP/1.1 | each request is decided | passed on as it is |
| anything else, or the server begins | refused (`requestUnseen`) | passed on as it is |

The handshake with the server comes first, and its certificate is verified as a client would. The command sees a
certificate of the daemon's authority. When the server cannot be trusted, the answer to a request says so."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, parse_wire_host
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.http.http_origins import OriginStream
from sandboxd.proxy.http.http_server import serve_requests
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound
from sandboxd.proxy.streams.connection import OutboundConnection
from sandboxd.proxy.streams.stream import Stream
from sandboxd.proxy.tls.authority import HTTP1, HTTP2, Authority
from sandboxd.proxy.tls.faults import ServerUntrusted, TlsEnd
from sandboxd.proxy.transparent.tls_hello import NOT_TLS, HelloReader, Opening
from sandboxd_client.records import dataclass

_METHOD: Final = re.compile(rb"[A-Z][A-Z-]{0,31} ")
_PART_OF_METHOD: Final = re.compile(rb"[A-Z][A-Z-]{0,31}")
_TERMINATE: Final = "sandboxd settings add sandbox.network.tls.terminate {host}"
_NOT_TRUSTED: Final = (
    "let the program trust the certificates of $SSL_CERT_FILE; if it only trusts its own, pass it untouched: "
    "sandboxd settings add sandbox.network.tls.exclude {host}"
)
MOST_TLS: Final = 1024
"""Connections of one command whose TLS ends here at a time; further ones wait. Each takes about 70 KB."""
MOST_PREPARED: Final = 16
"""Greetings of one command for servers that are made before its client begins."""
_RESTART: Final = "start the command again: its trust in certificates is older than this setting"


@dataclass(slots=True, eq=False)
class RequestTunnel:
    """One tunnel.

    `authority` is set once TLS ends here, `fault` by a handshake with the server that failed."""

    client: Stream
    outbound: Outbound
    limits: ProxyLimits
    connection: OutboundConnection
    authority: Authority | None = None
    fault: DialError | None = None
    is_used: bool = False
    offered: tuple[str, ...] = (HTTP1,)
    """Protocols for the next connection to the server."""
    greeting: tuple[Authority, tuple[str, ...], TlsEnd] | None = None
    """One for a server and such an offer, made while the client was computing its own."""
    held: int = 0
    """Bytes of the beginning that are kept, counted in the share."""

    def hold(self, size: int) -> None:
        self.held += size
        self.client.share.held += size

    @property
    def host(self) -> Host:
        return self.connection.host

    @property
    def port(self) -> int:
        return self.connection.port

    @property
    def secure(self) -> bool:
        """Return whether TLS ends here."""
        return self.authority is not None

    async def open(self) -> OriginStream:
        """Return a connection to the server, first the tunnel's own. Raises Refused, DialError."""
        if self.fault is not None:
            raise self.fault
        if self.is_used:
            connection = await self.outbound.open_for(
                self.client, self.limits, self.connection.operation, self.host, self.port, captured=True
            )
        else:
            connection = self.connection
        self.is_used = True
        origin = OriginStream(connection, asyncio.get_running_loop(), self.client.share)
        if self.authority is not None:
            try:
                await _secure(origin, self._channel(self.authority), self.limits)
            except BaseException:
                self.outbound.release(connection)
                origin.close()
                raise
        return origin

    def prepare(self, authority: Authority, offered: tuple[str, ...]) -> None:
        """Make a greeting, which is sent if the client makes the same offer."""
        channel = authority.channel_to(self.host, offered)
        channel.shake_hands()
        self.greeting = authority, offered, channel

    def _channel(self, authority: Authority) -> TlsEnd:
        made, self.greeting = self.greeting, None
        if made is not None and made[:2] == (authority, self.offered):
            return made[2]
        return authority.channel_to(self.host, self.offered)

    def abandon(self) -> None:
        """Close the tunnel's own connection, unless it is in use or was."""
        if not self.is_used:
            self.is_used = True
            self.outbound.release(self.connection)
            self.connection.socket.close()


class RequestTunnels:
    """The maker of such tunnels for one command; `authority` returns the one that its sandbox trusts."""

    def __init__(self, outbound: Outbound, limits: ProxyLimits, authority: Callable[[], Authority | None]) -> None:
        self._outbound = outbound
        self._limits = limits
        self._authority = authority
        self._slots = asyncio.Semaphore(MOST_TLS)
        self._offered: tuple[str, ...] = (HTTP1,)
        """Protocols that the last client offered, as the next one probably does."""
        self._prepared = 0

    async def serve(self, client: Stream, connection: OutboundConnection, first: bytes) -> None:
        """Serve a tunnel until it ends, after sending `first` to the client. Raises OSError."""
        client.commit()
        if first:
            client.is_tunnelled = True
            await client.send(first)
        tunnel = RequestTunnel(client, self._outbound, self._limits, connection)
        try:
            await self._serve(tunnel)
        finally:
            tunnel.hold(-tunnel.held)
            tunnel.abandon()

    async def _serve(self, tunnel: RequestTunnel) -> None:
        client, connection = tunnel.client, tunnel.connection
        covered = self._outbound.covers_requests(connection.host, connection.port)
        with self._preparing(tunnel):
            opening, begins_request = await self._read_opening(tunnel, covered)
        if opening.is_tls and self._outbound.ends_tls(connection.host, connection.port):
            if self._slots.locked():  # it may have to wait for long
                tunnel.greeting = None
            async with self._slots:
                tunnel.hold(-tunnel.held)
                await self._serve_tls(tunnel, opening)
            return
        tunnel.greeting = None
        tunnel.hold(-tunnel.held)
        if not covered:
            tunnel.is_used = True
            await self._outbound.tunnels.run(client, connection, b"", self._outbound.inspect(connection))
        elif begins_request:
            await serve_requests(client, self._outbound, self._limits, tunnel)
        else:
            what = "TLS, which does not end in the proxy" if opening.is_tls else "another protocol than HTTP/1.1"
            self._refuse(tunnel, f"speaks {what}, so its requests cannot be seen", _TERMINATE)

    @contextlib.contextmanager
    def _preparing(self, tunnel: RequestTunnel) -> Iterator[None]:
        """Prepare for TLS before the client begins, while it computes its own greeting."""
        authority = self._authority()
        if self._prepared >= MOST_PREPARED or authority is None or tunnel.client.has_pending:
            yield
            return
        self._prepared += 1
        try:
            if self._outbound.ends_tls(tunnel.host, tunnel.port):
                begun = time.perf_counter()
                tunnel.prepare(authority, self._offered)
                tunnel.client.share.spend_since(begun)
            yield
        finally:
            self._prepared -= 1

    async def _read_opening(self, tunnel: RequestTunnel, covered: bool) -> tuple[Opening, bool]:
        """Return how the client begins, and whether with a request. The bytes are read again later."""
        client, reader, seen = tunnel.client, HelloReader(), b""
        opening: Opening | None = None
        try:
            async with asyncio.timeout(self._limits.head_s if covered else None):
                while opening is None or (covered and not opening.is_tls and _PART_OF_METHOD.fullmatch(seen)):
                    if not covered and not seen and await _server_begins(client, tunnel.connection):
                        break
                    data = await client.receive()
                    if not data:
                        break
                    seen += data
                    tunnel.hold(len(data))
                    if client.share.held > self._limits.held_bytes:
                        raise ConnectionResetError("incomplete beginnings of the command's tunnels are too large")
                    opening = opening or reader.receive(data)
        except TimeoutError:
            pass  # what came until now decides
        client.unread(seen)
        return opening or NOT_TLS, _METHOD.match(seen) is not None

    async def _serve_tls(self, tunnel: RequestTunnel, opening: Opening) -> None:
        host, client = tunnel.host, tunnel.client
        authority = self._authority()
        if authority is None:
            self._refuse(tunnel, "ends its TLS here, which this command does not expect", _RESTART)
            return
        if not _names(opening, host):
            self._refuse(tunnel, "begins with a TLS handshake for another host", "", Reason.SERVER_NAME)
            return
        self._offered = tuple(name for name in (HTTP2, HTTP1) if name.encode() in opening.protocols) or (HTTP1,)
        tunnel.authority, tunnel.offered = authority, self._offered
        origin = await self._shake_hands(tunnel, authority, self._offered)
        if client.protocol == HTTP2:
            from sandboxd.proxy.http2.session import serve_http2  # its library is an extra

            await serve_http2(client, self._outbound, self._limits, tunnel, origin, tunnel.fault)
        else:
            await serve_requests(client, self._outbound, self._limits, tunnel, origin)

    async def _shake_hands(
        self, tunnel: RequestTunnel, authority: Authority, offered: Collection[str]
    ) -> OriginStream | None:
        """Shake hands with server and client, at the same time where the server's choice of a protocol is known.

        Returns the connection to the server, if it could be made. Raises OSError when that to the client failed."""
        opening = asyncio.create_task(tunnel.open(), name=f"TLS to {tunnel.host.authority(tunnel.port)}")
        try:
            if HTTP2 in offered:
                await asyncio.wait([opening])
            else:
                await asyncio.sleep(0)  # the server is asked first, and computes meanwhile
            protocol = _protocol_of(opening, offered)
            async with asyncio.timeout(self._limits.head_s):
                await tunnel.client.share.turn()
                begun = time.perf_counter()
                channel = authority.channel_from(tunnel.host, protocol)
                tunnel.client.share.spend_since(begun)
                await tunnel.client.start_tls(channel)
            await asyncio.wait([opening])
            tunnel.offered = (HTTP1,)
            return self._opened(tunnel, opening)
        except BaseException as error:
            await self._give_up(opening)
            if isinstance(error, ConnectionError):  # programs send an alert, or only close
                self._report(tunnel, "ends its TLS here, and the program refuses the certificate", _NOT_TRUSTED)
            raise

    def _opened(self, tunnel: RequestTunnel, opening: asyncio.Task[OriginStream]) -> OriginStream | None:
        """Return the connection to the server, or note and report why there is none."""
        try:
            return opening.result()
        except DialError as error:
            tunnel.fault = error
            if error.slug == "tls_untrusted":
                decision = Decision(Behavior.DENY, Reason.SERVER_UNTRUSTED, error.message, hint=error.hint)
                self._outbound.report("TLS", tunnel.host, tunnel.port, decision)
        return None

    async def _give_up(self, opening: asyncio.Task[OriginStream]) -> None:
        """End the connection to a server whose client has failed."""
        opening.cancel()
        try:
            await asyncio.wait([opening])
        finally:  # cancelled once more, the task closes what it has itself
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                origin = opening.result()
                self._outbound.release(origin.connection)
                origin.close()

    def _refuse(
        self,
        tunnel: RequestTunnel,
        what: str,
        hint: str,
        reason: Reason = Reason.REQUEST_UNSEEN,
    ) -> None:
        tunnel.abandon()
        self._report(tunnel, what, hint, reason)
        tunnel.client.reset()

    def _report(self, tunnel: RequestTunnel, what: str, hint: str, reason: Reason = Reason.REQUEST_UNSEEN) -> None:
        text = f"a connection to {tunnel.host.authority(tunnel.port)} {what}"
        decision = Decision(Behavior.DENY, reason, text, hint=hint.replace("{host}", tunnel.host.uri))
        self._outbound.report(tunnel.connection.operation, tunnel.host, tunnel.port, decision)


async def _secure(origin: OriginStream, channel: TlsEnd, limits: ProxyLimits) -> None:
    """Shake hands with a server, and verify it. Raises DialError."""
    host = origin.connection.host
    try:
        async with asyncio.timeout(limits.head_s):
            await origin.start_tls(channel)
    except ServerUntrusted as error:
        raise DialError(
            "tls_untrusted",
            f"the certificate of {host} is not valid: {error}",
            hint="have the server's certificate corrected, or its authority added to those of this machine",
        ) from None
    except TimeoutError:
        raise DialError("connect_timeout", f"{host} did not complete the TLS handshake in time") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise DialError("tls_failed", f"the TLS handshake with {host} failed: {why}") from None


def _protocol_of(opening: asyncio.Task[OriginStream], offered: Collection[str]) -> str:
    """Return the protocol for the client: the server's, or without a server one that the client offers."""
    if HTTP2 not in offered:
        return HTTP1
    if not opening.cancelled() and opening.exception() is None:
        return opening.result().protocol or HTTP1
    return HTTP1 if HTTP1 in offered else HTTP2


def _names(opening: Opening, host: Host) -> bool:
    """Return whether a handshake is for this host; one without a name is."""
    if not opening.is_readable:
        return False
    try:
        return opening.server_name is None or parse_wire_host(opening.server_name) == host
    except HostSyntaxError:
        return False


async def _server_begins(client: Stream, connection: OutboundConnection) -> bool:
    """Wait for the first bytes of either side; return whether they are the server's."""
    if client.has_pending:
        return False
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[bool] = loop.create_future()

    def wake(server: bool) -> None:
        if not woken.done():
            woken.set_result(server)

    places = (client.socket.fileno(), connection.socket.fileno())
    for place, server in zip(places, (False, True), strict=True):
        loop.add_reader(place, wake, server)
    try:
        return await woken
    finally:
        for place in places:
            loop.remove_reader(place)
