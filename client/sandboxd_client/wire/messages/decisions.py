"""`should_sandbox`, and the form of every decision."""

from __future__ import annotations

from typing import Literal

from sandboxd_client.records import dataclass, field
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.prompts import SuggestionRecord

Behavior = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class ReasonRecord:
    """The reason of a decision."""

    type: str  # a reason code of the daemon, such as `excluded` or `hostDenied`
    text: str  # one sentence for the user
    rule: str | None = None
    origin: OriginRecord | None = None


@dataclass(frozen=True, slots=True)
class ShouldSandboxParams:
    """A command line to decide about."""

    command: str
    session_id: str | None = None
    cwd: str | None = None
    dangerously_disable_sandbox: bool = False
    path: str | None = None  # the PATH of the command; by default that of the caller's process
    is_sandbox: bool | None = None  # $IS_SANDBOX of the caller is set; by default that of its process


@dataclass(frozen=True, slots=True)
class ShouldSandboxResult:
    """The decision on a command line.

    `env` holds the variables for a run without a sandbox: those of the session and, for an excluded command, PATH
    without directories that commands can write."""

    sandboxed: bool
    behavior: Behavior
    reason: ReasonRecord
    hint: str = ""
    env: dict[str, str] = field(default_factory=dict)
    question: Literal["command", "sandbox_override"] | None = None  # the kind of `permission.request` that asks
    suggestions: tuple[SuggestionRecord, ...] = ()  # the rules that `always` can write then
