"""The kinds of refusals for denials in the log, as a table. Pure."""

from __future__ import annotations

from sandboxd.backends.macos.log_lines import Denial
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource

_KINDS = (
    ("file-read", ViolationKind.READ),
    ("file-map-executable", ViolationKind.READ),
    ("file-", ViolationKind.WRITE),
    ("network-", ViolationKind.CONNECT),
)


def refusal_of(denial: Denial) -> DenialEvent:
    """Return the denial event of a denial in the log."""
    return DenialEvent(
        kind=_kind(denial.operation, denial.target),
        operation=denial.operation,
        target=denial.target,
        source=ViolationSource.SEATBELT,
        process=denial.process or None,
        count=denial.count,
    )


def _kind(operation: str, target: str) -> ViolationKind:
    kind = next((kind for beginning, kind in _KINDS if operation.startswith(beginning)), ViolationKind.SERVICE)
    if kind is ViolationKind.CONNECT and target.startswith("/"):
        return ViolationKind.UNIX_SOCKET
    return kind
