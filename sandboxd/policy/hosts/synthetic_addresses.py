"""The networks whose addresses stand for names inside sandboxes (`proxy/dns/synthetic_names.py` gives them out).
Neither leads anywhere outside: one is for benchmarks (RFC 2544), the other a unique local one (RFC 4193). Pure."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Final

from sandboxd.policy.hosts.host_patterns import IPAddress

NETWORK_V4: Final = IPv4Network("198.18.0.0/15")
NETWORK_V6: Final = IPv6Network("fd73:616e:6462:78::/64")
"""Chosen once and not at random: it exists inside sandboxes only, and is easy to know again in a log."""
OWN_V4: Final = NETWORK_V4[1]
OWN_V6: Final = NETWORK_V6[1]
"""The sandbox's own. A C library that is asked for addresses of a family "as configured" (AI_ADDRCONFIG) does not count
127.0.0.1 and ::1, and without another address would find no name at all."""


def is_synthetic(address: IPAddress) -> bool:
    """Whether an address is from the networks that only ever stand for names."""
    return address in (NETWORK_V6 if isinstance(address, IPv6Address) else NETWORK_V4)
