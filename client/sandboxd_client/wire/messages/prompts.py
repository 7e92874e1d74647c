"""Permission questions: what the daemon sends to subscribers, and what they answer.

`sandbox_permission_request` and `sandbox_permission_resolved` come from the daemon; `sandbox_permission_response` goes
to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PromptKind = Literal["sandbox_override", "network", "path"]
Scope = Literal["once", "command", "session", "always"]


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """One open question. Texts that came from inside a sandbox are neutralised for display."""

    request_id: str
    session_id: str
    kind: PromptKind
    expires_at: float
    host: str | None = None
    port: int | None = None
    path: str | None = None
    command: str | None = None
    command_id: str | None = None
    suggestions: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class PermissionResolved:
    request_id: str
    behavior: str
    scope: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class PermissionResponseParams:
    request_id: str
    behavior: Literal["allow", "deny"]
    scope: Scope = "once"
    ttl_s: float | None = None
