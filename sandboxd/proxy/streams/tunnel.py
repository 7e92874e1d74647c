"""A tunnel between a client and an outside connection, and its hand-over."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from sandboxd.handover.record import Descriptor
from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.host_patterns import Host, IPAddress
from sandboxd.policy.hosts.parent_proxies import ParentProxy
from sandboxd.proxy.streams.connection import OutboundConnection
from sandboxd.proxy.streams.relay import DirectionRecord, Inspect, SocketRelay
from sandboxd.proxy.streams.stream import Stream
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class TunnelRecord:
    """One tunnel in the hand-over document."""

    client: Descriptor
    origin: Descriptor
    operation: str
    host: Host
    port: int
    decision: Decision
    address: IPAddress | None
    outward: DirectionRecord
    inward: DirectionRecord
    parent: ParentProxy | None = None
    forward: bool = False
    is_inside: bool = False


class ConnectionOwner(Protocol):
    """The owner of the connections to the outside (`outbound.Outbound`)."""

    def resume(self, record: TunnelRecord, sock: socket.socket) -> OutboundConnection: ...

    def inspect(self, connection: OutboundConnection) -> Inspect | None: ...

    def forget(self, connection: OutboundConnection) -> None: ...

    def release(self, connection: OutboundConnection, sent: int = 0, received: int = 0) -> None: ...


class Tunnels:
    """The open tunnels of one command."""

    def __init__(self, outbound: ConnectionOwner) -> None:
        self._outbound = outbound
        self._open: dict[Stream, tuple[SocketRelay, OutboundConnection, Stream | None]] = {}

    async def run(
        self,
        client: Stream,
        connection: OutboundConnection,
        to_client: bytes,
        inspect: Inspect | None = None,
        origin: Stream | None = None,
    ) -> None:
        """Join both sockets until both directions have ended.

        `to_client` goes to the client first. `origin` is the stream that owns the connection's socket, if any."""
        if origin is not None and (client.is_secure or origin.is_secure):
            await _join(client, origin, to_client)
            return
        relay = SocketRelay(client.socket, connection.socket, share=client.share, meter=connection.meter)
        self._open[client] = relay, connection, origin
        try:
            await relay.run(client.take_pending(), to_client, inspect)
        finally:
            self._ended(client)

    async def resume(self, client: Stream, record: TunnelRecord) -> None:
        """Continue a tunnel of another process."""
        connection = self._outbound.resume(record, socket.socket(fileno=record.origin))
        inspect = None if record.outward.inspected else self._outbound.inspect(connection)
        relay = SocketRelay(client.socket, connection.socket, share=client.share, meter=connection.meter)
        self._open[client] = relay, connection, None
        try:
            await relay.resume(record.outward, record.inward, inspect)
        finally:
            self._ended(client)

    def _ended(self, client: Stream) -> None:
        found = self._open.pop(client, None)
        if found is not None:
            relay, connection, origin = found
            if origin is None:  # otherwise its owner releases it
                self._outbound.release(connection, *relay.moved)

    @property
    def unseen(self) -> set[OutboundConnection]:
        """Return the connections whose bytes pass without a look at requests."""
        return {connection for _, connection, origin in self._open.values() if origin is None}

    def __contains__(self, client: Stream) -> bool:
        return client in self._open

    def hand_over(self, client: Stream) -> TunnelRecord | None:
        """Release a client's tunnel, so that its task ends. None when it is ending."""
        found = self._open.get(client)
        if found is None:
            return None
        relay, connection, origin = found
        state = relay.detach()
        if state is None:
            return None
        del self._open[client]
        self._outbound.forget(connection)
        client.keep()
        if origin is not None:
            origin.keep()
        outward, inward = state
        return TunnelRecord(
            Descriptor(client.socket.detach()),
            Descriptor(connection.socket.detach()),
            connection.operation,
            connection.host,
            connection.port,
            connection.decision,
            connection.address,
            outward,
            inward,
            connection.parent,
            connection.forward,
            connection.is_inside,
        )


async def _join(client: Stream, origin: Stream, to_client: bytes) -> None:
    """Copy content in both directions until one side ends. Raises OSError."""
    await client.send(to_client)

    async def copy(source: Stream, sink: Stream) -> None:
        while data := await source.receive():
            await sink.send(data)

    directions = [asyncio.create_task(copy(*pair), name="join") for pair in ((client, origin), (origin, client))]
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in done:
            direction.result()
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.wait(directions)
