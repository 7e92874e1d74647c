"""What was blocked: the last hundred of each session in full, and how many there were in all. Never on disk.

`ViolationFeed` numbers the violations of all sessions in one row, so that one number says what a subscriber has seen.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandboxd.backends.base import Refusal
from sandboxd.policy.decision import Decision
from sandboxd.policy.display import neutralise
from sandboxd.policy.violation import Violation, ViolationKind, ViolationSource

KEPT = 100


@dataclass(frozen=True, slots=True)
class Cleared:
    """Somebody had the violations of a session forgotten."""

    session_id: str
    count: int


Tell = Callable[[Any, Violation | Cleared, str], None]
"""Called with the subscriber, what happened and the cursor after it; never waits."""


class ViolationFeed:
    """One per daemon. A cursor is text that names the daemon too: one of an earlier daemon is known as such."""

    def __init__(self, observe: Callable[[Violation], None] = lambda violation: None) -> None:
        self._observe = observe
        self._epoch = secrets.token_hex(4)
        self._last = 0
        self._lost = 0
        """The newest violation that went with its session."""
        self._subscribers: dict[Any, dict[str | None, Tell]] = {}

    def next_id(self) -> int:
        self._last += 1
        return self._last

    @property
    def cursor(self) -> str:
        return self._cursor(self._last)

    def _cursor(self, number: int) -> str:
        return f"{self._epoch}-{number}"

    def position(self, cursor: str | None) -> int | None:
        """The id of the last violation a subscriber has seen; None when the cursor is not one of this daemon."""
        epoch, _, number = (cursor or "").partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return None
        return int(number)

    def subscribe(self, subscriber: object, session_id: str | None, tell: Tell) -> None:
        """Tell of the violations of one session, or with None of all; twice is once."""
        self._subscribers.setdefault(subscriber, {})[session_id] = tell

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def unsubscribe(self, subscriber: object) -> None:
        self._subscribers.pop(subscriber, None)

    def session_ended(self, store: ViolationStore) -> None:
        self._lost = max(self._lost, store.newest)

    def lost(self, stores: list[ViolationStore], *, all_sessions: bool) -> int:
        """The newest violation of these sessions that can no longer be told."""
        return max([store.lost for store in stores] + ([self._lost] if all_sessions else [0]))

    def tell(self, event: Violation | Cleared) -> None:
        if isinstance(event, Violation):
            self._observe(event)
        cursor = self._cursor(event.id) if isinstance(event, Violation) else self.cursor
        for subscriber, wanted in list(self._subscribers.items()):
            tell = wanted.get(None) or wanted.get(event.session_id)
            if tell is not None:
                tell(subscriber, event, cursor)


class ViolationStore:
    """`clock` gives seconds since the epoch. `feed` numbers them and hears of each."""

    def __init__(
        self, session_id: str, clock: Callable[[], float] = time.time, feed: ViolationFeed | None = None
    ) -> None:
        self._session_id = session_id
        self._clock = clock
        self._kept: deque[Violation] = deque(maxlen=KEPT)
        self._feed = feed or ViolationFeed()
        self.newest = 0
        self.lost = 0
        """The newest one that is not kept any more."""
        self.total = 0
        self.untold = 0
        self.hidden = 0
        """How many were not recorded because somebody does not want to see them (`ignoreViolations`)."""

    def add_network(
        self, command_id: str, operation: str, target: str, decision: Decision, *, generation: int = 0
    ) -> Violation:
        """Record a connection that a proxy refused under the policy of this generation."""
        violation = Violation(
            id=self._feed.next_id(),
            time=self._clock(),
            session_id=self._session_id,
            command_id=command_id,
            kind=ViolationKind.NETWORK,
            operation=operation,
            target=neutralise(target),
            outcome=decision.reason.value,
            source=ViolationSource.PROXY,
            rule=decision.rule,
            origin=decision.origin,
            hint=decision.hint,
            policy_generation=generation,
        )
        self._keep(violation)
        return violation

    def add_refusal(
        self, command_id: str, refusal: Refusal, *, hidden: bool = False, generation: int = 0
    ) -> Violation | None:
        """Record what the operating system refused to a command of this generation. A hidden one is counted only."""
        if hidden:
            self.hidden += refusal.count
            return None
        violation = Violation(
            id=self._feed.next_id(),
            time=self._clock(),
            session_id=self._session_id,
            command_id=command_id,
            kind=refusal.kind,
            operation=neutralise(refusal.operation),
            target=neutralise(refusal.target),
            outcome="denied",
            source=refusal.source,
            process=None if refusal.process is None else neutralise(refusal.process),
            hint=refusal.hint,
            count=refusal.count,
            policy_generation=generation,
        )
        self._keep(violation)
        return violation

    def add_lost(self, count: int) -> None:
        """So many happened and are not known, because they were too many to be told."""
        self.untold += count
        self.total += count

    def _keep(self, violation: Violation) -> None:
        if len(self._kept) == KEPT:
            self.lost = self._kept[0].id
        self._kept.append(violation)
        self.newest = violation.id
        self.total += violation.count
        self._feed.tell(violation)

    def clear(self) -> int:
        """Forget the kept ones; how many. The total stays: they did happen."""
        count = len(self._kept)
        self._kept.clear()
        self.lost = self.newest
        self._feed.tell(Cleared(self._session_id, count))
        return count

    def list(self, command_id: str | None = None) -> list[Violation]:
        """The kept ones, oldest first; of one command when its id is given."""
        return [v for v in self._kept if command_id is None or v.command_id == command_id]
