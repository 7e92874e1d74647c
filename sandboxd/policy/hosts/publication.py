"""Published ports, `--publish [HOST:]PORT[:INNER]`.

| written | the host connects to | inside it is |
| --- | --- | --- |
| `3000` | 127.0.0.1:3000 | port 3000 |
| `8080:3000` | 127.0.0.1:8080 | port 3000 |
| `0:3000` | a free port of 127.0.0.1 | port 3000 |
| `127.0.0.2:8080:3000`, `[::1]:8080:3000` | that address, port 8080 | port 3000 |
| `/home/me/web.sock:3000` | the Unix socket of that path | port 3000 |

Only loopback addresses are accepted: for other machines the user has to set up a proxy. Every local user can connect
to a port of the loopback. A Unix socket is made with mode 0600, for its owner alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Final

from sandboxd.errors import CallerError, PolicyError
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, IPAddress, parse_host, quote
from sandboxd.policy.model import NetworkPolicy
from sandboxd_client.records import dataclass

FORM: Final = "[HOST:]PORT[:INNER] or /SOCKET:INNER"
MOST: Final = 64
"""Limit for one command."""

SANDBOX_PORTS: Final = frozenset({1, 53, 1080, 3128})
"""Ports at which sandboxd listens in each sandbox: capture, DNS, SOCKS and HTTP proxy.

A connection from outside would use the command's permissions, for any local user.
"""

_DEFAULT: Final = IPv4Address("127.0.0.1")
_WRITTEN: Final = re.compile(
    r"(?:(\[[^\]]*\]|[^:\[\]]*[^:\[\]0-9][^:\[\]]*):)?([0-9]{1,5})(?::([0-9]{1,5}))?", re.ASCII
)
_SOCKET: Final = re.compile(r"(/[^\0]*[^/\0]):([0-9]{1,5})", re.ASCII | re.DOTALL)
_LONGEST_SOCKET: Final = 107
"""Bytes of a path in sockaddr_un, unix(7)."""
_LONGEST: Final = 300
"""A host name has at most 253 characters; the expression tries each of them with each other."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A port of the host's loopback, or a Unix socket, that leads to `inner`."""

    address: IPAddress
    port: int
    inner: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Publication:
        """Parse a publication; raises CallerError."""
        if text.startswith("/"):
            return cls._of_socket(text)
        found = _WRITTEN.fullmatch(text) if len(text) <= _LONGEST else None
        if found is None:
            raise _invalid(text)
        host, port, inner = found[1], int(found[2]), int(found[3] or found[2])
        if not 0 <= port <= 65535 or not 1 <= inner <= 65535:
            raise _invalid(text)
        return cls(_DEFAULT if host is None else _loopback(host, text), port, inner)

    @classmethod
    def _of_socket(cls, text: str) -> Publication:
        found = _SOCKET.fullmatch(text)
        if found is None or not 1 <= int(found[2]) <= 65535:
            raise _invalid(text)
        if len(found[1].encode("utf-8", "surrogateescape")) > _LONGEST_SOCKET:
            raise CallerError(
                "publish_invalid",
                f"the path of a Unix socket has more than {_LONGEST_SOCKET} bytes: {quote(text)}",
                hint="choose a shorter path, such as one below $XDG_RUNTIME_DIR",
            )
        return cls(_DEFAULT, 0, int(found[2]), found[1])

    @property
    def outer(self) -> str:
        return self.path or Host.of_address(self.address).authority(self.port)

    def __str__(self) -> str:
        return f"{self.outer}:{self.inner}"


def check_publications(network: NetworkPolicy, wanted: Iterable[Publication]) -> None:
    """Refuse ports that policy does not publish; raises PolicyError."""
    for one in wanted:
        if not network.allow_local_binding:
            raise PolicyError(
                "local_binding_denied",
                f"port {one.inner} cannot be published: sandbox.network.allowLocalBinding is off",
                hint="to let servers in the sandbox be reached from this machine, switch it on in your own settings: "
                "sandboxd settings set sandbox.network.allowLocalBinding true",
            )
        if one.inner in SANDBOX_PORTS:
            raise PolicyError(
                "publish_conflict",
                f"port {one.inner} cannot be published: the sandbox's own proxy listens there",
                hint="let the server in the sandbox listen on another port, such as 3000",
            )
        # without a server inside, a connection would lead to the host's port, which may be this one
        if any(ports.first <= one.inner <= ports.last for ports in network.allow_local_ports):
            raise PolicyError(
                "publish_conflict",
                f"port {one.inner} cannot be published: inside it stands for the host's own port (allowLocalPorts)",
                hint="let the server listen on another port, or take it out of sandbox.network.allowLocalPorts",
            )


def _loopback(text: str, whole: str) -> IPAddress:
    try:
        host = parse_host(text)
    except HostSyntaxError as error:
        raise _invalid(whole) from error
    if host.name == "localhost":
        return _DEFAULT
    if host.address is None or not host.address.is_loopback:
        raise CallerError(
            "publish_not_loopback",
            f"a port is published on this machine only, not on {quote(text)}",
            hint="leave the host out, or write 127.0.0.1 or [::1]",
        )
    return host.address


def _invalid(text: str) -> CallerError:
    return CallerError(
        "publish_invalid", f"not a port to publish: {quote(text)}", hint=f"write {FORM}, such as 8080:3000"
    )
