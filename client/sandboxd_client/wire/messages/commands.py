"""`command.*`: the commands that run."""

from __future__ import annotations

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class CommandListParams:
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunningCommandRecord:
    """A running command, and the use of all its processes; None where unknown."""

    wrap_id: str
    command_id: str
    session_id: str
    session_name: str | None
    cwd: str
    command: str
    pid: int | None  # of the sandbox
    since: float  # seconds since the epoch
    published: tuple[str, ...] = ()
    ports: tuple[int, ...] | None = None  # TCP ports that it listens on
    processes: int | None = None
    cpu_s: float | None = None
    memory: int | None = None  # bytes
    connections: int | None = None  # open ones to the outside
    connected: tuple[str, ...] = ()  # their targets, `HOST:PORT`, each once, the first ones


@dataclass(frozen=True, slots=True)
class CommandListResult:
    commands: tuple[RunningCommandRecord, ...]


@dataclass(frozen=True, slots=True)
class CommandKillParams:
    """A running command: its id, or the beginning of its `wrap_id`."""

    command_id: str
    grace_s: float | None = None  # seconds between TERM and KILL


@dataclass(frozen=True, slots=True)
class CommandKillResult:
    wrap_id: str
    status: int | None  # None when it did not end in time
