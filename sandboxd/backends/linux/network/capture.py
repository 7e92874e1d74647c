"""The capture of connections: what the machine supports, and the programs for it.

| Reach | Needs | Programs that ignore the proxy variables |
| --- | --- | --- |
| `EVERY_PORT` | nf_tables with `tproxy` and `socket` | reach what is allowed, on any port |
| `LISTED_PORTS` | entering the sandbox's network namespace | the same on 22, 80, 443 and the ports that rules name |
| none | | have no network |

The ability is probed once, on a real sandbox (`capture_probe.py`). From then on it is promised: a sandbox where it
cannot be set up does not start."""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.network import capture_rules, netlink
from sandboxd.backends.linux.network.capture_rules import DNS_PORT, LISTENER_PORT, LOOPBACK
from sandboxd.backends.linux.network.namespace_program import (
    DATAGRAM,
    MAX_SOCKETS,
    STREAM,
    Configure,
    NamespaceProgram,
    OpenSocket,
    SocketOption,
    SocketUse,
    Step,
)
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.network.netlink import Family
from sandboxd.plan.network import NetworkPlan
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd_client.records import dataclass

BACKLOG = 4096
_ANY: dict[Family, IPAddress] = {Family.V4: IPv4Address("0.0.0.0"), Family.V6: IPv6Address("::")}
# From linux/in.h and linux/in6.h; Python has not all of them.
_TRANSPARENT: dict[Family, SocketOption] = {Family.V4: (0, 19, 1), Family.V6: (41, 75, 1)}
_TELL_DESTINATION: dict[Family, SocketOption] = {Family.V4: (0, 8, 1), Family.V6: (41, 49, 1)}
_ONLY_V6: SocketOption = (41, 26, 1)
_REUSE_ADDRESS: SocketOption = (1, 2, 1)
"""Accepted sockets are bound to the ports of their destinations, and must not keep programs from listening there."""


SESSION_LOCALHOST = "session-localhost"
"""The layer by which the commands of a session reach each other's servers."""


class Reach(enum.Enum):
    """The extent of the capture; the value is the layer's name."""

    EVERY_PORT = "network-capture"
    LISTED_PORTS = "network-capture-ports"


@dataclass(frozen=True, slots=True)
class Ability:
    """The capture that this machine supports; `reason` explains why not more."""

    reach: Reach | None
    families: tuple[Family, ...] = ()
    reason: str = ""

    def layers(self, plan: NetworkPlan) -> tuple[str, ...]:
        if self.reach is None or not plan.transparent:
            return ()
        return (self.reach.value, SESSION_LOCALHOST) if self.reach is Reach.EVERY_PORT else (self.reach.value,)

    def warnings(self, plan: NetworkPlan) -> tuple[str, ...]:
        if not plan.transparent or self.reach is Reach.EVERY_PORT:
            return ()
        if self.reach is None:
            return (f"programs that ignore the proxy variables have no network: {self.reason}",)
        ports = listed_ports(plan, self.families)
        text = f"programs that ignore the proxy variables reach only the ports {_shown(ports)}: {self.reason}"
        return (text,)


NOTHING = Ability(None, reason="not probed yet")


def listed_ports(plan: NetworkPlan, families: Sequence[Family]) -> tuple[int, ...]:
    """Return the ports with separate listeners where not all are captured."""
    room = MAX_SOCKETS // len(families) - 2
    wanted = dict.fromkeys(plan.ports)
    for first, last in plan.local_ports:
        wanted.update(dict.fromkeys(range(first, min(last, first + room) + 1)))
    return tuple(wanted)[:room]


def _shown(ports: Sequence[int]) -> str:
    return ", ".join(map(str, ports[:8])) + (", ..." if len(ports) > 8 else "")


@dataclass(frozen=True, slots=True)
class Capture:
    """Steps, with the meaning of the sockets that they open.

    The first `captured` sockets accept connections. Then come the DNS sockets, a datagram and a stream one for each
    family. `routes` needs the loopback interface up, which bubblewrap does; the `rest` does not."""

    routes: Step
    rest: tuple[Step, ...]
    captured: int

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.routes, *self.rest

    def begin(self, worker: NamespaceWorker, namespace: int) -> asyncio.Future[list[socket.socket]]:
        """Start the steps at once; see `NamespaceWorker.start`."""
        return worker.start(namespace, NamespaceProgram.of(self.steps))

    def hand_over(self, sockets: list[socket.socket], listeners: Listeners) -> None:
        listeners.captured = sockets[: self.captured]
        listeners.dns_datagram = sockets[self.captured :: 2]
        listeners.dns_stream = sockets[self.captured + 1 :: 2]


@lru_cache(maxsize=64)
def capture_for(ability: Ability, plan: NetworkPlan) -> Capture | None:
    """Return the capture for a plan, None where nothing is captured."""
    if ability.reach is None or not plan.transparent:
        return None
    routes = Configure(netlink.everything_is_local(ability.families), "make all addresses local")
    steps: list[Step] = []
    if ability.reach is Reach.EVERY_PORT:
        rules = netlink.new_tables(capture_rules.tables(ability.families, plan.local_ports))
        steps.append(Configure(rules, "install packet rules"))
        steps += [_listen(family, LOOPBACK[family], LISTENER_PORT, transparent=True) for family in ability.families]
        captured = len(ability.families)
    else:
        ports = listed_ports(plan, ability.families)
        steps += [_listen(family, _ANY[family], port) for port in ports for family in ability.families]
        captured = len(ports) * len(ability.families)
    for family in ability.families:
        only = (_ONLY_V6,) if family is Family.V6 else ()
        steps += [
            OpenSocket(DATAGRAM, _ANY[family], DNS_PORT, SocketUse.BIND, options=(*only, _TELL_DESTINATION[family])),
            OpenSocket(STREAM, _ANY[family], DNS_PORT, SocketUse.LISTEN, 64, only),
        ]
    return Capture(routes, tuple(steps), captured)


def _listen(family: Family, address: IPAddress, port: int, *, transparent: bool = False) -> OpenSocket:
    options: list[SocketOption] = [_TRANSPARENT[family], _REUSE_ADDRESS] if transparent else []
    if family is Family.V6:
        options.append(_ONLY_V6)
    return OpenSocket(STREAM, address, port, SocketUse.LISTEN, BACKLOG, tuple(options))
