"""Open connections to the outside, as records."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.host_patterns import Host, IPAddress
from sandboxd.policy.hosts.parent_proxies import ParentProxy


@dataclass(eq=False, slots=True)
class OutboundConnection:
    """An open connection to the outside. `owner` is the task that serves it: cancelling it ends the connection.
    `address` is None where only the parent proxy knows it. `parent` is the proxy it goes through; with `forward` it
    ends there, and the proxy is to be sent whole URLs."""

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
    """To a server of the sandbox itself, about which policy has nothing to say."""

    def is_to(self, host: Host, port: int) -> bool:
        return self.host == host and self.port == port


Opened = Callable[[OutboundConnection], None]
"""Hears of each connection that stands."""
Closed = Callable[[OutboundConnection, int, int], None]
"""Hears of each connection that has been closed, with the bytes that a tunnel sent and received."""
