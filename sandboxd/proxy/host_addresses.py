"""The addresses of the interfaces of this host, and its ports that no command reaches."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandboxd.policy.hosts.host_patterns import IPAddress

FRESH_FOR_S: Final = 2.0
"""How long an answer is reused, and so the delay until a new address (VPN, Wi-Fi) is known."""


class _Ifaddrs(ctypes.Structure):
    """The used part of `struct ifaddrs` (getifaddrs(3)), the same on Linux and macOS."""


_Ifaddrs._fields_ = [
    ("ifa_next", ctypes.POINTER(_Ifaddrs)),
    ("ifa_name", ctypes.c_char_p),
    ("ifa_flags", ctypes.c_uint),
    ("ifa_addr", ctypes.c_void_p),
]


def read_interface_addresses() -> frozenset[IPAddress]:
    """Return every IPv4 and IPv6 address of every interface. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found: set[IPAddress] = set()
    try:
        entry = head
        while entry:
            address = _read_sockaddr(entry.contents.ifa_addr)
            if address is not None:
                found.add(address)
            entry = entry.contents.ifa_next
    finally:
        libc.freeifaddrs(head)
    return frozenset(found)


def _read_sockaddr(pointer: int | None) -> IPAddress | None:
    if not pointer:
        return None
    if sys.platform == "darwin":  # sa_len, sa_family: one byte each
        family = ctypes.c_uint8.from_address(pointer + 1).value
    else:
        family = ctypes.c_uint16.from_address(pointer).value
    if family == socket.AF_INET:
        return IPv4Address(ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return IPv6Address(ctypes.string_at(pointer + 8, 16))
    return None


class HostAddresses:
    """Callable that returns the current addresses, cached for FRESH_FOR_S.

    When reading fails the last answer stays. The built-in table refuses loopback and link-local in any case."""

    def __init__(
        self,
        read: Callable[[], frozenset[IPAddress]] = read_interface_addresses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._known: frozenset[IPAddress] = frozenset()
        self._read_at = float("-inf")

    def __call__(self) -> frozenset[IPAddress]:
        now = self._clock()
        if now - self._read_at >= FRESH_FOR_S:
            self._read_at = now
            with contextlib.suppress(OSError):
                self._known = self._read()
        return self._known


class ClosedPorts:
    """Callable that returns the ports that connected clients have closed for every command.

    Servers of the user's own, such as that of `sandboxd web`, listen there. A port stays closed until its client goes,
    whose server ends with the connection to the daemon."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, tuple[frozenset[int], str]] = WeakKeyDictionary()
        self._now: frozenset[int] = frozenset()

    def __call__(self) -> frozenset[int]:
        return self._now

    def close(self, client: object, ports: frozenset[int], page: str = "") -> None:
        """Close these ports and no others for this client, which serves a page for questions there; none ends it."""
        self._of.pop(client, None)
        if ports:
            self._of[client] = ports, page
        self._now = frozenset().union(*(closed for closed, _ in self._of.values()))

    def of(self, client: object) -> tuple[tuple[int, ...], str]:
        """Return the ports that a client has closed, and the address of its page."""
        ports, page = self._of.get(client, (frozenset(), ""))
        return tuple(sorted(ports)), page

    def page(self) -> str:
        """Return the address of the newest page for questions, empty without one."""
        return next((page for _, page in reversed(list(self._of.values())) if page), "")
