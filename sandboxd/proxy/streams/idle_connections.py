"""Idle connections to origins, for the next plain requests of the same command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.proxy.streams.connection import OutboundConnection

MOST_IDLE: Final = 8
"""Connections of one command; then the oldest is closed."""
IDLE_S: Final = 10.0
"""Shorter than most servers wait, so that few are closed while a request is under way."""


class IdleConnections:
    """The idle connections of one command; `release` records the end of one."""

    def __init__(self, release: Callable[[OutboundConnection], None]) -> None:
        self._release = release
        self._idle: dict[OutboundConnection, asyncio.TimerHandle] = {}
        self._closed = False

    def put(self, connection: OutboundConnection) -> None:
        """Keep a connection without unread bytes until the origin sends or ends, for a short time."""
        loop = asyncio.get_running_loop()
        connection.owner = None
        self._idle[connection] = loop.call_later(IDLE_S, self._drop, connection)
        loop.add_reader(connection.socket.fileno(), self._drop, connection)
        if self._closed or len(self._idle) > MOST_IDLE:
            self._drop(next(iter(self._idle)))

    def take(self, host: Host, port: int) -> OutboundConnection | None:
        """Return the connection to this origin that was used last, for the calling task."""
        for connection in reversed(self._idle):
            if connection.is_to(host, port):
                self._forget(connection)
                connection.owner = asyncio.current_task()
                return connection
        return None

    def drop_unless(self, allowed: Callable[[OutboundConnection], bool]) -> None:
        """Close connections that are not allowed by now."""
        for connection in tuple(self._idle):
            if not allowed(connection):
                self._drop(connection)

    def close(self) -> None:
        """Close all, and keep no more."""
        self._closed = True
        self.drop_unless(lambda connection: False)

    def _forget(self, connection: OutboundConnection) -> None:
        self._idle.pop(connection).cancel()
        asyncio.get_running_loop().remove_reader(connection.socket.fileno())

    def _drop(self, connection: OutboundConnection) -> None:
        self._forget(connection)
        self._release(connection)
        connection.socket.close()
