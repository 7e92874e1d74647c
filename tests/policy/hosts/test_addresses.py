"""Refused addresses, in each form."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.hosts.addresses import REFUSED, parse_networks, readings, refuse_address


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "0.1.2.3", "169.254.0.1", "224.0.0.1", "239.1.2.3",
        "255.255.255.255", "240.0.0.1", "198.18.0.1", "198.19.255.255", "100.64.0.1", "100.127.255.255", "192.0.0.8",
        "::", "::1", "fe80::1", "febf::1", "fec0::1", "ff02::1", "100::1",
        # metadata of the clouds
        "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254",
        "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42",
        # the same behind translators and tunnels
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1:7f:0:1::",
        "64:ff9b:1:0:7f:0:100:0", "64:ff9b:1:a83f:81:1000::", "64:ff9b:1:a8:3f:8110::",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::", "2001::80ff:fffe",
        "2001:db8::5efe:7f00:1", "2001:db8::200:5efe:a9fe:a9fe",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    refusal = refuse_address(ip_address(text))
    assert refusal is not None and refusal.text and not refusal.listed
    assert ip_network(refusal.network)


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8", "1.1.1.1", "168.63.129.17", "169.253.255.255", "100.63.255.255", "100.128.0.0", "198.17.255.255",
        "198.20.0.0", "223.255.255.255", "192.0.1.0", "2606:4700::1111", "2a00:1450::1", "64:ff9b::8.8.8.8",
        "64:ff9b:1::8.8.8.8", "2002:808:808::1", "2001:db8::200:5efe:808:808",
        # private networks are left to the settings, and documentation networks answer nothing
        "10.0.0.5", "172.16.0.1", "192.168.1.1", "fc00::1", "fd12:3456::1", "192.0.2.1", "203.0.113.9",
    ],
)  # fmt: skip
def test_not_refused(text: str) -> None:
    assert refuse_address(ip_address(text)) is None


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_each_row_covers_its_ends_and_gives_a_reason(row: tuple[str, str]) -> None:
    network = ip_network(row[0])
    assert len(row[1]) > 5
    for address in (network.network_address, network.broadcast_address):
        assert refuse_address(address) is not None


@pytest.mark.parametrize("text", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::"])
def test_listed_networks_count_in_every_form(text: str) -> None:
    refusal = refuse_address(ip_address(text), parse_networks(["10.0.0.0/8"]))
    assert refusal is not None and refusal.listed and refusal.network == "10.0.0.0/8"
    assert refuse_address(ip_address(text), parse_networks(["10.2.0.0/16"])) is None


@pytest.mark.parametrize("text", ["192.0.2.7", "::ffff:192.0.2.7", "64:ff9b::192.0.2.7"])
def test_addresses_of_this_machine(text: str) -> None:
    refusal = refuse_address(ip_address(text), host_addresses=[IPv4Address("192.0.2.7")])
    assert refusal is not None and refusal.network == "192.0.2.7"
    assert refuse_address(IPv6Address("2001:db8::1"), host_addresses={IPv6Address("2001:db8::1")}) is not None


def test_networks_may_be_single_addresses_or_have_host_bits() -> None:
    assert [str(network) for network in parse_networks(["10.0.0.1", "10.1.2.3/8", "fd00::1"])] == [
        "10.0.0.1/32", "10.0.0.0/8", "fd00::1/128",
    ]  # fmt: skip
    with pytest.raises(ValueError):
        parse_networks(["ok.test"])


_REFUSED_V4 = st.sampled_from([network for text, _ in REFUSED if (network := ip_network(text)).version == 4]).flatmap(
    lambda network: st.integers(int(network.network_address), int(network.broadcast_address))
)


@given(_REFUSED_V4, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_no_embedding_opens_what_is_refused(number: int, prefix: int, noise: int) -> None:
    low = 0xFFFFFFFF
    forms = {
        "mapped": 0xFFFF << 32 | number,
        "translated": 0xFFFF0000 << 32 | number,
        "NAT64": 0x64FF9B << 96 | number,
        "6to4": 0x2002 << 112 | number << 80 | prefix,
        "Teredo client": 0x20010000 << 96 | noise << 64 | number ^ low,
        "Teredo server": 0x20010000 << 96 | number << 64 | prefix,
        "ISATAP": prefix << 64 | 0x5EFE << 32 | number,
        "ISATAP, universal": prefix << 64 | 0x2005EFE << 32 | number,
    }
    for name, value in forms.items():
        address = IPv6Address(value)
        assert refuse_address(address) is not None, f"{name}: {address}"
        assert IPv4Address(number) in readings(address), f"{name}: {address}"


@given(st.ip_addresses())
def test_every_address_is_its_own_first_reading(address: IPv4Address | IPv6Address) -> None:
    assert readings(address)[0] == address
    refuse_address(address)
