"""The grammar of permission rules, and the table of what each tool's rules mean for a sandbox.

    Tool(content)      WebFetch(domain:example.com)   Edit(src/**)   Bash(git push:*)
    Tool:content       the same, without parentheses
    Tool               the tool as a whole

A rule for a tool that is not in `FEEDS` is accepted and means nothing here: other programs share the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\*?")


class Kind(StrEnum):
    """The list of `permissions` that a rule stands in."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Feeds(StrEnum):
    """What a rule becomes."""

    ALLOWED_HOST = "allowed host"
    DENIED_HOST = "denied host"
    ALLOW_WRITE = "writable path"
    DENY_WRITE = "unwritable path"
    DENY_READ = "unreadable path"
    COMMAND = "command rule"
    NOTHING = "nothing"


_WRITERS: dict[Kind, Feeds] = {Kind.ALLOW: Feeds.ALLOW_WRITE, Kind.DENY: Feeds.DENY_WRITE}

FEEDS: dict[str, dict[Kind, Feeds]] = {
    "WebFetch": {Kind.ALLOW: Feeds.ALLOWED_HOST, Kind.DENY: Feeds.DENIED_HOST},
    "Edit": _WRITERS,
    "MultiEdit": _WRITERS,
    "NotebookEdit": _WRITERS,
    "Write": _WRITERS,
    # An allow for Read does not become allowRead: every path is readable unless denied, and re-opening a denied
    # region is a decision about the sandbox that deserves its own key.
    "Read": {Kind.DENY: Feeds.DENY_READ},
    "Grep": {Kind.DENY: Feeds.DENY_READ},
    "Glob": {Kind.DENY: Feeds.DENY_READ},
    "Bash": {Kind.ALLOW: Feeds.COMMAND, Kind.DENY: Feeds.COMMAND, Kind.ASK: Feeds.COMMAND},
}


class RuleSyntaxError(ValueError):
    """The text is not a rule. The argument is a sentence; `hint` says what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Rule:
    """`content` is None for a bare tool. For WebFetch it is the host pattern, without `domain:`."""

    tool: str
    content: str | None
    text: str

    def feeds(self, kind: Kind) -> Feeds:
        """What this rule means in the list `kind`. A bare tool other than Bash speaks of the tool only."""
        if self.content is None and self.tool != "Bash":
            return Feeds.NOTHING
        return FEEDS.get(self.tool, {}).get(kind, Feeds.NOTHING)


def parse_rule(text: str) -> Rule:
    """Parse one rule. Raises `RuleSyntaxError`."""
    stripped = text.strip()
    match = _TOOL.match(stripped)
    if match is None:
        raise RuleSyntaxError(
            f"{text!r} does not begin with a tool's name", "rules look like Bash(git push:*) or Edit(src/**)"
        )
    tool, rest = match[0], stripped[match.end() :]
    if not rest:
        return Rule(tool, None, text)
    if rest[0] == "(":
        if not rest.endswith(")"):
            raise RuleSyntaxError(f"{text!r} has no closing parenthesis at its end", f"write {tool}({rest[1:]})")
        content = rest[1:-1]
    elif rest[0] == ":":
        content = rest[1:]
    else:
        inner = rest.strip().removeprefix("(").removesuffix(")")
        raise RuleSyntaxError(f"{text!r} has {rest[0]!r} after the tool's name", f"write {tool}({inner})")
    content = content.strip()
    if not content:
        raise RuleSyntaxError(f"{text!r} says nothing in its parentheses", f"write {tool} alone for the whole tool")
    if tool == "WebFetch":
        content = _host_of(content, text)
    return Rule(tool, content, text)


def _host_of(content: str, text: str) -> str:
    name, colon, host = content.partition(":")
    if name != "domain" or not colon or not host.strip():
        raise RuleSyntaxError(f"{text!r} names no domain", "write WebFetch(domain:example.com)")
    return host.strip()


def meant_tool(rule: Rule) -> str | None:
    """The tool that a rule most likely means when it names none that we know: `bash`, `WebFech`. A rule for a tool that
    is nobody's closes nothing, and looks as if it did."""
    if rule.tool in FEEDS:
        return None
    exact = next((tool for tool in FEEDS if tool.lower() == rule.tool.lower()), None)
    return exact or next(iter(get_close_matches(rule.tool, FEEDS, 1, 0.85)), None)
