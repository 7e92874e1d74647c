"""The view Now: sessions, and the commands that run in them."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.policy.display import neutralise
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.commands import RunningCommandRecord
from sandboxd_client.wire.messages.sessions import SessionRecord

LONGEST_COMMAND = 300


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session; `kind` is one of detached, agent, connection and implicit."""

    session_id: str
    name: str
    project: str
    kind: str
    mode: str
    age: str
    commands: int
    blocked: int
    published: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A running command; `wrap_id` names it for `command.kill`. Uses are "-" where unknown."""

    wrap_id: str
    session_id: str
    session: str
    command: str
    project: str
    age: str
    cpu: str
    memory: str
    processes: str
    connections: str
    connected: tuple[str, ...]
    ports: str
    """Ports that it listens on, then those that the host can reach."""


@dataclass(frozen=True, slots=True)
class Now:
    sessions: tuple[SessionRow, ...]
    commands: tuple[CommandRow, ...]


def now_of(sessions: Sequence[SessionRecord], commands: Sequence[RunningCommandRecord], now: float) -> Now:
    """Return the view at `now`: sessions with commands first, the youngest command first."""
    busy = sorted(sessions, key=lambda one: (-one.commands, one.opened_at))
    young = sorted(commands, key=lambda one: -one.since)
    return Now(tuple(_session(one, now) for one in busy), tuple(_command(one, now) for one in young))


def _session(one: SessionRecord, now: float) -> SessionRow:
    kinds = (("agent", one.agent is not None), ("detached", one.detached), ("implicit", one.implicit))
    return SessionRow(
        one.session_id,
        neutralise(one.name or one.key or one.session_id, 60),
        neutralise(one.cwd),
        next((kind for kind, is_one in kinds if is_one), "connection"),
        one.permission_mode,
        age_of(now - one.opened_at),
        one.commands,
        one.violations,
        tuple(map(neutralise, one.published)),
    )


def _command(one: RunningCommandRecord, now: float) -> CommandRow:
    return CommandRow(
        one.wrap_id,
        one.session_id,
        neutralise(one.session_name or one.session_id, 60),
        neutralise(" ".join(one.command.split()), LONGEST_COMMAND),
        neutralise(one.cwd),
        age_of(now - one.since),
        "-" if one.cpu_s is None else f"{one.cpu_s:.1f} s",
        "-" if one.memory is None else f"{one.memory / (1 << 20):.0f} MiB",
        "-" if one.processes is None else str(one.processes),
        "-" if one.connections is None else str(one.connections),
        tuple(map(neutralise, one.connected)),
        ", ".join([*map(str, one.ports or ()), *map(neutralise, one.published)]) or "-",
    )


def age_of(seconds: float) -> str:
    """Format a duration in one unit, as narrow as a column needs."""
    left = max(int(seconds), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if left >= 2 * size:
            return f"{left // size} {unit}"
    return f"{left} s"
