"""The view Blocked: what was refused, grouped by the rule that refused it, and bounded."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from sandboxd.policy.display import neutralise
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.violations import ViolationRecord

KEPT: Final = 20_000
"""Violations that are kept; older ones are counted."""
GROUPS: Final = 200
MEMBERS: Final = 50
"""Groups that are shown, and rows of a group; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice of violations: of a session, of a kind, with a text. Case does not count."""

    session_id: str = ""
    kind: str = ""
    text: str = ""

    def passes(self, one: ViolationRecord) -> bool:
        if self.session_id not in ("", one.session_id) or self.kind not in ("", one.kind):
            return False
        if not self.text:
            return True
        searched = (one.target, one.command, one.process or "", one.rule or "", one.outcome, one.operation)
        return self.text.lower() in "\0".join(searched).lower()


_ALL = Filter()


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A violation; `id` with `session_id` names it. `rule` and `place` are empty where only a default refused."""

    id: int
    session_id: str
    time: float
    count: int
    kind: str
    operation: str
    target: str
    outcome: str
    process: str
    command: str
    rule: str
    place: str
    hint: str
    inferred: bool


@dataclass(frozen=True, slots=True)
class BlockedGroup:
    """The violations of one rule, the newest first. `more` are left out of `rows`."""

    title: str
    place: str
    kind: str
    count: int
    last: float
    rows: tuple[BlockedRow, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The groups, the one with the newest violation first; counts of what is not shown."""

    groups: tuple[BlockedGroup, ...]
    shown: int
    kept: int
    total: int
    """Refusals since this view began, with those no longer kept."""
    more_groups: int
    sessions: tuple[str, ...]
    kinds: tuple[str, ...]


class History:
    """The violations that subscriptions have told of, at most `kept`."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._violations: dict[int, ViolationRecord] = {}
        self._gone = 0  # refusals of violations that are not kept

    def __len__(self) -> int:
        return len(self._violations)

    @property
    def total(self) -> int:
        """Return the number of refusals since this view began."""
        return self._gone + sum(one.count for one in self._violations.values())

    def restart(self, violations: Iterable[ViolationRecord], *, complete: bool = False) -> None:
        """Take the state of a subscription; a `complete` one continues what is known."""
        if not complete:
            self._violations, self._gone = {}, 0
        for one in violations:
            self.take(one)

    def take(self, one: ViolationRecord) -> None:
        """Take a violation, or its higher count."""
        self._violations.pop(one.id, None)
        if len(self._violations) >= self._kept:
            self._gone += self._violations.pop(next(iter(self._violations))).count
        self._violations[one.id] = one

    def clear(self, session_id: str) -> None:
        """Forget what a client cleared: one session, or with "" all."""
        left = {number: one for number, one in self._violations.items() if session_id not in ("", one.session_id)}
        self._violations = left

    def get(self, number: int) -> ViolationRecord | None:
        return self._violations.get(number)

    def view(
        self,
        wanted: Filter = _ALL,
        unfolded: Container[tuple[str, str]] | None = None,
        *,
        folded_rows: int = 0,
        most_groups: int = GROUPS,
    ) -> Blocked:
        """Return what passes a filter, in groups. The `unfolded` ones, by title and place, have all their rows."""
        members: dict[tuple[str, str, str, str], list[ViolationRecord]] = {}
        shown = 0
        for one in reversed(self._violations.values()):
            if wanted.passes(one):
                shown += 1
                members.setdefault(_group(one), []).append(one)
        newest = list(members.items())[:most_groups]
        groups = [_group_of(key, found, unfolded, folded_rows) for key, found in newest]
        everything = self._violations.values()
        return Blocked(
            tuple(groups),
            shown,
            len(self._violations),
            self.total,
            len(members) - len(groups),
            tuple(sorted({one.session_id for one in everything})),
            tuple(sorted({one.kind for one in everything})),
        )


def _group(one: ViolationRecord) -> tuple[str, str, str, str]:
    return one.kind, one.outcome, one.rule or "", "" if one.origin is None else str(one.origin)


def _group_of(
    key: tuple[str, str, str, str],
    found: list[ViolationRecord],
    unfolded: Container[tuple[str, str]] | None,
    folded_rows: int,
) -> BlockedGroup:
    kind, outcome, rule, place = key
    name = neutralise(f"{kind}: rule {rule}" if rule else f"{kind}: {outcome}"), neutralise(place)
    most = MEMBERS if unfolded is None or name in unfolded else folded_rows
    rows = tuple(blocked_row(one) for one in found[:most])
    return BlockedGroup(
        *name,
        kind,
        sum(one.count for one in found),
        max(one.last_time or one.time for one in found),
        rows,
        len(found) - len(rows),
    )


def blocked_row(one: ViolationRecord) -> BlockedRow:
    return BlockedRow(
        id=one.id,
        session_id=one.session_id,
        time=one.last_time or one.time,
        count=one.count,
        kind=one.kind,
        operation=neutralise(one.operation),
        target=neutralise(one.target),
        outcome=neutralise(one.outcome),
        process=neutralise(one.process or ""),
        command=neutralise(one.command),
        rule=neutralise(one.rule or ""),
        place="" if one.origin is None else neutralise(str(one.origin)),
        hint=neutralise(one.hint),
        inferred=one.inferred,
    )
