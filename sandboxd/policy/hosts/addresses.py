"""Addresses that an allowed *name* must not lead to.

An allow rule for a name trusts its owner with that name, not with this machine or its neighbours: a name server could
point it at a service on loopback or at a cloud's metadata. So the addresses of the table are refused, in every form,
unless a rule allows the very address or the name was pinned with `--resolve`.

Private networks (`PRIVATE`) are not in the table, because many companies have their hosts there: a rule that names a
host or a domain covers them. `*` means the Internet and does not, unless the preset `private-networks` says so.
`sandbox.network.deniedResolvedAddresses` can refuse them altogether. Nothing answers in the documentation networks,
where the plain time-out is the better message."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Final

from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd_client.records import dataclass

IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class AddressRefusal:
    """The reason why an address is refused, and its `network`."""

    network: str
    text: str
    listed: bool = False
    """The range stands in `deniedResolvedAddresses`, not in the built-in table."""


REFUSED: Final[tuple[tuple[str, str], ...]] = (
    ("0.0.0.0/8", "the unspecified network, which reaches this machine"),
    ("127.0.0.0/8", "loopback of this machine"),
    ("169.254.0.0/16", "link-local, where clouds serve instance metadata and credentials"),
    ("100.64.0.0/10", "shared carrier space, also metadata of one cloud (100.100.100.200)"),
    ("168.63.129.16/32", "the host agent of one cloud"),
    ("192.0.0.0/24", "protocol assignments, also metadata of one cloud (192.0.0.192)"),
    ("198.18.0.0/15", "benchmark space, used for names inside sandboxes"),
    ("224.0.0.0/4", "multicast"),
    ("255.255.255.255/32", "broadcast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "the unspecified address, which reaches this machine"),
    ("::1/128", "loopback of this machine"),
    ("100::/64", "the discard prefix"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local, deprecated"),
    ("ff00::/8", "multicast"),
    ("fd73:616e:6462:78::/64", "used for names inside sandboxes"),
    ("fd00:ec2::/32", "metadata of one cloud"),
    ("fd20:ce::/32", "metadata of one cloud"),
    ("fd00:c1::/32", "metadata of one cloud"),
    ("fd00:42::42/128", "metadata of one cloud"),
)

PRIVATE: Final = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
"""Networks of companies and homes (RFC 1918, RFC 4193)."""

_RANGES: Final[dict[int, tuple[tuple[int, int, AddressRefusal], ...]]] = {
    version: tuple(
        (int(network.network_address), int(network.broadcast_address), AddressRefusal(str(network), text))
        for network, text in ((ip_network(row[0]), row[1]) for row in REFUSED)
        if network.version == version
    )
    for version in (4, 6)
}

_LOW: Final = 0xFFFFFFFF
_EMBEDDING_96: Final = {
    0x0: "IPv4-compatible",
    0xFFFF: "IPv4-mapped (RFC 4291)",
    0xFFFF0000: "IPv4-translated (RFC 2765)",
    0x64FF9B << 64: "NAT64 (RFC 6052)",
}
"""Upper 96 bits of prefixes whose last 32 bits are an IPv4 address."""
_NAT64_LOCAL: Final = 0x64FF9B0001
"""Upper 48 bits of the local-use NAT64 prefix 64:ff9b:1::/48 (RFC 8215)."""


def readings(address: IPAddress) -> tuple[IPAddress, ...]:
    """Return the address, and each IPv4 address that translators find in it."""
    if isinstance(address, IPv4Address):
        return (address,)
    value = int(address)
    found: list[int] = []
    if value >> 32 in _EMBEDDING_96 and value > 1:
        found.append(value & _LOW)
    if value >> 80 == _NAT64_LOCAL:
        found += _nat64_local(value)
    if value >> 112 == 0x2002:
        found.append(value >> 80 & _LOW)
    if value >> 96 == 0x20010000:
        found += [value >> 64 & _LOW, ~value & _LOW]
    if value >> 32 & 0xFDFFFFFF == 0x5EFE:
        found.append(value & _LOW)
    return (address, *(IPv4Address(number) for number in dict.fromkeys(found)))


def _nat64_local(value: int) -> list[int]:
    """Return the IPv4 addresses in a local-use NAT64 address (RFC 6052, 2.2).

    With a prefix of 48, 56 or 64 bits the address lies around the reserved byte (bits 64 to 71), with zeros behind;
    with 96 bits it is the end. The prefix in use is not known, so each counts."""
    found = [value & _LOW] if value & _LOW else []
    if not value & 0xFF_FFFF_FFFF:
        found.append((value >> 64 & 0xFFFF) << 16 | value >> 40 & 0xFFFF)
    if not value & 0xFFFF_FFFF:
        found.append((value >> 64 & 0xFF) << 24 | value >> 32 & 0xFFFFFF)
    if not value & 0xFF_FFFF:
        found.append(value >> 24 & _LOW)
    return found


def private_network(address: IPAddress) -> IPNetwork | None:
    """Return the private network that an address belongs to in any of its readings."""
    return next((network for reading in readings(address) for network in PRIVATE if reading in network), None)


def parse_networks(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Parse networks in CIDR form, or single addresses; raises ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)


def refuse_address(
    address: IPAddress, denied: Iterable[IPNetwork] = (), host_addresses: Iterable[IPAddress] = ()
) -> AddressRefusal | None:
    """Return the reason why `address` is refused in any of its readings, or None."""
    host_addresses = host_addresses if isinstance(host_addresses, (set, frozenset)) else frozenset(host_addresses)
    for reading in readings(address):
        value = int(reading)
        for first, last, refusal in _RANGES[reading.version]:
            if first <= value <= last:
                return refusal
        if reading in host_addresses:
            return AddressRefusal(str(reading), "an address of this machine")
        for network in denied:
            if reading in network:
                return AddressRefusal(str(network), "listed in deniedResolvedAddresses", listed=True)
    return None
