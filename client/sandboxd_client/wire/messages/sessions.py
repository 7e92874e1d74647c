"""`session.open`, `session.close`, `session.list`. A session is one agent in one project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PermissionMode = Literal["open", "prompt", "none"]


@dataclass(frozen=True, slots=True)
class SessionOpenParams:
    """`cwd` is absolute. `settings` is a settings object of this session (the CLI source). A detached session outlives
    its connection."""

    cwd: str
    name: str | None = None
    settings: dict[str, Any] | None = None
    permission_mode: PermissionMode | None = None
    detach: bool = False


@dataclass(frozen=True, slots=True)
class SessionOpenResult:
    session_id: str
    policy_generation: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionCloseParams:
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionCloseResult:
    """`commands_ended` counts the commands that were still running."""

    commands_ended: int = 0


@dataclass(frozen=True, slots=True)
class SessionListParams:
    pass


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """`opened_at` is seconds since the epoch; `commands` counts those running now; `implicit` marks the session of a
    connection that never opened one; `violations_lost` is that part of `violations` that was not recorded because there
    were too many. `published` are the ports of its commands that the host reaches, as `HOST:PORT:INNER`."""

    session_id: str
    name: str | None
    cwd: str
    detached: bool
    permission_mode: str
    opened_at: float
    commands: int
    violations: int
    policy_generation: int
    implicit: bool = False
    violations_lost: int = 0
    published: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionListResult:
    sessions: tuple[SessionRecord, ...]
