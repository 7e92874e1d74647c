"""Addresses that stand for names: what our DNS gives out instead of true ones, and how a connection is known again.

A command that looks a name up gets an address that belongs to this name alone, from networks that lead nowhere
(`policy/hosts/synthetic_addresses.py`). The connection that is captured on its way there is then one to the name. A
name has the same place in both networks and keeps it as long as the command lives; only when every place is taken, the
place of a name that nothing has used for an hour goes to another one.
"""

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
"""Characters of all names together. They are remembered for as long as the command lives, and written down whenever
something is kept for a crash."""
UNUSED_AFTER_S: Final = 3600.0
"""How long after the last look-up or connection a program may still hold on to an address: sixty times what our answers
say (`TTL_S` of `dns_answers`)."""


class SyntheticNames(Protocol):
    """Which name a captured connection is for: the synthetic addresses of one command."""

    def name_of(self, address: IPAddress) -> str | None:
        """The canonical name that this address was given out for; None when it was not."""

    def hold(self, address: IPAddress) -> Callable[[], None]:
        """Keep the address for its name while a connection to it is open. What is returned lets go; calling it twice
        does nothing more."""


class NoSyntheticNames:
    """Nothing was given out: every address means itself."""

    def name_of(self, address: IPAddress) -> str | None:
        return None

    def hold(self, address: IPAddress) -> Callable[[], None]:
        return lambda: None


NO_NAMES: Final = NoSyntheticNames()


class NoFreeAddress(HostError):
    """Every address stands for a name that may still be in use."""


class NameTable:
    """`SyntheticNames` of one command, as its name service gives them out. `clock` is monotonic, `first` and `last` are
    the places that are given out."""

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
        """All of them in the order of their places, for the next daemon."""
        return tuple(self._names)

    def resume(self, names: Sequence[str]) -> None:
        """Know the names that an earlier daemon gave addresses to. To be called before any other is asked for."""
        self._names = list(names[: self._most])
        self._places = {name: place for place, name in enumerate(self._names)}
        self._used_at = array("d", [self._clock()] * len(self._names))
        self._length = sum(map(len, self._names))

    def addresses_of(self, name: str) -> tuple[IPv4Address, IPv6Address]:
        """The two addresses that stand for a canonical name. Raises NoFreeAddress (`no_free_address`)."""
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
        """A place that nothing uses any more, looked for from where the last one was found."""
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
            f"this command has looked up {len(self._names):,} names, and each may still be in use",
            hint="split the work into several commands: each has addresses of its own",
        )


class _Hold:
    """Lets go when it is called; again does nothing."""

    __slots__ = ("_place", "_table")

    def __init__(self, table: NameTable, place: int) -> None:
        self._table: NameTable | None = table
        self._place = place

    def __call__(self) -> None:
        if self._table is not None:
            self._table._release(self._place)
            self._table = None
