"""Recorder of audit events, and the handling of a log that cannot be written.

Each event of `runtime.events` becomes one line, without recognisable secrets. With `audit.onFull: block` no command is
handed out whose line could not be written. With `drop` lines are counted, and the next line that can be written reports
the number. Other lines than those of commands never block: a violation has happened even when the disk is full."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.audit.audit_bounds import LONGEST_COMMAND, AuditBounds
from sandboxd.daemon.audit.audit_chain import BEGINNING, default_path
from sandboxd.daemon.audit.audit_log import AuditLog
from sandboxd.daemon.redaction import redact
from sandboxd.errors import HostError
from sandboxd.policy.decision import Decision
from sandboxd.policy.display import neutralise
from sandboxd.policy.model import AuditPolicy
from sandboxd.policy.violation import Violation
from sandboxd.runtime.events import (
    CommandDecided,
    Connected,
    Controlled,
    Event,
    Fallback,
    PolicyChanged,
    RunEnded,
    RunPrepared,
    RunRefused,
    RunStarted,
)
from sandboxd.runtime.prompts.prompt_records import Asked, ResolvedQuestion
from sandboxd.settings.origins import Origin
from sandboxd_client.records import dataclass

SYNC_S = 1.0
_MORE_READ = 2048
"""Characters beyond the limit that are searched, to see a secret whole."""
_ASKED_BEFORE = {CommandDecided: "decision", RunRefused: "run_refused"}


@dataclass(frozen=True, slots=True)
class AuditState:
    """State for `status`, with this daemon's lines and lost lines."""

    enabled: bool
    path: str
    lines: int = 0
    lost: int = 0
    failure: str = ""
    blocking: bool = False


class AuditRecorder:
    """Audit recorder of a daemon. `policy` returns the present settings."""

    def __init__(self, policy: Callable[[], AuditPolicy], home: str, log: FilteringBoundLogger) -> None:
        self._policy = policy
        self._default = default_path(home)
        self._log = log
        self._file: AuditLog | None = None
        self._opened_for: AuditPolicy | None = None
        self._reached = "", BEGINNING
        """Last open file, and its last line."""
        self._bounds = AuditBounds()
        self._lines = 0
        self._lost = 0
        """Lines lost since the start; the log does not yet report `_unreported` of them."""
        self._unreported = 0
        self._failure: HostError | None = None
        self._dirty: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AuditRecorder]:
        """Write as long as the context lasts."""
        try:
            self._ready()
            yield self
        finally:
            if self._dirty is not None:
                self._dirty.cancel()
            if self._syncing is not None:
                await asyncio.wait([self._syncing])
            if self._file is not None:
                self._note({"kind": "closed"})
                await asyncio.to_thread(self._sync)
                self._close()

    @property
    def state(self) -> AuditState:
        policy = self._policy()
        failure = "" if self._failure is None else self._failure.message
        path = policy.path or self._default
        return AuditState(policy.enabled, path, self._lines, self._lost, failure, policy.on_full == "block")

    def directories(self) -> tuple[str, ...]:
        """Return the directories that commands must not see."""
        policy = self._policy()
        return (os.path.dirname(policy.path or self._default),) if policy.enabled else ()

    def guard(self, event: RunPrepared) -> None:
        """Write a command's line. Raises HostError on failure under `block`."""
        if not self._ready() and not self._policy().enabled:
            return
        self._note(self._record_of(event))
        if self._failure is not None and self._policy().on_full == "block":
            raise self._failure

    def listen(self, event: Event) -> None:
        if isinstance(event, PolicyChanged):
            self._ready()
        if self._file is None and not self._policy().enabled:
            return
        kind = _ASKED_BEFORE.get(type(event))
        if isinstance(event, RunPrepared) or (kind is not None and self._bounds.is_over(kind)):
            return
        if isinstance(event, RunEnded):
            for line in self._bounds.ended(event.session_id, _text(event.command_id)):
                self._note({"kind": line.pop("kind"), **_who(event), **line})
        self._note(self._record_of(event))

    def _record_of(self, event: Event) -> dict[str, Any] | None:
        record = record_of(event, self._bounds.longest() if hasattr(event, "command") else LONGEST_COMMAND)
        return None if record is None else self._bounds.admitted(record)

    def _ready(self) -> bool:
        """Return whether the right file is open, opening it if needed. Keeps a failure."""
        policy = self._policy()
        if not policy.enabled:
            if self._file is not None:
                self._note({"kind": "closed", "reason": "audit.enabled is off"})
                self._close()
            self._failure = None
            return False
        if self._file is not None and self._opened_for == policy:
            return True
        if self._file is not None:
            self._note({"kind": "closed", "reason": "the settings of the audit log have changed"})
            self._close()
        path = policy.path or self._default
        after = self._reached[1] if self._reached[0] == path else BEGINNING
        try:
            self._file = AuditLog(path, policy.max_bytes, policy.keep, _now, after)
        except HostError as error:
            self._failed(error)
            return False
        self._opened_for = policy
        self._lines += 1
        self._failure = None
        return True

    def _note(self, record: dict[str, Any] | None) -> None:
        """Write one line, or count it as lost."""
        if record is None:
            return
        if self._file is not None and not self._file.is_in_place:
            self._log.error("the audit log was moved or removed; it continues in a new file", path=self._file.path)
            self._close()
        if self._file is None and not self._ready():
            self._lost += 1
            self._unreported += 1
            return
        assert self._file is not None
        try:
            if self._unreported:
                self._file.append({"time": _now(), "kind": "lost", "lines": self._unreported})
                self._unreported = 0
                self._lines += 1
            self._file.append({"time": _now(), **record})
        except OSError as error:
            self._lost += 1
            self._unreported += 1
            reason = error.strerror or str(error)
            self._failed(
                HostError(
                    "audit_unavailable",
                    f"the audit log {self._file.path} cannot be written: {reason}",
                    hint="free disk space or correct its permissions; audit.onFull: drop lets commands run without it",
                    data={"path": self._file.path},
                )
            )
            return
        self._lines += 1
        self._failure = None
        if self._dirty is None:
            self._dirty = asyncio.get_running_loop().call_later(SYNC_S, self._sync_later)

    def _failed(self, error: HostError) -> None:
        if self._failure is None or self._failure.message != error.message:
            self._log.error("the audit log cannot be written", reason=error.message, hint=error.hint)
        self._failure = error

    def _sync_later(self) -> None:
        self._dirty = None
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._sync), name="audit-sync")

    def _sync(self) -> None:
        try:
            if self._file is not None:
                self._file.sync()
        except OSError as error:
            self._log.error("cannot synchronise the audit log to disk", reason=error.strerror or str(error))

    def _close(self) -> None:
        if self._file is not None:
            self._reached = self._file.path, self._file.position
            self._file.close()
            self._file = None


