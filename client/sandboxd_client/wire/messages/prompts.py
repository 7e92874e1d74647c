"""Permission questions: what the daemon sends to subscribers, what they answer, and what programs ask for.

`sandbox_permission_request` and `sandbox_permission_resolved` come from the daemon; `sandbox_permission_response` goes
to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PromptKind = Literal["sandbox_override", "network", "path"]
AskedKind = Literal["sandbox_override", "network", "path", "trust"]
"""`trust` is asked by the daemon only: may the changed settings files of a project widen?"""
Scope = Literal["once", "command", "session", "always"]
Answer = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class SuggestionRecord:
    """The rule that an answer with the scope `always` adds to the list `key` of local settings."""

    behavior: Answer
    scope: Scope
    key: str
    rule: str


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """One open question. Texts that came from inside a sandbox are neutralised for display. `project` is the directory
    of the session, `text` why it is asked, `warnings` what a yes would really mean, `scopes` those that a yes may
    have. `wide` says that a yes gives very much away: a person should be asked twice."""

    request_id: str
    session_id: str
    kind: AskedKind
    expires_at: float
    host: str | None = None
    port: int | None = None
    path: str | None = None
    command: str | None = None
    command_id: str | None = None
    suggestions: tuple[SuggestionRecord, ...] = ()
    project: str | None = None
    text: str = ""
    write: bool = False
    warnings: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ("once",)
    wide: bool = False


@dataclass(frozen=True, slots=True)
class PermissionResolved:
    """`outcome` is one of answered timed_out no_subscriber withdrawn session_ended; `by` is who answered."""

    request_id: str
    behavior: Answer
    scope: Scope | None = None
    by: str | None = None
    session_id: str = ""
    outcome: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class PermissionSubscribeParams:
    pass


@dataclass(frozen=True, slots=True)
class PermissionSubscribeResult:
    """What is open now; what comes later is told by notifications."""

    open: tuple[PermissionRequest, ...]


@dataclass(frozen=True, slots=True)
class PermissionResponseParams:
    """A deny is remembered for the session, or for `ttl_s` seconds; with `always` it becomes a rule. `confirm`
    says that a person knows what `always` gives away, where the question is `wide`."""

    request_id: str
    behavior: Answer
    scope: Scope = "once"
    ttl_s: float | None = None
    confirm: bool | None = None


@dataclass(frozen=True, slots=True)
class PermissionResponseResult:
    """`warnings` are sentences: a rule that was written is dangerous, or has no effect and why."""

    behavior: Answer
    scope: Scope | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PermissionRequestParams:
    """A question to people. `network` needs `host` and `port`, `path` an absolute `path`, `sandbox_override` a
    `command`. `reason` is shown to them. Without `session_id` the connection's own session for `cwd` is meant."""

    kind: PromptKind
    session_id: str | None = None
    cwd: str | None = None
    host: str | None = None
    port: int | None = None
    path: str | None = None
    write: bool = False
    command: str | None = None
    command_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PermissionRequestResult:
    """`by` is `policy` when it was decided without a question, None when nobody answered. `env` are the variables of
    the session to set for a command that may run without a sandbox."""

    behavior: Answer
    scope: Scope | None
    by: str | None
    text: str
    request_id: str | None = None
    hint: str = ""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PermissionListParams:
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """One yes that holds. `subject` is a host with its port or a path; times are seconds since the epoch."""

    grant_id: str
    session_id: str
    subject: str
    scope: Scope
    by: str
    given_at: float
    expires_at: float | None = None
    command_id: str | None = None


@dataclass(frozen=True, slots=True)
class PermissionListResult:
    grants: tuple[GrantRecord, ...]
    open: tuple[PermissionRequest, ...]
    subscribers: int = 0


@dataclass(frozen=True, slots=True)
class PermissionRevokeParams:
    session_id: str
    grant_id: str


@dataclass(frozen=True, slots=True)
class PermissionRevokeResult:
    subject: str
