"""Known tools in a command line, whose hosts `sandboxd allow tool` finds in their own configuration. Pure.

A guess from the text, for hints only: of the calls that fetch from the configured hosts, not of those that run programs
of a project."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final

from sandboxd.policy.decision import Decision, Reason

_CALLS: Final = {
    "pip": r"(?:pip[\d.]*|python[\d.]* -m pip) (?:install|download|wheel|index)\b|pipx |uv (?:pip|add|sync|tool)\b",
    "npm": r"(?:npm|pnpm|yarn) (?:install|i|ci|add|update|audit|view|outdated)\b|(?:npm|pnpm|yarn) *$|npx ",
    "cargo": r"cargo (?:build|b|check|fetch|install|update|add|search|vendor)\b",
    "go": r"go (?:get|mod|install|build|list|work)\b",
    "maven": r"mvnw? ",
    "apt": r"apt(?:-get)? (?:update|install|upgrade|dist-upgrade|full-upgrade|download)\b",
    "git": r"git (?:fetch|pull|push|remote update|submodule update)\b",
}
TOOLS: Final = tuple(_CALLS)
_BEGINNING: Final = r"(?:^|[\s;&|('\"/])"
_CALL: Final = re.compile("|".join(f"(?P<{tool}>{_BEGINNING}(?:{calls}))" for tool, calls in _CALLS.items()))
_MOST: Final = 4096


@lru_cache(maxsize=256)
def tool_of(text: str) -> str:
    """Return the first known tool that a command line calls to fetch something, else ""."""
    found = _CALL.search(text[:_MOST])
    return "" if found is None else found.lastgroup or ""


def with_tool(decision: Decision, text: str) -> Decision:
    """Add the way to allow all hosts of the tool to the denial of a host on no list."""
    if decision.reason not in (Reason.HOST_NOT_LISTED, Reason.PROMPT_UNANSWERED) or "allow domain" not in decision.hint:
        return decision
    tool = tool_of(text)
    if not tool:
        return decision
    alone = decision.hint.replace("add it with:", "this one alone:")
    return replace(decision, hint=f"the hosts of {tool}: sandboxd allow tool {tool}; {alone}")
