"""Violations of one session: the last hundred in full, and the total.

In memory only.

A program that meets a wall tries again, and one that means harm tries a hundred thousand times a second. So what
repeats is one record with a count, new records of a command are bounded by a rate, and what is over it is counted as
lost."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from sandboxd.policy.display import neutralise
from sandboxd.policy.explain.hint_table import Symptom
from sandboxd.policy.explain.hints import has_odd_characters, hint_for
from sandboxd.policy.violation import DenialEvent, Violation, ViolationKind
from sandboxd.runtime.rate_bound import RateBound
from sandboxd_client.records import dataclass

KEPT = 100
LONGEST_HINT = 2000
LONGEST_COMMAND = 100
COLLAPSE_S = 10.0
"""Seconds within which a repeated violation counts to the same record."""
UPDATE_S = 0.2
"""Subscribers hear of a count that has grown after so long at the latest, and not more often."""
KEPT_STORES = 32
"""Sessions that were a connection's own, as `sandboxd run` has one: people ask afterwards what was blocked in them."""


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A violation with its key for repeats, and the number of its newest event."""

    violation: Violation
    key: tuple[str, ViolationKind, str, str, str]
    number: int


@dataclass(frozen=True, slots=True)
class ViolationsRecord:
    """The violations of one session, for the next daemon."""

    kept: tuple[KeptRecord, ...] = ()
    newest: int = 0
    forgotten: int = 0
    total: int = 0
    hidden: int = 0
    lost: int = 0


class Timer(Protocol):
    """A timer like asyncio's."""

    def cancel(self) -> None: ...


_Key = tuple[str, ViolationKind, str, str, str]
"""The identity of a violation: command, kind, operation, target, outcome."""


@dataclass(slots=True)
class _Record:
    """A kept violation; `number` is that of its newest event."""

    violation: Violation
    key: _Key
    number: int
    seen: float
    untold: bool = False


