"""Records of a session: its request, its state, and its hand-over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sandboxd.policy.decision import PermissionMode
from sandboxd.processes import Process
from sandboxd.proxy.session_bounds import BoundsRecord
from sandboxd.runtime.command_record import CommandRecord
from sandboxd.runtime.prompts.grants import GrantsRecord
from sandboxd.runtime.violations.violation_store import ViolationsRecord
from sandboxd_client.records import dataclass, field


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """The request for a session; `cwd` is absolute.

    A detached session outlives its connection; an implicit one belongs to a connection that never asked for a
    session, and ends once that is gone and its last command has ended."""

    cwd: str
    name: str | None = None
    permission_mode: PermissionMode = PermissionMode.PROMPT
    detached: bool = False
    implicit: bool = False
    key: str = ""
    """The name by which callers without a connection of their own find it."""
    agent: Process | None = None
    """The process that it ends with."""
    restricted: bool = False
    """Opened by a connection that has given powers up: its settings only tighten."""

    @property
    def is_planning(self) -> bool:
        return self.permission_mode is PermissionMode.PLAN

    @property
    def only_tightens(self) -> bool:
        """Return whether settings and overrides of callers may only tighten."""
        return self.restricted or self.is_planning

    @property
    def asks(self) -> bool:
        """Return whether decisions that could open something become questions to subscribers."""
        return self.permission_mode not in (PermissionMode.NONE, PermissionMode.PLAN)


@dataclass(frozen=True, slots=True)
class SessionState:
    """One session between two daemons.

    `settings` are those it was opened with; `owner` names the connection that it ends with, empty when that is gone.
    A closed one is only known by what became of its commands; an `orphaned` one ends with its last command, since
    its connection ended with the daemon."""

    session_id: str
    spec: SessionSpec
    opened_at: float
    settings: Any = None
    owner: str = ""
    closed: bool = False
    grants: GrantsRecord = field(default_factory=GrantsRecord)
    violations: ViolationsRecord = field(default_factory=ViolationsRecord)
    commands: tuple[CommandRecord, ...] = ()
    orphaned: bool = False
    added: Any = None
    """Settings that the user has given to a session of an agent."""
    bounds: BoundsRecord = field(default_factory=BoundsRecord)


def joined(records: Iterable[SessionState]) -> list[SessionState]:
    """Join the records of sessions whose commands were kept one by one.

    The record of a command says only to which session it belongs; one without commands holds the session's state."""
    found: dict[str, SessionState] = {}
    for record in sorted(records, key=lambda record: bool(record.commands)):
        known = found.setdefault(record.session_id, record)
        if known is not record:
            found[record.session_id] = replace(known, commands=(*known.commands, *record.commands))
    return list(found.values())
