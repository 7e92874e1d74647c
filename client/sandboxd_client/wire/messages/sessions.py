"""`session.*`: sessions. A session is one agent in one project."""

from __future__ import annotations

from typing import Any, Literal

from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.settings import ChangeRecord

PermissionMode = Literal["open", "prompt", "none", "plan"]


@dataclass(frozen=True, slots=True)
class SessionOpenParams:
    """The project and settings of a new session."""

    cwd: str  # absolute
    name: str | None = None
    settings: dict[str, Any] | str | None = None  # an object or an absolute path: the `cli` source of this session
    permission_mode: PermissionMode | None = None
    detach: bool = False  # the session outlives its connection


@dataclass(frozen=True, slots=True)
class SessionOpenResult:
    session_id: str
    policy_generation: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionUpdateParams:
    """Other settings for a live session: in place of its own, or `changes` of them."""

    session_id: str
    settings: dict[str, Any] | str | None = None  # an object, empty for none, or an absolute path
    changes: tuple[ChangeRecord, ...] | None = None
    confirm: bool = False  # the user knows the consequences of a wide change


@dataclass(frozen=True, slots=True)
class SessionUpdateResult:
    """The settings of the session from now on."""

    policy_generation: int
    settings: dict[str, Any] | str
    written: bool = True  # False when they were so already
    changed: tuple[str, ...] = ()  # keys with a new effective value
    warnings: tuple[str, ...] = ()
    file: str = ""  # the session, in words, in place of a file


@dataclass(frozen=True, slots=True)
class SessionJoinParams:
    """The project of a session that may have to be opened, and the key by which it is found again.

    Without a key it is that of the agent that has started the caller, and ends with that process."""

    cwd: str  # absolute
    key: str | None = None


@dataclass(frozen=True, slots=True)
class SessionJoinResult:
    session_id: str
    opened: bool  # just now, by this request
    agent: int | None = None  # the process number of the agent
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionCloseParams:
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionCloseResult:
    """The number of commands that were still running."""

    commands_ended: int = 0


@dataclass(frozen=True, slots=True)
class SessionListParams:
    pass


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session of the daemon."""

    session_id: str
    name: str | None
    cwd: str
    detached: bool
    permission_mode: str
    opened_at: float  # seconds since the epoch
    commands: int  # running now
    violations: int
    policy_generation: int
    implicit: bool = False  # opened for a connection that opened none itself
    violations_lost: int = 0  # the part of `violations` beyond the limit of the record
    published: tuple[str, ...] = ()  # ports that the host can reach, as `HOST:PORT:INNER`
    key: str = ""  # by which `session.join` finds it
    agent: int | None = None  # the process with which it ends
    sent: int = 0  # bytes to servers outside
    names: int = 0  # names looked up, where maxNewNames limits them


@dataclass(frozen=True, slots=True)
class SessionListResult:
    sessions: tuple[SessionRecord, ...]
