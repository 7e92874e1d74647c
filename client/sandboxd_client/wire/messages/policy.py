"""`policy.explain`, `policy.effective`, `policy.describe`: questions to the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sandboxd_client.wire.messages.decisions import Behavior, ReasonRecord

ExplainKind = Literal["path", "host", "command", "socket"]


@dataclass(frozen=True, slots=True)
class ExplainParams:
    """`target` is a path (relative ones are under `cwd`), a host with an optional port, a command line, or the path of
    a Unix socket. `write` asks about writing a path."""

    kind: ExplainKind
    target: str
    write: bool = False
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """`subject` is the target as the policy reads it (canonical path or host). `sandboxed` is for commands only."""

    kind: str
    subject: str
    behavior: Behavior
    reason: ReasonRecord
    hint: str = ""
    sandboxed: bool | None = None


@dataclass(frozen=True, slots=True)
class EffectiveParams:
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class EffectiveResult:
    """`policy` is the whole policy as JSON, each rule with its origin."""

    generation: int
    policy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DescribeParams:
    """`exceptions` are commands that the caller knows cannot work inside, each with why, or an empty text."""

    session_id: str | None = None
    cwd: str | None = None
    exceptions: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DescribeResult:
    """`text` is what a model should be told, `facts` the same for programs."""

    generation: int
    text: str
    facts: dict[str, Any]
