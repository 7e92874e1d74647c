"""The packet rules of a sandbox's network namespace, as data. Pure.

With every address local, each packet re-enters by lo unchanged, and a connection reaches any listener at that address
and port. These rules instead give every TCP connection to one listener, whatever its destination. The accepted socket
then has the destination as its local address. There is no address translation and no connection tracking, so no table
can fill up, and getpeername(2) returns the dialled address.

| Chain | Packets | Rule |
| --- | --- | --- |
| in | other than TCP | unchanged |
| in | TCP to 127.0.0.1 or ::1, on an allowed local port | to a listener inside, else to the daemon's listener |
| in | other TCP to loopback, to the sandbox's own address, and to port 53 (the responder) | unchanged |
| in | other TCP | to the daemon's listener |
| out | TCP; anything to loopback or the own address; UDP from or to port 53 | unchanged |
| out | all else: UDP, ICMP and others | refused, with an immediate error |

None of this protects the host, since no route leaves the namespace. It decides which error a program gets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from sandboxd.backends.linux.network import netlink
from sandboxd.backends.linux.network.netlink import Chain, Family, Rule, Table
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.hosts.synthetic_addresses import SANDBOX_V4, SANDBOX_V6

LISTENER_PORT = 1
"""Port of the daemon's listener at the loopback address. Below 1024, where programs inside cannot bind."""

DNS_PORT = 53
TCP, _UDP = b"\x06", b"\x11"
_PREROUTING, _LOCAL_OUT = 0, 3
_MANGLE = -150
LOOPBACK: dict[Family, IPAddress] = {Family.V4: IPv4Address("127.0.0.1"), Family.V6: IPv6Address("::1")}


def tables(families: Sequence[Family], local_ports: Sequence[tuple[int, int]]) -> tuple[Table, ...]:
    """Return the rules; `local_ports` are inclusive ranges."""
    return tuple(_table(family, local_ports) for family in families)


def _table(family: Family, local_ports: Sequence[tuple[int, int]]) -> Table:
    to_listener = _to_listener(family)
    stays_inside = [
        (netlink.load_network(*LOOPBACK_PART[family]), netlink.compare(LOOPBACK_BYTES[family]), netlink.accept()),
        (netlink.load_network(*DESTINATION[family]), netlink.compare(SANDBOX[family].packed), netlink.accept()),
    ]
    to_loopback = (netlink.load_network(*DESTINATION[family]), netlink.compare(LOOPBACK[family].packed))
    local = local_chain(family)
    arriving = Chain(
        "in",
        (
            (netlink.load_protocol(), netlink.compare(TCP, equal=False), netlink.accept()),
            *((*to_loopback, *to_ports(ports), netlink.jump(local.name)) for ports in local_ports),
            *stays_inside,
            (*to_ports((DNS_PORT, DNS_PORT)), netlink.accept()),
            to_listener,
        ),
        hook=_PREROUTING,
        priority=_MANGLE,
    )
    leaving = Chain(
        "out",
        (
            (netlink.load_protocol(), netlink.compare(TCP), netlink.accept()),
            *stays_inside,
            *(_udp_port(offset) for offset in (0, 2)),
            (netlink.reject(family),),
        ),
        hook=_LOCAL_OUT,
    )
    return Table("sandboxd", family, (local, arriving, leaving))


def local_chain(family: Family) -> Chain:
    """Return the chain that gives a packet to a listener inside, else to the daemon's."""
    is_inside = (netlink.load_is_transparent(), netlink.compare(b"\0"), netlink.accept())
    return Chain("local", (is_inside, (*_to_listener(family), netlink.accept())))


def _to_listener(family: Family) -> Rule:
    return netlink.give_to(family, LOOPBACK[family].packed, LISTENER_PORT)


SANDBOX: dict[Family, IPAddress] = {Family.V4: SANDBOX_V4, Family.V6: SANDBOX_V6}
DESTINATION = {Family.V4: (16, 4), Family.V6: (24, 16)}
LOOPBACK_PART = {Family.V4: (16, 1), Family.V6: (24, 16)}
LOOPBACK_BYTES = {Family.V4: b"\x7f", Family.V6: LOOPBACK[Family.V6].packed}


def to_ports(ports: tuple[int, int]) -> Rule:
    first, last = ports
    if first == last:
        return netlink.load_transport(2, 2), netlink.compare(struct.pack(">H", first))
    return netlink.load_transport(2, 2), netlink.between(struct.pack(">H", first), struct.pack(">H", last))


def _udp_port(offset: int) -> Rule:
    return (
        netlink.load_protocol(),
        netlink.compare(_UDP),
        netlink.load_transport(offset, 2),
        netlink.compare(struct.pack(">H", DNS_PORT)),
        netlink.accept(),
    )
