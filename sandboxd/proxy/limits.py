"""Time and size limits of the proxies, in one record."""

from __future__ import annotations

import sys

from sandboxd.proxy.fair_share import Turns
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits of one command's proxies; times in seconds."""

    head_s: float = 30.0
    """From the accept, or the first byte of a request head or SOCKS greeting, to its end."""
    idle_s: float = 300.0
    """A kept-alive client connection without a request."""
    resolve_s: float = 20.0
    connect_s: float = 15.0
    """All attempts at all addresses together. Shorter than in curl and most libraries, so the proxy answers first."""
    parent_s: float = 30.0
    """Until a parent proxy reports its connection, name resolution included."""
    response_s: float = 900.0
    """From a plain HTTP request to the head of its answer. Long, because language models can take minutes."""
    half_closed_s: float = 60.0
    """How long a client that closed its sending side is assumed to wait for an answer."""
    linger_s: float = 2.0
    """Reading time after a refusal, so that a client in mid-upload gets the answer instead of a reset."""
    dns_idle_s: float = 20.0
    """A DNS connection without a complete question, or one that does not read its answers."""
    interim_answers: int = 32
    """1xx answers to one request."""
    held_bytes: int = 4 << 20
    """Bytes held for one command: incomplete heads, and requests that wait for a prompt."""
    connections: int = 4096
    """Connections of one command; further ones wait in the backlog. `Room` limits all commands together."""
    accept_retry_s: float = 0.1
    """After running out of descriptors."""


DEFAULT = ProxyLimits()


class Room:
    """The turns and connections that all commands of a daemon share.

    The limit keeps one session from taking every descriptor. `descriptors` is the daemon's limit."""

    def __init__(self, descriptors: int, turns: Turns | None = None) -> None:
        self.most = max(descriptors * 3 // 8, 8) if descriptors > 0 else sys.maxsize  # RLIM_INFINITY
        self.taken = 0
        self.turns = turns or Turns()


class SessionRoom:
    """Part of the room that the commands of one session have taken."""

    def __init__(self, whole: Room) -> None:
        self._whole = whole
        self._taken = 0
        self.turns = whole.turns

    def has_some(self, own: int) -> bool:
        """Return whether a command of the session with `own` connections may open one more.

        It may have as many as it leaves to the others, and its session twice as many."""
        left = self._whole.most - self._whole.taken
        return own < left and self._taken < 2 * left

    def count(self, change: int) -> None:
        """Record a connection that begins (1) or ends (-1)."""
        self._taken += change
        self._whole.taken += change
