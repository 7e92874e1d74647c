"""Which name a captured connection is for: the proxies' view of the addresses that the DNS responder gave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sandboxd.policy.hosts import IPAddress


class Names(Protocol):
    """The synthetic addresses of one command."""

    def name_of(self, address: IPAddress) -> str | None:
        """The canonical name that this address was given out for; None when it was not."""

    def hold(self, address: IPAddress) -> Callable[[], None]:
        """Keep the address for its name while a connection to it is open. What is returned lets go; calling it twice
        does nothing more."""


class NoNames:
    """Nothing was given out: every address means itself."""

    def name_of(self, address: IPAddress) -> str | None:
        return None

    def hold(self, address: IPAddress) -> Callable[[], None]:
        return lambda: None
