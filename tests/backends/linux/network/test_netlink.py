"""Netlink messages and programs for network namespaces, as bytes. The kernel's opinion is in
test_namespace_worker.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.network import capture_rules, netlink
from sandboxd.backends.linux.network.capture import Ability, Reach, capture_for, listed_ports
from sandboxd.backends.linux.network.namespace_program import (
    DATAGRAM,
    FIRST_STEP,
    MAX_SOCKETS,
    STREAM,
    Configure,
    Continuation,
    NamespaceProgram,
    OpenSocket,
    ProgramResult,
    SocketUse,
)
from sandboxd.backends.linux.network.netlink import Batch, Family
from sandboxd.errors import InternalError
from sandboxd.plan.network import NetworkPlan, network_plan
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.model import HostRule, NetworkPolicy, PortRange
from sandboxd.settings.origins import BUILT_IN

BOTH = (Family.V4, Family.V6)


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, flags and payload of each message; they fill the data."""
    while data:
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", data)
        assert 16 <= length <= len(data)
        yield kind, flags, data[16:length]
        data = data[-(-length // 4) * 4 :]


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind = struct.unpack_from("=HH", data)
        assert 4 <= length <= len(data)
        yield kind, data[4:length]
        data = data[-(-length // 4) * 4 :]


@given(st.lists(st.tuples(st.integers(0, 0x7FFF), st.binary(max_size=40)), max_size=5))
def test_attributes_are_padded_and_say_their_length(given_ones: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attribute(kind, value) for kind, value in given_ones)
    assert len(data) % 4 == 0
    assert list(attributes(data)) == given_ones


def test_a_route_for_every_address() -> None:
    batch = netlink.everything_is_local(BOTH)
    found = list(messages(batch.messages))
    assert (batch.protocol, batch.acknowledgements) == (0, len(found))
    for (kind, flags, payload), family, source in zip(found[::2], BOTH, ("127.0.0.1", "::1"), strict=True):
        assert kind == 24 and flags & 0x5 == 0x5  # RTM_NEWROUTE; to be done, and acknowledged
        assert payload[:8] == bytes([family, 0, 0, 0, 255, 3, 254, 2])
        assert dict(attributes(payload[12:])) == {4: struct.pack("=I", 1), 7: ip_address(source).packed}


def test_a_batch_is_all_or_nothing_and_has_one_answer() -> None:
    tables = capture_rules.tables(BOTH, [(5432, 5432), (8000, 8010)])
    batch = netlink.new_tables(tables)
    found = list(messages(batch.messages))
    assert [found[0][0], found[-1][0]] == [0x10, 0x11]
    inner = found[1:-1]
    assert all(kind >> 8 == 10 for kind, _, _ in inner)
    assert [bool(flags & 0x4) for _, flags, _ in inner] == [False] * (len(inner) - 1) + [True]
    assert batch.acknowledgements == 1
    chains = sum(len(table.chains) for table in tables)
    rules = sum(len(chain.rules) for table in tables for chain in table.chains)
    assert len(inner) == len(tables) + chains + rules


def steps(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        kind, length = struct.unpack_from("=II", data)
        assert length % 4 == 0 and 8 + length <= len(data)
        yield kind, data[8 : 8 + length]
        data = data[8 + length :]


def test_a_program_as_the_helper_reads_it() -> None:
    program = NamespaceProgram.of(
        (
            Configure(Batch(12, b"netlink", 3), "configure"),
            OpenSocket(STREAM, ip_address("127.0.0.1"), 80, SocketUse.LISTEN, 16, ((1, 2, 3), (4, 5, -6))),
            OpenSocket(DATAGRAM, ip_address("::1"), 53, SocketUse.BIND),
        )
    )
    (first, batch), (second, listen), (third, bind) = steps(program.encoded)
    assert (first, second, third, program.sockets) == (1, 2, 2, 2)
    assert batch == struct.pack("=II", 12, 3) + b"netlink\0"
    assert struct.unpack_from("=6I", listen) == (2, 1, 0, 1, 16, 16)
    assert listen[24:32] == bytes([2, 0, 0, 80, 127, 0, 0, 1])
    assert listen[52:] == struct.pack("=IIiIIi", 1, 2, 3, 4, 5, -6)
    assert struct.unpack_from("=6I", bind) == (10, 2, 0, 0, 0, 28)
    assert bind[24:28] == bytes([10, 0, 0, 53]) and bind[32:48] == ip_address("::1").packed
    assert program.describe(FIRST_STEP) == "cannot configure"
    assert program.describe(FIRST_STEP + 1) == "cannot listen at 127.0.0.1, port 80"
    assert "enter" in program.describe(3) and "unknown" in program.describe(FIRST_STEP + 3)


def test_what_the_helper_would_not_take() -> None:
    listen = OpenSocket(STREAM, ip_address("127.0.0.1"), 80, SocketUse.LISTEN)
    for wrong in ((), (listen,) * (MAX_SOCKETS + 1), (Configure(Batch(0, bytes(70_000), 1), "send a lot"),)):
        with pytest.raises(InternalError):
            NamespaceProgram.of(wrong)


@given(st.binary(max_size=12))
def test_an_answer_is_whole_or_an_error(data: bytes) -> None:
    if len(data) == 8:
        assert ProgramResult.decode(data) == ProgramResult(*struct.unpack("=II", data))
    else:
        with pytest.raises(ValueError, match=f"{len(data)} bytes"):
            ProgramResult.decode(data)


def test_every_reach_has_a_program_that_fits() -> None:
    many = NetworkPlan(ports=tuple(range(1000, 3000)), local_ports=((1, 65535),))
    for reach in Reach:
        for families in (BOTH, BOTH[:1]):
            for plan in (NetworkPlan(), many):
                made = capture_for(Ability(reach, families), plan)
                assert made is not None
                assert NamespaceProgram.of((*made.steps, Continuation())).sockets == made.captured + 2 * len(families)
    assert capture_for(Ability(None), many) is None
    assert capture_for(Ability(Reach.EVERY_PORT, BOTH), NetworkPlan(transparent=False)) is None


def test_ports_that_somebody_is_likely_to_want() -> None:
    texts = ("ok.test:5432", "*.ok.test:443", "no.test")
    allowed = tuple(HostRule(HostPattern.parse(text), BUILT_IN) for text in texts)
    ranges = (PortRange(8000, 8010), PortRange(5, 5), PortRange(8005, 8020), PortRange(8021, 8021))
    plan = network_plan(NetworkPolicy(allowed=allowed, allow_local_ports=ranges))
    assert plan.ports == (22, 80, 443, 5432)
    assert plan.local_ports == ((5, 5), (8000, 8021))
    assert listed_ports(plan, BOTH)[:5] == (22, 80, 443, 5432, 5)


def test_warnings_say_what_is_missing_and_why() -> None:
    plan = NetworkPlan()
    assert Ability(Reach.EVERY_PORT, BOTH).warnings(plan) == ()
    assert Ability(Reach.EVERY_PORT, BOTH).layers(plan) == ("network-capture", "session-localhost")
    (some,) = Ability(Reach.LISTED_PORTS, BOTH, "no nf_tables").warnings(plan)
    assert "22, 80, 443" in some and "no nf_tables" in some
    (none,) = Ability(None, reason="not permitted").warnings(plan)
    assert "have no network" in none and "not permitted" in none
    off = NetworkPlan(transparent=False)
    assert Ability(None, reason="x").warnings(off) == () == Ability(Reach.EVERY_PORT, BOTH).layers(off)


def test_a_list_of_unix_sockets_in_parts() -> None:
    """One with a file, one with another attribute before it, one without any; then the end."""
    head = struct.pack("=4BI8s", 1, 1, 10, 0, 7, bytes(8))
    file = netlink.attribute(1, struct.pack("=II", 9, 0x800001))
    named = netlink.attribute(0, b"/odd\xff") + netlink.attribute(1, struct.pack("=II", 10, 0x800001))
    part = netlink.message(20, 2, head + file) + netlink.message(20, 2, head + named) + netlink.message(20, 2, head)
    assert netlink.read_unix_sockets(part) == ({(0x800001, 9): "", (0x800001, 10): "/odd\udcff"}, False)
    assert netlink.read_unix_sockets(netlink.message(3, 2, bytes(4))) == ({}, True)
    with pytest.raises(FileNotFoundError):
        netlink.read_unix_sockets(netlink.message(2, 0, struct.pack("=i", -2) + bytes(16)))
