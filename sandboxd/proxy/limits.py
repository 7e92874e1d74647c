"""How long and how much. One record, so that a test can make a limit small and a reader finds them all."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sandboxd.proxy.fair_share import Turns


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Times in seconds."""

    head_s: float = 30.0
    """From the first byte of a request head or SOCKS greeting, or from the accept, to its end."""
    idle_s: float = 300.0
    """A kept-alive client connection without a request."""
    resolve_s: float = 20.0
    connect_s: float = 15.0
    """All attempts at all addresses together. curl's and most libraries' own limits are longer, so ours answers."""
    parent_s: float = 30.0
    """Until a parent proxy says that it is connected: it resolves and dials in this time."""
    response_s: float = 900.0
    """From the request to the head of the answer, plain HTTP only. Long: models think for minutes."""
    half_closed_s: float = 60.0
    """How long a client that has closed its sending side is still believed to wait for an answer."""
    linger_s: float = 2.0
    """How long to go on reading after a refusal, so that a client in mid-upload reads the answer instead of a reset."""
    dns_idle_s: float = 20.0
    """A DNS connection without a whole question, or one that does not read its answers."""
    interim_answers: int = 32
    """1xx answers to one request."""
    held_bytes: int = 4 << 20
    """Of the heads of one command's requests and answers that are not complete, and of requests that wait for the
    answer to a question."""
    connections: int = 4096
    """Of one command at a time. At the limit accepting stops until one ends: the rest wait in the backlog. All commands
    together: `Room`."""
    accept_retry_s: float = 0.1
    """After running out of descriptors."""


DEFAULT = ProxyLimits()


class Room:
    """What all commands of a daemon share: `turns`, and how many connections they may have together, so that one of
    them does not take every descriptor from the others, and from the daemon. `descriptors` is how many there are."""

    def __init__(self, descriptors: int, turns: Turns | None = None) -> None:
        self._most = max(descriptors * 3 // 8, 8) if descriptors > 0 else sys.maxsize  # RLIM_INFINITY
        self._taken = 0
        self.turns = turns or Turns()

    def has_some(self, own: int) -> bool:
        """Whether a command that has so many of them may have one more: up to twice what it leaves to others."""
        return own < 2 * (self._most - self._taken)

    def take(self) -> None:
        self._taken += 1

    def give_back(self) -> None:
        self._taken -= 1
