"""Requests at the proxy for a server inside the sandbox.

They come from clients that ignore `NO_PROXY` or read it differently (`[::1]`, `localhost.`, this machine's name). Seen
from the daemon such an address is the host's loopback; the program means the sandbox's."""

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
    """The part of the sandbox network that server look-ups need."""

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket: ...

    async def is_listening(self, address: IPAddress, port: int) -> bool: ...


class SandboxServers:
    """The servers inside one sandbox.

    `machine_name` returns that name inside. `is_local_port` selects ports that lead to the host where no server
    listens inside. `never` are the ports of the daemon's own listeners there, which are no servers to reach."""

    def __init__(
        self,
        inside: ServerNetwork,
        *,
        machine_name: Callable[[], str] = str,
        is_local_port: Callable[[int], bool] = lambda port: False,
        never: Collection[int] = (),
    ) -> None:
        self._inside = inside
        self._machine_name = machine_name
        self._is_local_port = is_local_port
        self._never = frozenset(never)

    async def connect(self, host: Host, port: int) -> tuple[socket.socket, IPAddress] | None:
        """Return a connection to a server inside, None when there is none."""
        if port in self._never:
            return None
        for address in self._addresses(host):
            try:
                # without a listener, a connection to a local port would be captured and come back
                if self._is_local_port(port) and not await self._inside.is_listening(address, port):
                    continue
                return await self._inside.connect_inside(address, port), address
            except (OSError, LaunchError):
                continue
        return None

    def _addresses(self, host: Host) -> tuple[IPAddress, ...]:
        if host.address is not None:
            return (host.address,) if host.address.is_loopback else ()
        return LOOPBACK if is_local_name(host) or host.name == self._machine_name().lower().rstrip(".") else ()
