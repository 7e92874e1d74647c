"""Violations, and the `violation.*` methods."""

from __future__ import annotations

from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.settings import ChangeRecord


@dataclass(frozen=True, slots=True)
class ViolationRecord:
    """A violation, with texts neutralised for display."""

    id: int
    time: float  # seconds since the epoch
    session_id: str
    command_id: str
    kind: str  # read, write, connect, unix-socket, network, limit or service
    operation: str
    target: str
    outcome: str
    source: str  # proxy, seccomp, seatbelt or output
    process: str | None = None
    rule: str | None = None
    origin: OriginRecord | None = None
    hint: str = ""
    count: int = 1
    inferred: bool = False  # guessed from program output
    policy_generation: int = 0  # the policy in force
    last_time: float | None = None  # the time of the last of `count`
    command: str = ""  # the beginning of the command's text


@dataclass(frozen=True, slots=True)
class ViolationListParams:
    session_id: str | None = None
    command_id: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationListResult:
    """Violations, oldest first."""

    violations: tuple[ViolationRecord, ...]
    total: int  # includes those no longer kept
    hidden: int  # those that settings ignore
    cursor: str
    complete: bool = True  # False: some after the cursor `since` are no longer kept
    lost: int = 0  # the part of `total` beyond the limit of a command


@dataclass(frozen=True, slots=True)
class ViolationSubscribeParams:
    session_id: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationHappened:
    """Notification `sandbox_violation`; a known `id` has a higher `count`."""

    cursor: str  # for a subscription after a lost connection
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
class ViolationSuggestParams:
    """A kept violation, by its `id`."""

    violation_id: int


@dataclass(frozen=True, slots=True)
class ViolationSuggestResult:
    """The smallest changes for `settings.update` that open what was refused; none, and `why` there is none."""

    changes: tuple[ChangeRecord, ...]
    why: str = ""
    notes: tuple[str, ...] = ()  # sentences for the user


@dataclass(frozen=True, slots=True)
class ViolationAnnotateParams:
    command_id: str
    stderr: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class ViolationAnnotateResult:
    """The annotated standard error; unchanged when nothing was blocked."""

    stderr: str
    violations: int


@dataclass(frozen=True, slots=True)
class ViolationStripParams:
    text: str


@dataclass(frozen=True, slots=True)
class ViolationStripResult:
    text: str
