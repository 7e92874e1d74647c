"""Denial events of one command: attribution to rules, and the daemon's own."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.backends.base import ConnectAttempt
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.policy.decision import Decision
from sandboxd.policy.violation import FOREIGN_OWNER, SET_USER_ID, DenialEvent, ViolationKind, ViolationSource

_FILES = (ViolationKind.READ, ViolationKind.WRITE)
_REMOVALS = frozenset({"rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"})


def attributed(refusal: DenialEvent, attribution: Attribution | None, home: str, generation: int) -> DenialEvent | None:
    """Add the decision to a denial that the operating system reported.

    None when the policy allows it: then the host refuses it as well, or the program made a mistake.
    Seatbelt reports only what it refused itself."""
    decision = None
    if attribution is not None and refusal.kind in _FILES and refusal.target.startswith("/"):
        if refusal.operation in _REMOVALS:
            decision = attribution.decide_removal(refusal.target)
        else:
            decision = attribution.decide(refusal.target, write=refusal.kind is ViolationKind.WRITE)
        if decision.allowed:
            if refusal.source is ViolationSource.SECCOMP and refusal.operation not in (SET_USER_ID, FOREIGN_OWNER):
                return None
            decision = None
    return replace(refusal, decision=decision, generation=generation, home=home)


def of_output(path: str, decision: Decision, home: str, generation: int) -> DenialEvent:
    """Event guessed from a program's own message about a closed path."""
    return DenialEvent(
        kind=ViolationKind.READ,
        operation="open",
        target=path,
        source=ViolationSource.OUTPUT,
        decision=decision,
        inferred=True,
        generation=generation,
        home=home,
    )


def of_socket(attempt: ConnectAttempt, decision: Decision, home: str, generation: int) -> DenialEvent:
    """Return the event of a refused Unix socket."""
    return DenialEvent(
        kind=ViolationKind.UNIX_SOCKET,
        operation="connect",
        target=attempt.address or "(no path)",
        source=ViolationSource.SECCOMP,
        decision=decision,
        process=attempt.process,
        generation=generation,
        home=home,
    )
