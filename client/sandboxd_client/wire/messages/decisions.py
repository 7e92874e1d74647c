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
    command: str
    session_id: str | None = None
    cwd: str | None = None
    dangerously_disable_sandbox: bool = False


@dataclass(frozen=True, slots=True)
class ShouldSandboxResult:
    """`env` are the variables of the session to set for a command that runs without a sandbox."""

    sandboxed: bool
    behavior: Behavior
    reason: ReasonRecord
    hint: str = ""
    env: dict[str, str] = field(default_factory=dict)
