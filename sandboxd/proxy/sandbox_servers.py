"""Requests for a server of the sandbox itself that come to the proxy all the same: from clients that ignore `NO_PROXY`,
or read it differently (`[::1]`, `localhost.`, this machine's name). From here such an address would mean the host's
loopback; the program means its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

from sandboxd.errors import LaunchError
from sandboxd.policy.hosts.host_decisions import is_local_name
from sandboxd.policy.hosts.host_patterns import Host, IPAddress

LOOPBACK: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


class ServerNetwork(Protocol):
    """The network of the sandbox, as far as it is asked for servers."""

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket: ...

    async def is_listening(self, address: IPAddress, port: int) -> bool: ...


class SandboxServers:
    """`own_name` gives the name that this machine has inside. `is_local_port` says which ports stand for the host's
    where nothing listens inside. `never` are the ports of our own listeners there: a proxy is no server to reach."""

    def __init__(
        self,
        inside: ServerNetwork,
        *,
        own_name: Callable[[], str] = str,
        is_local_port: Callable[[int], bool] = lambda port: False,
        never: Collection[int] = (),
    ) -> None:
        self._inside = inside
        self._own_name = own_name
        self._is_local_port = is_local_port
        self._never = frozenset(never)

    async def connect(self, host: Host, port: int) -> tuple[socket.socket, IPAddress] | None:
        """A connection to a server inside; None when the host is not the sandbox, or nothing listens there."""
        if port in self._never:
            return None
        for address in self._addresses(host):
            try:
                # a connection to a port of the host's would come back to us as a captured one
                if self._is_local_port(port) and not await self._inside.is_listening(address, port):
                    continue
                return await self._inside.connect_inside(address, port), address
            except (OSError, LaunchError):
                continue
        return None

    def _addresses(self, host: Host) -> tuple[IPAddress, ...]:
        if host.address is not None:
            return (host.address,) if host.address.is_loopback else ()
        return LOOPBACK if is_local_name(host) or host.name == self._own_name().lower().rstrip(".") else ()
