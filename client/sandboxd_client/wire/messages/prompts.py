"""Prompts: notifications to subscribers, answers, and permission queries."""

from __future__ import annotations

from typing import Literal

from sandboxd_client.records import dataclass, field

PromptKind = Literal["sandbox_override", "network", "path", "command"]
AskedKind = Literal["sandbox_override", "network", "path", "command", "trust"]
"""`trust` comes from the daemon only: whether changed settings files of a project may widen."""
Scope = Literal["once", "command", "session", "always"]
Answer = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class SuggestionRecord:
    """A rule that the scope `always` can add to the list `key`; the first one is the narrowest."""

    behavior: Answer
    scope: Scope
    key: str
    rule: str
    kind: str = "rule"  # or exclude: the commands of `pattern` run outside the sandbox from then on
    pattern: str | None = None
    wide: bool = False  # it opens very much: confirm it with the user


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """One open prompt, with texts neutralised for display."""

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
    project: str | None = None  # the directory of the session
    text: str = ""  # the reason of the prompt
    write: bool = False
    warnings: tuple[str, ...] = ()  # the consequences of an `allow`
    scopes: tuple[Scope, ...] = ("once",)  # the scopes that an `allow` may have
    wide: bool = False  # an `allow` opens very much: confirm it with the user


@dataclass(frozen=True, slots=True)
class PermissionResolved:
    """The end of a prompt."""

    request_id: str
    behavior: Answer
    scope: Scope | None = None
    by: str | None = None  # the subscriber that answered
    session_id: str = ""
    outcome: str = ""  # answered, timed_out, no_subscriber, withdrawn or session_ended
    text: str = ""


@dataclass(frozen=True, slots=True)
class PermissionSubscribeParams:
    original_names: bool = False  # notifications have `requestId`, `toolUseId` and `decision`, too
    watch: bool | None = None  # only be told: a watcher cannot answer, and no question waits for it


@dataclass(frozen=True, slots=True)
class PermissionSubscribeResult:
    """The open prompts; notifications announce later ones."""

    open: tuple[PermissionRequest, ...]


@dataclass(frozen=True, slots=True)
class PermissionResponseParams:
    """The answer to a prompt; with the scope `always` it becomes a rule."""

    request_id: str
    behavior: Answer | None = None
    scope: Scope = "once"
    ttl_s: float | None = None  # seconds that a `deny` is remembered; None: until the session ends
    confirm: bool | None = None  # the user knows the consequences of `always`, where the prompt is `wide`
    pattern: str | None = None  # the suggestion that `always` writes; default: the first one
    decision: Answer | None = None  # another name of `behavior`
    tool_use_id: str | None = None  # with `host`: what is answered; an answer to another question is refused
    host: str | None = None


@dataclass(frozen=True, slots=True)
class PermissionResponseResult:
    """The recorded answer; `warnings` mark a dangerous or void rule."""

    behavior: Answer
    scope: Scope | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PermissionRequestParams:
    """A permission query.

    `network` needs `host` and `port`, `path` an absolute `path`, `sandbox_override` and `command` a `command`."""

    kind: PromptKind
    session_id: str | None = None  # default: the connection's own session for `cwd`
    cwd: str | None = None
    host: str | None = None
    port: int | None = None
    path: str | None = None
    write: bool = False
    command: str | None = None
    command_id: str | None = None
    reason: str = ""  # text for the user
    search_path: str | None = None  # the PATH of `command`; by default that of the caller's process
    is_sandbox: bool | None = None  # $IS_SANDBOX of the caller is set; by default that of its process


@dataclass(frozen=True, slots=True)
class PermissionRequestResult:
    """The answer to a permission query."""

    behavior: Answer
    scope: Scope | None
    by: str | None  # `policy` without a prompt, None without an answer
    text: str
    request_id: str | None = None
    hint: str = ""
    env: dict[str, str] = field(default_factory=dict)  # variables of the session for a run without a sandbox
    outcome: str = ""  # of the prompt, as in `PermissionResolved`; "" without one


@dataclass(frozen=True, slots=True)
class PermissionListParams:
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A grant in force; times are seconds since the epoch."""

    grant_id: str
    session_id: str
    subject: str  # host:port or a path
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
    notified: bool = False  # programs tell a user of questions, so they wait without a subscriber


@dataclass(frozen=True, slots=True)
class PermissionRevokeParams:
    session_id: str
    grant_id: str


@dataclass(frozen=True, slots=True)
class PermissionRevokeResult:
    subject: str
