"""Servers of the other commands of a session: what listens in a namespace, and the rules that lead there. Pure.

Each command keeps a network namespace of its own, by which every connection is known to be its. Where another command
of the session has a server, these rules give a new connection to the daemon's transparent listener, which connects to
the server in the other namespace. What listens inside comes first.

| Packets to a loopback address, or the sandbox's own one | Rule |
| --- | --- |
| the first one of a TCP connection, to a server of another command, and nothing inside listens there | to the daemon |
| all else | unchanged, so that a port without a server refuses |

The rules are a table of their own, which is replaced in one transaction. It is evaluated before that of
`capture_rules.py`, which leaves all loopback traffic alone."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address

from sandboxd.backends.base import SessionServer
from sandboxd.backends.linux.network import netlink
from sandboxd.backends.linux.network.capture_rules import (
    DESTINATION,
    DNS_PORT,
    LISTENER_PORT,
    LOOPBACK_BYTES,
    LOOPBACK_PART,
    SANDBOX,
    TCP,
    local_chain,
    to_ports,
)
from sandboxd.backends.linux.network.netlink import Batch, Chain, Expression, Family, Rule, Table

OF_THE_DAEMON = frozenset({LISTENER_PORT, DNS_PORT, 1080, 3128})
"""Ports of the daemon's own listeners in each sandbox."""
MOST_SERVERS = 256
"""Servers of one command that others reach, and of all others that one command reaches."""
_NAME = "session"
_BEFORE_CAPTURE = -151
_PREROUTING = 0
_FLAGS, _SYN_ACK, _SYN = 13, b"\x12", b"\x02"
_LISTEN = 1 << 10
_IS_V6_ONLY = 11  # INET_DIAG_SKV6ONLY


def listening_query(family: Family) -> bytes:
    """Return the query for listening TCP sockets (inet_diag.h)."""
    return netlink.dump_sockets(struct.pack("=BBBBI48x", family, 6, 0, 0, _LISTEN))


def read_listening(answer: bytes) -> tuple[set[SessionServer], bool]:
    """Parse one part of the answer: servers of programs, and whether it was the last.

    Raises OSError, and struct.error for a malformed answer."""
    found: set[SessionServer] = set()
    for body in netlink.parts(answer):
        if body is None:
            return found, True
        family, (port,) = body[0], struct.unpack_from(">H", body, 4)
        if port in OF_THE_DAEMON:
            continue
        if family == Family.V4:
            found.add(SessionServer(IPv4Address(body[8:12]), port))
            continue
        only = any(kind == _IS_V6_ONLY and value[:1] == b"\1" for kind, value in netlink.attributes(body[72:]))
        address = IPv6Address(body[8:24])
        mapped = address.ipv4_mapped
        found.add(SessionServer(mapped or address, port, takes_v4=not only and address == IPv6Address("::")))
    return found, False


def rules_to(servers: Iterable[SessionServer]) -> tuple[tuple[Family, Batch], ...]:
    """Return a batch for each family that replaces the rules by those for these servers."""
    wanted = sorted(servers, key=lambda one: (one.port, str(one.address)))[:MOST_SERVERS]
    return tuple((family, netlink.replace_table(Table(_NAME, family, _chains(family, wanted)))) for family in Family)


def _chains(family: Family, servers: Sequence[SessionServer]) -> tuple[Chain, ...]:
    rules = [
        (*to_ports((one.port, one.port)), *where, netlink.jump("local"))
        for one in servers
        for where in _destinations(family, one)
    ]
    if not rules:
        return ()
    first: tuple[Rule, ...] = (
        (netlink.load_protocol(), netlink.compare(TCP, equal=False), netlink.accept()),
        (
            netlink.load_transport(_FLAGS, 1),
            netlink.mask(_SYN_ACK),
            netlink.compare(_SYN, equal=False),
            netlink.accept(),
        ),
    )
    arriving = Chain("in", (*first, *rules), hook=_PREROUTING, priority=_BEFORE_CAPTURE)
    return local_chain(family), arriving


def _destinations(family: Family, server: SessionServer) -> Iterator[tuple[Expression, ...]]:
    """Yield the tests for destinations of one family at which a server is reached."""
    address = server.address
    if not address.is_unspecified:
        if address.version == (4 if family is Family.V4 else 6):
            yield netlink.load_network(*DESTINATION[family]), netlink.compare(address.packed)
        return
    if address.version == 6 if family is Family.V6 else address.version == 4 or server.takes_v4:
        yield netlink.load_network(*LOOPBACK_PART[family]), netlink.compare(LOOPBACK_BYTES[family])
        yield netlink.load_network(*DESTINATION[family]), netlink.compare(SANDBOX[family].packed)
