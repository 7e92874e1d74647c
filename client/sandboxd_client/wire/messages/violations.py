"""Something that was blocked, and the `violation.*` methods."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd_client.wire.messages.origins import OriginRecord


@dataclass(frozen=True, slots=True)
class ViolationRecord:
    """`kind` is one of read write connect unix-socket network service, `source` of proxy seccomp seatbelt output;
    `time` is seconds since the epoch, `last_time` that of the last of `count`; `inferred` marks a guess from program
    output, `policy_generation` the policy that was in force. Texts are neutralised for display."""

    id: int
    time: float
    session_id: str
    command_id: str
    kind: str
    operation: str
    target: str
    outcome: str
    source: str
    process: str | None = None
    rule: str | None = None
    origin: OriginRecord | None = None
    hint: str = ""
    count: int = 1
    inferred: bool = False
    policy_generation: int = 0
    last_time: float | None = None


@dataclass(frozen=True, slots=True)
class ViolationListParams:
    session_id: str | None = None
    command_id: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationListResult:
    """Oldest first. `total` counts also those that are not kept, `hidden` those that nobody wants to see, `lost` that
    part of `total` that was not recorded because a command made too many. `complete` is False when something after the
    cursor `since` can no longer be told."""

    violations: tuple[ViolationRecord, ...]
    total: int
    hidden: int
    cursor: str
    complete: bool = True
    lost: int = 0


@dataclass(frozen=True, slots=True)
class ViolationSubscribeParams:
    session_id: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationHappened:
    """Notification `sandbox_violation`. `cursor` is what to subscribe with after a lost connection. One with an `id`
    that was told before is the same violation with a higher `count`."""

    cursor: str
    violation: ViolationRecord


@dataclass(frozen=True, slots=True)
class ViolationsCleared:
    """Notification `sandbox_violations_cleared`."""

    cursor: str
    session_id: str
    cleared: int


@dataclass(frozen=True, slots=True)
class ViolationClearParams:
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationClearResult:
    cleared: int


@dataclass(frozen=True, slots=True)
class ViolationAnnotateParams:
    command_id: str
    stderr: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationAnnotateResult:
    """`stderr` as it was when nothing was blocked."""

    stderr: str
    violations: int


@dataclass(frozen=True, slots=True)
class ViolationStripParams:
    text: str


@dataclass(frozen=True, slots=True)
class ViolationStripResult:
    text: str
