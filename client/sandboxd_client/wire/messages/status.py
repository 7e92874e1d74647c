"""`status`, `restart` and `shutdown`: the daemon itself."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.sessions import SessionRecord
from sandboxd_client.wire.messages.settings import SettingsFileRecord


@dataclass(frozen=True, slots=True)
class StatusParams:
    pass


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The audit log: `lines` and `lost` (could not be written) since the daemon started; `failure` is why it cannot be
    written now, and `blocking` says that nothing new runs then."""

    enabled: bool
    path: str
    lines: int = 0
    lost: int = 0
    failure: str = ""
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A part of the start: `program` (interpreter and our code), `directories`, `settings`, `back end`, `socket`."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """What came of the last restart: how long nobody was served, the version before, how many commands were taken over,
    how many connections of theirs were cut, and in words what else was lost. `crashed`: the daemon before was gone
    without a word, so that nobody knows the first and the third."""

    stall_s: float
    from_version: str
    commands: int
    cut: int = 0
    lost: tuple[str, ...] = ()
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class UnavailableRecord:
    """Why no sandbox can be started: a stable code, a sentence, and what to do."""

    slug: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class StatusResult:
    """`started_at` is seconds since the epoch. `layers` are those a command wrapped now would get; `enabled` is what
    the settings say (`wrap` sandboxes in any case). `network` says who decides about connections and through which
    proxy allowed ones go, a sentence each. `startup` are the phases of the daemon's start, in order; `activated` says
    that a service manager made the socket and starts the daemon when somebody connects."""

    version: str
    protocol: int
    pid: int
    started_at: float
    socket: str
    generation: int
    enabled: bool
    settings: tuple[SettingsFileRecord, ...]
    sessions: tuple[SessionRecord, ...]
    layers: tuple[str, ...]
    commands: int = 0
    warnings: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    audit: AuditRecord | None = None
    startup: tuple[PhaseRecord, ...] = ()
    activated: bool = False
    restarts: int = 0
    """How often it has gone on in another program since then."""
    restarted: RestartRecord | None = None
    unavailable: UnavailableRecord | None = None
    enabled_origin: OriginRecord | None = None
    """Where `enabled` stands, also when the environment brought that file in."""


@dataclass(frozen=True, slots=True)
class RestartParams:
    pass


@dataclass(frozen=True, slots=True)
class RestartResult:
    """The daemon executes itself anew after this answer, with the same `pid`; `version` is that of the program that
    takes over. Whatever is asked next over any connection waits for it."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class ShutdownParams:
    """`grace_s`: how long running commands have between TERM and KILL; None for the daemon's default."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShutdownResult:
    """The daemon goes on to stop after this answer; it is gone when the connection ends."""

    pid: int
    commands: int = 0