def record_of(event: Event, longest: int = LONGEST_COMMAND) -> dict[str, Any] | None:
    """Return the line of an event without its time; None for a counted event.

    Texts are redacted, and those from inside a sandbox neutralised. `longest` limits the text of a command."""
    match event:
        case RunPrepared():
            return {
                "kind": "run",
                **_who(event),
                "cwd": neutralise(event.cwd, longest),
                "command": _command(event.command, longest),
                "layers": list(event.layers),
                "warnings": [_text(warning) for warning in event.warnings],
                "policy_generation": event.generation,
            }
        case RunRefused():
            return {
                "kind": "run_refused",
                "session_id": event.session_id,
                "cwd": neutralise(event.cwd, longest),
                "command": _command(event.command, longest),
                "slug": event.slug,
                "reason": _text(event.message),
            }
        case RunStarted():
            return {"kind": "started", **_who(event), "pid": event.pid}
        case RunEnded():
            reason = None if event.reason is None else _text(event.reason)
            return {"kind": "ended", **_who(event), "ran": event.started, "status": event.status, "reason": reason}
        case Connected():
            return {
                "kind": "connection",
                "session_id": event.session_id,
                "command_id": _text(event.command_id),
                "operation": event.operation,
                "target": _text(f"{event.host}:{event.port}"),
                "address": event.address,
                **_decision(event.decision),
            }
        case CommandDecided():
            return {
                "kind": "decision",
                "session_id": event.session_id,
                "command": _command(event.command, longest),
                "sandboxed": event.sandboxed,
                **_decision(event.decision),
            }
        case Fallback():
            return {
                "kind": "fallback",
                "session_id": event.session_id,
                "command_id": event.command_id,
                "what": event.what,
                "why": _text(event.why),
            }
        case PolicyChanged():
            return {"kind": "settings", "policy_generation": event.generation, "keys": list(event.keys)}
        case Controlled():
            return {"kind": "control", "method": event.method, "pid": event.pid}
        case Asked():
            question = event.question
            return {
                "kind": "question",
                "request_id": event.request_id,
                "session_id": event.session_id,
                "command_id": question.command_id,
                "about": question.kind.value,
                "subject": _text(question.subject),
                "command": None if question.command is None else _command(question.command, longest),
            }
        case ResolvedQuestion():
            return {
                "kind": "answer",
                "request_id": event.request_id,
                "session_id": event.session_id,
                "allowed": event.allowed,
                "outcome": event.outcome.value,
                "scope": None if event.scope is None else event.scope.value,
                "by": event.by,
            }
        case Violation():
            return {
                "kind": "violation",
                "session_id": event.session_id,
                "command_id": _text(event.command_id),
                "what": event.kind.value,
                "operation": event.operation,
                "target": _text(event.target),
                "outcome": event.outcome,
                "source": event.source.value,
                "process": event.process,
                "rule": event.rule,
                "origin": _origin(event.origin),
                "count": event.count,
                "inferred": event.inferred,
                "policy_generation": event.policy_generation,
            }
    return None


def _who(event: RunPrepared | RunStarted | RunEnded) -> dict[str, Any]:
    return {"session_id": event.session_id, "command_id": _text(event.command_id), "wrap_id": event.wrap_id}


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "behavior": decision.behavior.value,
        "reason": decision.reason.value,
        "rule": decision.rule,
        "origin": _origin(decision.origin),
    }


def _origin(origin: Origin | None) -> str | None:
    return None if origin is None else neutralise(str(origin))


def _command(text: str, longest: int) -> str:
    return neutralise(str(redact("", text[: longest + min(longest, _MORE_READ)])), longest)


def _text(text: str) -> str:
    return neutralise(str(redact("", text)))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
