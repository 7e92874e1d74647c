"""`status`, `restart` and `shutdown`: the daemon itself."""

from __future__ import annotations

from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.sessions import SessionRecord
from sandboxd_client.wire.messages.settings import SettingsFileRecord


@dataclass(frozen=True, slots=True)
class StatusParams:
    pass


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The state of the audit log."""

    enabled: bool
    path: str
    lines: int = 0  # since the daemon started
    lost: int = 0  # could not be written
    failure: str = ""  # why it cannot be written now
    blocking: bool = False  # new commands do not run during a failure


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase of the start: program, directories, settings, back end or socket."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """The last restart."""

    stall_s: float  # seconds without service; unknown after a crash
    from_version: str  # the version before
    commands: int  # the commands taken over
    cut: int = 0  # connections of theirs that were cut; unknown after a crash
    lost: tuple[str, ...] = ()  # other losses, a sentence each
    crashed: bool = False  # the daemon before ended without a hand-over


@dataclass(frozen=True, slots=True)
class UnavailableRecord:
    """The reason that no sandbox can be started."""

    slug: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class StatusResult:
    """The state of the daemon.

    `network` names the deciding proxy and the egress, a sentence each. `startup` holds the phases of the start, in
    order. `activated` marks a socket of a service manager, which starts the daemon at the first connection."""

    version: str
    protocol: int
    pid: int
    started_at: float  # seconds since the epoch
    socket: str
    generation: int
    enabled: bool  # from the settings; `wrap` sandboxes in any case
    settings: tuple[SettingsFileRecord, ...]
    sessions: tuple[SessionRecord, ...]
    layers: tuple[str, ...]  # those of a command wrapped now
    commands: int = 0
    warnings: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    audit: AuditRecord | None = None
    startup: tuple[PhaseRecord, ...] = ()
    activated: bool = False
    prepared: int = 0  # sandboxes that wait for a command
    restarts: int = 0  # since `started_at`
    restarted: RestartRecord | None = None
    unavailable: UnavailableRecord | None = None
    enabled_origin: OriginRecord | None = None
    program: str = ""  # the directory of the package that runs


@dataclass(frozen=True, slots=True)
class RestartParams:
    """The interpreter whose sandboxd takes over; None: that of the running daemon."""

    interpreter: str | None = None


@dataclass(frozen=True, slots=True)
class RestartResult:
    """The reply before the daemon executes itself anew; later requests wait."""

    pid: int  # unchanged
    version: str  # of the program that takes over


@dataclass(frozen=True, slots=True)
class ShutdownParams:
    """The time for running commands to end."""

    grace_s: float | None = None  # seconds between TERM and KILL; None: the daemon's default


@dataclass(frozen=True, slots=True)
class ShutdownResult:
    """The reply before the daemon stops; its end closes the connection."""

    pid: int
    commands: int = 0
