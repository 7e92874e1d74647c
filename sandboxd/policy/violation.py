"""The one record of something that was blocked, whoever blocked it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandboxd.settings.origins import Origin


class ViolationKind(StrEnum):
    READ = "read"
    WRITE = "write"
    CONNECT = "connect"
    UNIX_SOCKET = "unix-socket"
    NETWORK = "network"
    SERVICE = "service"
    """Another right of the system: looking up a service, a terminal, an event to another program (macOS)."""


class ViolationSource(StrEnum):
    PROXY = "proxy"
    SECCOMP = "seccomp"
    SEATBELT = "seatbelt"
    OUTPUT = "output"
    """Nobody reported it: it was guessed from what the program wrote."""
    DAEMON = "daemon"
    """Found when the command had ended, and undone."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`time` is seconds since the epoch, of the first of `count`; `last_time` that of the last, None when there was
    one. `operation` is the verb of the enforcer (`CONNECT`, `openat`, …), `target` the path or `host:port`, already
    neutralised for display. `outcome` is the reason in a fixed word (`policy.decision.Reason`), or `denied` where only
    the operating system knows it. `inferred` marks a guess from program output, `policy_generation` the policy that
    was in force (0: not known)."""

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
