"""The network inside a sandbox, played by loopback itself."""

from __future__ import annotations

import socket

from sandboxd.backends.base import SessionServer
from sandboxd.plan.host_facts import SocketFile
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.proxy.dial import connect_socket


class FakeInside:
    """`fault` is what connecting ends with, `tried` where to. `closed_to` are ports on which nothing listens."""

    def __init__(self, fault: Exception | None = None, closed_to: set[int] | None = None) -> None:
        self.tried: list[str] = []
        self.fault = fault
        self.closed_to = closed_to or set()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        raise AssertionError("it is its owner's")

    async def is_listening(self, address: IPAddress, port: int) -> bool:
        return port not in self.closed_to

    async def is_bound(self, file: SocketFile) -> bool:
        return False

    async def servers(self) -> frozenset[SessionServer]:
        return frozenset()

    async def lead_out(self, servers: frozenset[SessionServer]) -> None: ...

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket:
        self.tried.append(str(address))
        if self.fault is not None:
            raise self.fault
        if port in self.closed_to:
            raise ConnectionRefusedError
        return await connect_socket(address, port)
