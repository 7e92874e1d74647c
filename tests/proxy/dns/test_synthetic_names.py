"""Addresses that stand for names: one each, kept, and never a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.hosts.addresses import refuse_address
from sandboxd.policy.hosts.synthetic_addresses import NETWORK_V4, NETWORK_V6, SANDBOX_V4, SANDBOX_V6, is_synthetic
from sandboxd.proxy.dns.dns_answers import TTL_S
from sandboxd.proxy.dns.synthetic_names import FIRST, LAST, UNUSED_AFTER_S, NameTable, NoFreeAddress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def small(places: int) -> tuple[NameTable, Clock]:
    clock = Clock()
    return NameTable(clock=clock, first=0, last=places - 1), clock


def test_a_name_has_one_address_of_each_family_and_keeps_it() -> None:
    table = NameTable()
    v4, v6 = table.addresses_of("ok.test")
    assert table.addresses_of("ok.test") == (v4, v6)
    assert table.addresses_of("other.test") != (v4, v6)
    assert v4 in NETWORK_V4 and v6 in NETWORK_V6
    assert table.name_of(v4) == table.name_of(v6) == "ok.test"


@pytest.mark.parametrize(
    "text", ["198.18.0.0", "198.18.0.1", "198.18.2.0", "198.19.255.255", "127.0.0.1", "::1", "fd73:616e:6462:78::",
             "fd73:616e:6462:78:ffff:ffff:ffff:ffff", "fd73:616e:6462:79::100", "::ffff:198.18.1.0"],
)  # fmt: skip
def test_what_was_never_given_out_stands_for_nothing(text: str) -> None:
    table = NameTable()
    table.addresses_of("ok.test")
    assert table.name_of(ip_address(text)) is None
    table.hold(ip_address(text))()


def test_the_networks_lead_nowhere_outside() -> None:
    for network in (NETWORK_V4, NETWORK_V6):
        for place in (0, 1, FIRST, LAST):
            assert refuse_address(network[place], ()) is not None
            assert is_synthetic(network[place])
    assert not is_synthetic(ip_address("198.20.0.0")) and not is_synthetic(ip_address("fd73:616e:6462:79::"))
    assert SANDBOX_V4 in NETWORK_V4 and SANDBOX_V6 in NETWORK_V6


def test_a_hundred_thousand_names_without_a_mix_up() -> None:
    table = NameTable()
    names = [f"n{number}.ok.test" for number in range(100_000)]
    found = [table.addresses_of(name) for name in names]
    assert len({v4 for v4, _ in found}) == len({v6 for _, v6 in found}) == len(names)
    assert all(table.name_of(v4) == table.name_of(v6) == name for name, (v4, v6) in zip(names, found, strict=True))
    assert [table.addresses_of(name) for name in names[::997]] == found[::997]


def test_long_names_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command has the daemon remember is bounded in all, and not only in number."""
    monkeypatch.setattr("sandboxd.proxy.dns.synthetic_names.MOST_TEXT", 1000)
    table, clock = small(1000)
    for number in range(5):
        table.addresses_of(f"{number}" + "x" * 199)
    with pytest.raises(NoFreeAddress, match="5 names"):
        table.addresses_of("ok.test")
    clock.now += UNUSED_AFTER_S
    again = NameTable()
    again.resume(table.names)
    for number in range(9):
        assert table.addresses_of(f"{number}.ok.test")
    assert len(table) == 13 and len(again) == 5, "one long name made room for nine"


def test_an_address_is_reused_only_after_a_long_time_unused() -> None:
    assert UNUSED_AFTER_S >= 10 * TTL_S
    table, clock = small(3)
    a, b, c = (table.addresses_of(f"{name}.test")[0] for name in "abc")
    for _ in range(2):
        with pytest.raises(NoFreeAddress):
            table.addresses_of("d.test")
    clock.now += UNUSED_AFTER_S / 2
    table.addresses_of("a.test")
    held = table.hold(b)
    clock.now += UNUSED_AFTER_S / 2
    assert table.addresses_of("d.test")[0] == c, "a was asked for, b is connected to"
    assert table.name_of(c) == "d.test"
    with pytest.raises(NoFreeAddress):
        table.addresses_of("e.test")
    held()
    held()
    with pytest.raises(NoFreeAddress):
        table.addresses_of("e.test")
    clock.now += UNUSED_AFTER_S / 2
    assert table.addresses_of("e.test")[0] == a
    assert table.name_of(b) == "b.test", "only just released"
    clock.now += UNUSED_AFTER_S / 2
    assert table.addresses_of("f.test")[0] == b
    assert [table.name_of(one) for one in (a, b, c)] == ["e.test", "f.test", "d.test"]
    assert len(table) == 3


def test_several_connections_to_one_address_hold_it_each() -> None:
    table, clock = small(1)
    address = table.addresses_of("a.test")[1]
    holds = [table.hold(address) for _ in range(3)]
    for hold in holds:
        clock.now += 2 * UNUSED_AFTER_S
        with pytest.raises(NoFreeAddress):
            table.addresses_of("b.test")
        hold()
    clock.now += UNUSED_AFTER_S
    assert table.addresses_of("b.test")[1] == address


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["look", "hold", "release", "wait"])), max_size=60))
def test_whatever_happens_an_address_in_use_keeps_its_name(steps: list[tuple[int, str]]) -> None:
    """The model: what a program may still hold on to."""
    table, clock = small(4)
    known: dict[str, tuple[object, float]] = {}
    holds: dict[str, list[Callable[[], None]]] = {}
    for number, what in steps:
        name = f"n{number}.test"
        if what == "wait":
            clock.now += number * UNUSED_AFTER_S / 8
        elif what == "look":
            try:
                known[name] = table.addresses_of(name), clock.now
            except NoFreeAddress:
                in_use = [one for one, (_, at) in known.items() if holds.get(one) or clock.now - at < UNUSED_AFTER_S]
                assert len(in_use) == 4 and name not in in_use
        elif what == "hold" and name in known and table.name_of(known[name][0][0]) == name:  # type: ignore[index]
            holds.setdefault(name, []).append(table.hold(known[name][0][0]))  # type: ignore[index]
        elif what == "release" and holds.get(name):
            holds[name].pop()()
            known[name] = known[name][0], clock.now
        for one, (addresses, at) in known.items():
            if holds.get(one) or clock.now - at < UNUSED_AFTER_S:
                assert [table.name_of(address) for address in addresses] == [one, one]  # type: ignore[attr-defined]
