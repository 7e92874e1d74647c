"""Synthetic addresses: addresses inside a sandbox that stand for names.

A looked-up name gets an address from networks without routes (`policy/hosts/synthetic_addresses.py`), and a captured
connection to this address is one to the name. A name has the same place in both networks, and keeps it while the
command lives. Only when every place is taken, a place unused for an hour is given to another name."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

from sandboxd.errors import HostError
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.hosts.synthetic_addresses import NETWORK_V4, NETWORK_V6

FIRST: Final = 256
LAST: Final = NETWORK_V4.num_addresses - 257
MOST_TEXT: Final = 2 << 20
"""Characters of all names. They stay for the command's lifetime, and are written with every crash entry."""
UNUSED_AFTER_S: Final = 3600.0
"""How long after its last use a program may keep an address: sixty times the TTL (`TTL_S` of `dns_answers`)."""


class SyntheticNames(Protocol):
    """The mapping of one command's synthetic addresses to names."""

    def name_of(self, address: IPAddress) -> str | None:
        """Return the canonical name of a synthetic address, None for any other address."""

    def hold(self, address: IPAddress) -> Callable[[], None]:
        """Keep the address for its name; return the function that releases it once."""


class NoSyntheticNames:
    """The mapping without any name."""

    def name_of(self, address: IPAddress) -> str | None:
        return None

    def hold(self, address: IPAddress) -> Callable[[], None]:
        return lambda: None


NO_NAMES: Final = NoSyntheticNames()


class NoFreeAddress(HostError):
    """Every synthetic address may still be in use."""


class NameTable:
    """The `SyntheticNames` of one command, as its name service assigns them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, first: int = FIRST, last: int = LAST) -> None:
        self._clock = clock
        self._first = first
        self._most = last - first + 1
        self._places: dict[str, int] = {}
        self._names: list[str] = []
        self._length = 0
        self._used_at = array("d")
        self._held: Counter[int] = Counter()
        self._next = 0
        self._none_free_before = float("-inf")

    def __len__(self) -> int:
        return len(self._places)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names in the order of their places, for the next daemon."""
        return tuple(self._names)

    def resume(self, names: Sequence[str]) -> None:
        """Restore the names of an earlier daemon. Call it before any look-up."""
        self._names = list(names[: self._most])
        self._places = {name: place for place, name in enumerate(self._names)}
        self._used_at = array("d", [self._clock()] * len(self._names))
        self._length = sum(map(len, self._names))

    def addresses_of(self, name: str) -> tuple[IPv4Address, IPv6Address]:
        """Return both synthetic addresses of a canonical name. Raises NoFreeAddress."""
        place = self._places.get(name)
        if place is None:
            place = self._take(name)
        self._used_at[place] = self._clock()
        number = self._first + place
        return NETWORK_V4[number], NETWORK_V6[number]

    def name_of(self, address: IPAddress) -> str | None:
        place = self._place(address)
        return None if place is None else self._names[place]

    def hold(self, address: IPAddress) -> Callable[[], None]:
        place = self._place(address)
        if place is None:
            return lambda: None
        self._held[place] += 1
        return _Hold(self, place)

    def _release(self, place: int) -> None:
        self._used_at[place] = self._clock()
        self._held[place] -= 1
        if not self._held[place]:
            del self._held[place]

    def _place(self, address: IPAddress) -> int | None:
        network = NETWORK_V6 if isinstance(address, IPv6Address) else NETWORK_V4
        if address not in network:
            return None
        place = int(address) - int(network.network_address) - self._first
        return place if 0 <= place < len(self._names) else None

    def _take(self, name: str) -> int:
        if len(self._names) < self._most and self._length + len(name) <= MOST_TEXT:
            place = len(self._names)
            self._names.append(name)
            self._used_at.append(0.0)
        else:
            place = self._recycle()
            self._length -= len(self._names[place])
            del self._places[self._names[place]]
            self._names[place] = name
        self._places[name] = place
        self._length += len(name)
        return place

    def _recycle(self) -> int:
        """Return an unused place, searched from where the last one was found."""
        now = self._clock()
        if now >= self._none_free_before:
            earliest = float("inf")
            for step in range(len(self._names)):
                place = (self._next + step) % len(self._names)
                free_at = self._used_at[place] + UNUSED_AFTER_S
                if place in self._held:
                    free_at = now + UNUSED_AFTER_S
                if free_at <= now:
                    self._next = (place + 1) % len(self._names)
                    return place
                earliest = min(earliest, free_at)
            self._none_free_before = earliest
        raise NoFreeAddress(
            "no_free_address",
            f"cannot assign an address: all {len(self._names):,} names of this command may still be in use",
            hint="split the work into several commands; each has separate addresses",
        )


class _Hold:
    """Callable that releases a place once."""

    __slots__ = ("_place", "_table")

    def __init__(self, table: NameTable, place: int) -> None:
        self._table: NameTable | None = table
        self._place = place

    def __call__(self) -> None:
        if self._table is not None:
            self._table._release(self._place)
            self._table = None
