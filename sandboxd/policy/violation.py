"""The record of a blocked access, from any enforcer."""

from __future__ import annotations

from enum import StrEnum

from sandboxd.policy.decision import Decision
from sandboxd.settings.origins import Origin
from sandboxd_client.records import dataclass


class ViolationKind(StrEnum):
    READ = "read"
    WRITE = "write"
    CONNECT = "connect"
    UNIX_SOCKET = "unix-socket"
    NETWORK = "network"
    LIMIT = "limit"
    """A limit on what the command may use, which it has met."""
    SERVICE = "service"
    """Another right of macOS: a service, a terminal, an event to another program."""


SET_USER_ID = "set-user-id"
"""The operation of a change of mode that was made without this bit."""
FOREIGN_OWNER = "foreign-owner"
"""The operation of a change of owner that root was told has succeeded."""


class ViolationSource(StrEnum):
    PROXY = "proxy"
    SECCOMP = "seccomp"
    SEATBELT = "seatbelt"
    OUTPUT = "output"
    """A guess from the program's output."""
    DAEMON = "daemon"
    """Found when the command had ended, and undone."""


@dataclass(frozen=True, slots=True)
class DenialEvent:
    """A denial as its enforcer reports it, before it is recorded as a violation.

    `target` is a path, name or `host:port` from inside, not neutralised. `decision` is None where only the system knows
    the reason. `hint` is set where the enforcer has a better one than the table. `home` is the user's home directory,
    `generation` that of the policy in force."""

    kind: ViolationKind
    operation: str
    target: str
    source: ViolationSource
    process: str | None = None
    count: int = 1
    hint: str = ""
    decision: Decision | None = None
    inferred: bool = False
    generation: int = 0
    home: str = ""
    command: str = ""
    """The beginning of the command's text."""

    @property
    def outcome(self) -> str:
        """The reason in a fixed word."""
        return "denied" if self.decision is None else self.decision.reason.value


@dataclass(frozen=True, slots=True)
class Violation:
    """A recorded refusal.

    `time`, in seconds since the epoch, is of the first of `count`, `last_time` of the last, None when there was one.
    `operation` is the verb of the enforcer (`CONNECT`, `openat`, …), `target` the path or `host:port`, neutralised for
    display. `outcome` is a `policy.decision.Reason`, or `denied` where only the system knows. `policy_generation` is 0
    if unknown."""

    id: int
    time: float
    session_id: str
    command_id: str
    kind: ViolationKind
    operation: str
    target: str
    outcome: str
    source: ViolationSource
    process: str | None = None
    rule: str | None = None
    origin: Origin | None = None
    hint: str = ""
    count: int = 1
    inferred: bool = False
    policy_generation: int = 0
    last_time: float | None = None
    command: str = ""


_LIMIT_OPTIONS = {"memory": "--memory", "time": "--timeout"}


def limit_met(limit: str, value: str, more: str) -> DenialEvent:
    """Return the report of a limit that a command has met; `more` is a higher value."""
    key = f"sandboxd settings set sandbox.limits.{limit} {more}"
    hint = f"sandboxd run {_LIMIT_OPTIONS[limit]} {more} -- …, or: {key}" if limit in _LIMIT_OPTIONS else key
    operation = "out-of-memory" if limit == "memory" else "limit"
    return DenialEvent(ViolationKind.LIMIT, operation, f"{limit} {value}", ViolationSource.DAEMON, hint=hint)
