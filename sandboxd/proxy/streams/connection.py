"""Records of open connections to the outside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.host_patterns import Host, IPAddress
from sandboxd.policy.hosts.parent_proxies import ParentProxy
from sandboxd.proxy.session_bounds import Meter
from sandboxd_client.records import dataclass, field


@dataclass(eq=False, slots=True)
class OutboundConnection:
    """An open connection to the outside.

    `owner` is the task that serves it: cancelling the task ends the connection. `address` is None where only the parent
    proxy knows it. `parent` is the proxy in between; with `forward` it gets requests with whole URLs."""

    operation: str
    host: Host
    port: int
    decision: Decision
    address: IPAddress | None
    socket: socket.socket
    owner: asyncio.Task[None] | None = field(default=None, repr=False)
    parent: ParentProxy | None = None
    forward: bool = False
    is_inside: bool = False
    """True for a server inside the sandbox, which policy does not cover."""
    meter: Meter | None = field(default=None, repr=False)
    """Counts the bytes that are sent outside."""

    def is_to(self, host: Host, port: int) -> bool:
        return self.host == host and self.port == port


Opened = Callable[[OutboundConnection], None]
"""Receives each established connection."""
Closed = Callable[[OutboundConnection, int, int], None]
"""Receives each closed connection, with the bytes that a tunnel sent and received."""
