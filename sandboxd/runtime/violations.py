"""What was blocked in one session: the last hundred in full, and how many there were in all. Never on disk."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable

from sandboxd.backends.base import Refusal
from sandboxd.policy.decision import Decision
from sandboxd.policy.display import neutralise
from sandboxd.policy.violation import Violation, ViolationKind, ViolationSource

KEPT = 100


class ViolationStore:
    """`clock` gives seconds since the epoch."""

    def __init__(self, session_id: str, clock: Callable[[], float] = time.time) -> None:
        self._session_id = session_id
        self._clock = clock
        self._kept: deque[Violation] = deque(maxlen=KEPT)
        self._ids = itertools.count(1)
        self.total = 0
        self.hidden = 0
        """How many were not recorded because somebody does not want to see them (`ignoreViolations`)."""

    def add_network(
        self, command_id: str, operation: str, target: str, decision: Decision, *, generation: int = 0
    ) -> Violation:
        """Record a connection that a proxy refused under the policy of this generation."""
        violation = Violation(
            id=next(self._ids),
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
        self._kept.append(violation)
        self.total += 1
        return violation

    def add_refusal(
        self, command_id: str, refusal: Refusal, *, hidden: bool = False, generation: int = 0
    ) -> Violation | None:
        """Record what the operating system refused to a command of this generation. A hidden one is counted only."""
        if hidden:
            self.hidden += refusal.count
            return None
        violation = Violation(
            id=next(self._ids),
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
        self._kept.append(violation)
        self.total += refusal.count
        return violation

    def list(self, command_id: str | None = None) -> list[Violation]:
        """The kept ones, oldest first; of one command when its id is given."""
        return [v for v in self._kept if command_id is None or v.command_id == command_id]
