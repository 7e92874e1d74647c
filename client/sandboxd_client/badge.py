"""The badge: how many accesses were blocked in the last seconds. Zero hides it."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd_client.wire.messages.violations import ViolationRecord

SHOWN_S = 5.0
"""Seconds for which a blocked access counts."""
_KEPT = 10_000
_KNOWN = 1000


class Badge:
    """A count of blocked accesses in the last `shown_s` seconds; times are of any steady clock."""

    def __init__(self, shown_s: float = SHOWN_S) -> None:
        self.shown_s = shown_s
        self._counts: deque[tuple[float, int]] = deque(maxlen=_KEPT)
        self._known: dict[int, int] = {}  # violation: its count so far

    def know(self, violations: tuple[ViolationRecord, ...]) -> None:
        """Take violations from before, which do not count."""
        for one in violations:
            self._grown(one)

    def take(self, one: ViolationRecord, now: float) -> None:
        """Take a violation, or its higher count."""
        if grown := self._grown(one):
            self._counts.append((now, grown))

    def count(self, now: float) -> int:
        while self._counts and self._counts[0][0] <= now - self.shown_s:
            self._counts.popleft()
        return sum(grown for _, grown in self._counts)

    def changes_in(self, now: float) -> float | None:
        """Return the seconds until the count falls; None where it is zero."""
        return max(self._counts[0][0] + self.shown_s - now, 0.0) if self.count(now) else None

    def _grown(self, one: ViolationRecord) -> int:
        before = self._known.pop(one.id, 0)
        self._known[one.id] = one.count
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return max(one.count - before, 0)
