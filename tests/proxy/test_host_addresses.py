"""The addresses of this machine."""

from __future__ import annotations

from ipaddress import ip_address

from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.proxy.host_addresses import FRESH_FOR_S, HostAddresses, read_interface_addresses


def test_this_machine_has_its_loopback() -> None:
    assert ip_address("127.0.0.1") in read_interface_addresses()


def test_an_answer_is_reused_for_a_moment_and_changes_are_seen() -> None:
    now = 0.0
    machine = frozenset([ip_address("192.0.2.1")])
    reads = 0

    def read() -> frozenset[IPAddress]:
        nonlocal reads
        reads += 1
        return machine

    own = HostAddresses(read, lambda: now)
    assert own() == own() == machine and reads == 1
    machine = frozenset([ip_address("192.0.2.2")])
    assert own() != machine
    now = FRESH_FOR_S
    assert own() == machine and reads == 2


def test_when_reading_fails_the_last_answer_stays() -> None:
    now = 0.0
    machine = frozenset([ip_address("192.0.2.1")])

    def read() -> frozenset[IPAddress]:
        if now:
            raise OSError("no")
        return machine

    own = HostAddresses(read, lambda: now)
    assert own() == machine
    now = 100.0
    assert own() == machine
