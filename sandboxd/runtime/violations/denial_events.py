"""Conversion of an enforcer's reports into denial events."""

from __future__ import annotations

from sandboxd.backends.base import ConnectAttempt, Refusal
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.policy.decision import Decision
from sandboxd.policy.violation import ViolationKind, ViolationSource
from sandboxd.proxy.server import BlockedConnection
from sandboxd.runtime.violations.violation_store import DenialEvent

_FILES = (ViolationKind.READ, ViolationKind.WRITE)
_REMOVALS = frozenset({"rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"})


def of_refusal(refusal: Refusal, attribution: Attribution | None, home: str, generation: int) -> DenialEvent | None:
    """Event of a call that the operating system refused.

    None when the policy allows it: then the host refuses it as well, or the program made a mistake.
    Seatbelt reports only what it refused itself."""
    decision = None
    if attribution is not None and refusal.kind in _FILES and refusal.target.startswith("/"):
        if refusal.operation in _REMOVALS:
            decision = attribution.decide_removal(refusal.target)
        else:
            decision = attribution.decide(refusal.target, write=refusal.kind is ViolationKind.WRITE)
        if decision.allowed:
            if refusal.source is ViolationSource.SECCOMP:
                return None
            decision = None
    return DenialEvent(
        kind=refusal.kind,
        operation=refusal.operation,
        target=refusal.target,
        source=refusal.source,
        decision=decision,
        process=refusal.process,
        count=refusal.count,
        generation=generation,
        hint=refusal.hint,
        home=home,
    )


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


def of_connection(connection: BlockedConnection, home: str, generation: int) -> DenialEvent:
    """Event of a connection or name that the proxy refused; a name has no port."""
    return DenialEvent(
        kind=ViolationKind.NETWORK,
        operation=connection.operation,
        target=f"{connection.host}:{connection.port}" if connection.port else connection.host,
        source=ViolationSource.PROXY,
        decision=connection.decision,
        generation=generation,
        home=home,
    )


def of_socket(attempt: ConnectAttempt, decision: Decision, home: str, generation: int) -> DenialEvent:
    """A Unix socket that was not opened."""
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
