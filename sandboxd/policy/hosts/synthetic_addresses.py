"""Networks of synthetic addresses, which stand for names inside sandboxes.

`proxy/dns/synthetic_names.py` assigns them. Neither leads outside: RFC 2544 (benchmarks) and RFC 4193 (unique local).
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Final

from sandboxd.policy.hosts.host_patterns import IPAddress

NETWORK_V4: Final = IPv4Network("198.18.0.0/15")
NETWORK_V6: Final = IPv6Network("fd73:616e:6462:78::/64")
"""A fixed prefix, easy to recognise in a log; it exists inside sandboxes only."""
SANDBOX_V4: Final = NETWORK_V4[1]
SANDBOX_V6: Final = NETWORK_V6[1]
"""Address of the sandbox itself: with loopback alone, AI_ADDRCONFIG would find no name of this family."""


def is_synthetic(address: IPAddress) -> bool:
    """Return whether an address is synthetic."""
    return address in (NETWORK_V6 if isinstance(address, IPv6Address) else NETWORK_V4)
