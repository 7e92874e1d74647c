"""Subscribers to violations.

Events of all sessions are numbered in one sequence, so one number says what a subscriber has seen."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandboxd.policy.violation import Violation

if TYPE_CHECKING:
    from sandboxd.runtime.violations.violation_store import ViolationStore


KEPT_STORES = 32
"""Sessions that were a connection's own, as `sandboxd run` has one: people ask afterwards what was blocked in them."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The violations of a session were cleared by a client."""

    session_id: str
    count: int


Tell = Callable[[Any, Violation | Cleared, str], None]
"""Called with the subscriber, what happened and the cursor after it; never waits. A violation that comes again with the
same id has a higher count."""


@dataclass(frozen=True, slots=True)
class FeedRecord:
    """State of the sequence for the next daemon, so that cursors stay valid."""

    epoch: str
    last: int
    forgotten: int


class ViolationFeed:
    """One per daemon.

    A cursor is text that names the daemon too: one of an earlier daemon is known as such. `observe` hears of every
    violation once, when it is recorded. `before` is what an earlier daemon has handed over."""

    def __init__(
        self, observe: Callable[[Violation], None] = lambda violation: None, before: FeedRecord | None = None
    ) -> None:
        self._observe = observe
        self._epoch = secrets.token_hex(4) if before is None else before.epoch
        self._last = 0 if before is None else before.last
        self._forgotten = 0 if before is None else before.forgotten
        """The newest event that went with its session."""
        self._ended: deque[ViolationStore] = deque()
        self._subscribers: dict[Any, dict[str | None, Tell]] = {}

    def next_number(self) -> int:
        self._last += 1
        return self._last

    @property
    def cursor(self) -> str:
        return self._cursor(self._last)

    def _cursor(self, number: int) -> str:
        return f"{self._epoch}-{number}"

    def position(self, cursor: str | None) -> int | None:
        """The number of the last event a subscriber has seen; None when the cursor is not one of this daemon."""
        epoch, _, number = (cursor or "").partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return None
        return int(number)

    def subscribe(self, subscriber: object, session_id: str | None, tell: Tell) -> None:
        """Tell of the violations of one session, or with None of all; twice is once."""
        self._subscribers.setdefault(subscriber, {})[session_id] = tell

    def record(self) -> FeedRecord:
        return FeedRecord(self._epoch, self._last, self._forgotten)

    def subscribed(self, subscriber: object) -> tuple[str | None, ...]:
        """The sessions that this one hears of; None stands for all."""
        return tuple(self._subscribers.get(subscriber, ()))

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def unsubscribe(self, subscriber: object) -> None:
        self._subscribers.pop(subscriber, None)

    def session_ended(self, store: ViolationStore, *, keep: bool = False) -> None:
        """Forget the violations of a session; with `keep` only after more sessions ended."""
        if keep:
            if not store.total:
                return
            self._ended.append(store)
            if len(self._ended) <= KEPT_STORES:
                return
            store = self._ended.popleft()
        self._forgotten = max(self._forgotten, store.newest)

    @property
    def ended(self) -> list[ViolationStore]:
        """Those of sessions that have ended and are kept."""
        return list(self._ended)

    def forgotten(self, stores: list[ViolationStore], *, all_sessions: bool) -> int:
        """The newest event of these sessions that can no longer be told."""
        return max([store.forgotten for store in stores] + ([self._forgotten] if all_sessions else [0]))

    def tell(self, event: Violation | Cleared, number: int | None = None) -> None:
        """Tell subscribers of an event; `number` is its own, by default the last one."""
        if isinstance(event, Violation) and event.id == number:
            self._observe(event)
        cursor = self.cursor if number is None else self._cursor(number)
        for subscriber, wanted in list(self._subscribers.items()):
            tell = wanted.get(None) or wanted.get(event.session_id)
            if tell is not None:
                tell(subscriber, event, cursor)
