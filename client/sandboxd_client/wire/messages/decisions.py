"""`should_sandbox`, and the shape in which every decision travels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sandboxd_client.wire.messages.origins import OriginRecord

Behavior = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class ReasonRecord:
    """`type` is one of the fixed words of the daemon (`excluded`, `hostDenied`, …), `text` one sentence for people."""

    type: str
    text: str
    rule: str | None = None
    origin: OriginRecord | None = None


@dataclass(frozen=True, slots=True)
class ShouldSandboxParams:
    """`path` is the PATH that the command would be run with; by default that of the caller's process."""

    command: str
    session_id: str | None = None
    cwd: str | None = None
    dangerously_disable_sandbox: bool = False
    path: str | None = None


@dataclass(frozen=True, slots=True)
class ShouldSandboxResult:
    """`env` are the variables to set for a command that runs without a sandbox: those of its session, and for an
    excluded one the PATH without places that commands can write."""

    sandboxed: bool
    behavior: Behavior
    reason: ReasonRecord
    hint: str = ""
    env: dict[str, str] = field(default_factory=dict)