class ViolationStore:
    """Violations of one session.

    `clock` gives seconds since the epoch, `steady` those that no clock setting changes. `feed` numbers events and tells
    subscribers; `later` calls back after a number of seconds."""

    def __init__(
        self,
        session_id: str,
        clock: Callable[[], float] = time.time,
        feed: ViolationFeed | None = None,
        *,
        steady: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
        exists: Callable[[str], bool] = os.path.lexists,
    ) -> None:
        self.session_id = session_id
        self._clock = clock
        self._steady = steady
        self._exists = exists
        self._later = later or (lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call))
        self._feed = feed or ViolationFeed()
        self._records: dict[int, _Record] = {}
        self._latest: dict[_Key, _Record] = {}
        self._of_command: Counter[str] = Counter()
        self._untold: dict[int, _Record] = {}
        self._timer: Timer | None = None
        self.newest = 0
        self.forgotten = 0
        """The newest event that is not kept any more."""
        self.total = 0
        self.hidden = 0
        """How many of the total `ignoreViolations` hides."""
        self.lost = 0
        """How many of the total were not recorded because there were too many."""

    def add(
        self,
        command_id: str,
        denial: DenialEvent,
        bound: RateBound | None = None,
        is_hidden: Callable[[], bool] = lambda: False,
    ) -> Violation | None:
        """Record something; the record with its count, None when there is none.

        `bound` is the command's."""
        key = (command_id, denial.kind, denial.operation, denial.target, denial.outcome)
        now = self._steady()
        known = self._latest.get(key)
        if known is not None and now - known.seen <= COLLAPSE_S:
            return self._again(known, denial.count, now)
        self.total += denial.count
        if is_hidden():
            self.hidden += denial.count
            return None
        if bound is not None and not bound.admits(denial.count):
            self.lost += denial.count
            return None
        return self._keep(self._violation(command_id, denial), key, now)

    def add_lost(self, count: int) -> None:
        """Count refusals that the enforcer could not describe."""
        self.total += count
        self.lost += count

    def _violation(self, command_id: str, denial: DenialEvent) -> Violation:
        decision, target = denial.decision, neutralise(denial.target)
        exists = not has_odd_characters(target) or self._exists(denial.target)
        symptom = Symptom(denial.kind, denial.operation, target, denial.home, decision, exists)
        return Violation(
            id=self._feed.next_number(),
            time=self._clock(),
            session_id=self.session_id,
            command_id=command_id,
            kind=denial.kind,
            operation=neutralise(denial.operation),
            target=target,
            outcome=denial.outcome,
            source=denial.source,
            process=None if denial.process is None else neutralise(denial.process),
            rule=None if decision is None or decision.rule is None else neutralise(decision.rule),
            origin=None if decision is None else decision.origin,
            hint=neutralise(denial.hint or hint_for(symptom), LONGEST_HINT),
            count=denial.count,
            inferred=denial.inferred,
            policy_generation=denial.generation,
            command=neutralise(" ".join(denial.command.split()), LONGEST_COMMAND),
        )

    def _keep(self, violation: Violation, key: _Key, now: float) -> Violation:
        if len(self._records) >= KEPT:
            self._forget(self._oldest_of_the_loudest())
        record = _Record(violation, key, violation.id, now)
        self._records[violation.id] = self._latest[key] = record
        self._of_command[violation.command_id] += 1
        self.newest = violation.id
        self._feed.tell(violation, violation.id)
        return violation

    def _again(self, record: _Record, count: int, now: float) -> Violation:
        record.violation = replace(record.violation, count=record.violation.count + count, last_time=self._clock())
        record.seen = now
        self.total += count
        if not record.untold:
            record.untold = True
            self._untold[record.violation.id] = record
            if self._timer is None:
                self._timer = self._later(UPDATE_S, self.tell_counts)
        return record.violation

    def tell_counts(self) -> None:
        """Tell subscribers of every count that has grown since they heard of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._untold = self._untold, {}
        for record in records.values():
            record.untold = False
            record.number = self.newest = self._feed.next_number()
            self._feed.tell(record.violation, record.number)

    def _oldest_of_the_loudest(self) -> _Record:
        """Return the oldest record of the command with most records.

        It makes room, so that no command pushes out another's."""
        loudest = max(self._of_command, key=self._of_command.__getitem__)
        return next(record for record in self._records.values() if record.violation.command_id == loudest)

    def _forget(self, record: _Record) -> None:
        violation = record.violation
        del self._records[violation.id]
        if self._untold.pop(violation.id, None) is not None:
            record.number = self.newest = self._feed.next_number()
            self._feed.tell(violation, record.number)
        if self._latest.get(record.key) is record:
            del self._latest[record.key]
        self._of_command[violation.command_id] -= 1
        if not self._of_command[violation.command_id]:
            del self._of_command[violation.command_id]
        self.forgotten = max(self.forgotten, record.number)

    def clear(self) -> int:
        """Forget the kept ones; how many.

        The total stays: they did happen."""
        count = len(self._records)
        for record in list(self._records.values()):
            self._forget(record)
        self.forgotten = self.newest
        self._feed.tell(Cleared(self.session_id, count))
        return count

    def record(self) -> ViolationsRecord:
        """Return the state, after all subscribers have received it."""
        self.tell_counts()
        kept = tuple(KeptRecord(one.violation, one.key, one.number) for one in self._records.values())
        return ViolationsRecord(kept, self.newest, self.forgotten, self.total, self.hidden, self.lost)

    def resume(self, record: ViolationsRecord) -> None:
        """Take over the records of an earlier daemon without telling subscribers again."""
        now = self._steady()
        for kept in record.kept:
            one = _Record(kept.violation, kept.key, kept.number, now)
            self._records[kept.violation.id] = self._latest[kept.key] = one
            self._of_command[kept.violation.command_id] += 1
        self.newest, self.forgotten = record.newest, record.forgotten
        self.total, self.hidden, self.lost = record.total, record.hidden, record.lost

    def close(self, *, keep: bool = False) -> None:
        """End the session and tell subscribers the final counts.

        `keep` as in `ViolationFeed.session_ended`."""
        self.tell_counts()
        self._feed.session_ended(self, keep=keep)

    def list(self, command_id: str | None = None, after: int | None = None) -> list[Violation]:
        """Return kept violations, oldest first, by command and event number."""
        return [
            record.violation
            for record in self._records.values()
            if (command_id is None or record.violation.command_id == command_id)
            and (after is None or record.number > after or record.untold)
        ]


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
    """The sequence of all violations of one daemon.

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
        """Return the number of a subscriber's last event; None for a foreign cursor."""
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
        """Return the sessions of a subscriber; None stands for all."""
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
        """Return the kept violations of ended sessions."""
        return list(self._ended)

    def forgotten(self, stores: list[ViolationStore], *, all_sessions: bool) -> int:
        """Return the newest event of these sessions that is no longer kept."""
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
