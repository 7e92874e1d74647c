"""The origin connections of one client connection for its plain requests."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.fair_share import CONNECTION, Share
from sandboxd.proxy.http.http1 import BEGINNING, RequestHead
from sandboxd.proxy.http.http_heads import upgrade_of
from sandboxd.proxy.http.http_target import Target
from sandboxd.proxy.http.message_body import Framing
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound, Refused
from sandboxd.proxy.streams.connection import OutboundConnection
from sandboxd.proxy.streams.stream import Stream
from sandboxd.proxy.tls.faults import TlsFault

SAFE_TO_REPEAT = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginStream(Stream):
    """A connection to an origin; `fresh` until the first answer, `is_bound` by a login to its client."""

    __slots__ = ("connection", "fresh", "is_bound")

    def __init__(self, connection: OutboundConnection, loop: asyncio.AbstractEventLoop, share: Share) -> None:
        super().__init__(connection.socket, loop, share)
        self.connection = connection
        self.fresh = True
        self.is_bound = False

    async def send(self, data: bytes) -> None:
        """Send all bytes, within the limits for uploads. Raises OSError, Refused."""
        meter = self.connection.meter
        if meter is not None:
            if meter.left < len(data):
                raise Refused(self.connection.host, self.connection.port, meter.refuse())
            meter.count(len(data))
        await super().send(data)


class Tunnel(Protocol):
    """A tunnel to one origin, of which the requests are decided."""

    @property
    def host(self) -> Host: ...

    @property
    def port(self) -> int: ...

    @property
    def secure(self) -> bool: ...

    async def open(self) -> OriginStream:
        """Return a connection to the origin. Raises Refused, DialError."""
        ...


class Origins:
    """The origin connections of one client, at most one kept between requests.

    Those of plain requests go on to other clients of the command."""

    def __init__(
        self,
        client: Stream,
        outbound: Outbound,
        limits: ProxyLimits,
        tunnel: Tunnel | None = None,
        origin: OriginStream | None = None,
    ) -> None:
        """`tunnel` is that of requests inside a tunnel, `origin` its connection, if there is one already."""
        self._client = client
        self._outbound = outbound
        self._limits = limits
        self._tunnel = tunnel
        self._kept = origin

    async def get(self, head: RequestHead, framing: Framing, target: Target) -> OriginStream:
        """Return a connection for this request. Raises Refused, DialError.

        A kept one serves only requests that can be repeated should it be closed (RFC 9110, section 9.2.2), and only
        while policy still allows it."""
        repeats = head.method in SAFE_TO_REPEAT and not framing.has_body
        kept, self._kept = self._kept, None
        while kept is not None or (repeats and (kept := self._take_idle(target)) is not None):
            if (
                kept.connection.is_to(target.host, target.port)
                and (kept.fresh or repeats)
                and not (kept.connection.forward and upgrade_of(head.headers))
                and not kept.is_stale()
                and self._outbound.may_reuse(kept.connection)
            ):
                return kept
            self.drop(kept)
            kept = None
        return await self.open(head, target)

    def _take_idle(self, target: Target) -> OriginStream | None:
        connection = self._outbound.idle.take(target.host, target.port) if self._tunnel is None else None
        if connection is None:
            return None
        origin = OriginStream(connection, asyncio.get_running_loop(), self._client.share)
        origin.fresh = False
        return origin

    async def open(self, head: RequestHead, target: Target) -> OriginStream:
        """Open a new connection. Raises Refused, DialError."""
        self._client.share.spend(CONNECTION)
        if self._tunnel is not None:
            return await self._tunnel.open()
        connection = await self._outbound.open_for(
            self._client,
            self._limits,
            head.method,
            target.host,
            target.port,
            plain=not upgrade_of(head.headers),  # an upgrade needs a tunnel through each proxy in between
            known=BEGINNING,
        )
        return OriginStream(connection, asyncio.get_running_loop(), self._client.share)

    def keep(self, origin: OriginStream) -> None:
        origin.fresh = False
        self._kept = origin

    def drop_unless_kept(self, origin: OriginStream) -> None:
        if origin is not self._kept:
            self.drop(origin)

    def drop(self, origin: OriginStream) -> None:
        if origin.is_kept:
            return
        self._outbound.release(origin.connection)
        origin.close()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is None:
            return
        is_shared = self._tunnel is None and not (kept.is_bound or kept.is_kept or kept.is_stale())
        if not (is_shared and self._outbound.rest(kept.connection)):
            self.drop(kept)


def fault_of_tls(origin: OriginStream, error: BaseException | None) -> DialError | None:
    """Return the error for a request whose server ended the TLS connection, if that was because of TLS."""
    host = origin.connection.host
    if origin.asks_for_certificate:
        return DialError(
            "tls_failed",
            f"{host} asks for a certificate of the client, which the proxy has not, and ended the connection",
            hint=f"pass it untouched: sandboxd settings add sandbox.network.tls.exclude {host.uri}",
        )
    return DialError("tls_failed", f"{host} ended the TLS connection: {error}") if isinstance(error, TlsFault) else None
