"""Grammar of permission rules, and their meaning for a sandbox.

    Tool(content)      WebFetch(domain:example.com)   Edit(src/**)   Bash(git push:*)
                       WebFetch(https://example.com/docs/**)
    Tool:content       the same, without parentheses
    Tool               the tool as a whole
    T*(content)        in deny and ask: each tool whose whole name matches

A rule that restricts and cannot be understood must not be ignored: `doubt_about` names it, and no command runs.
https://code.claude.com/docs/en/permissions"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches

from sandboxd.settings.tools import FOREIGN, TOOLS, Feeds, Parameter, RuleList
from sandboxd_client.records import dataclass

_TOOL = re.compile(r"[A-Za-z_*][A-Za-z0-9_.\-*]*")
_ONE_SERVER = re.compile(r"mcp__[A-Za-z0-9_.\-]+?__.*")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)\s*:\s*(.*)", re.DOTALL)
URL_PREFIX = "<url>"
"""Beginning of the content of a WebFetch rule that names a URL instead of a host."""
_URL = re.compile(r"https?://[^/?#\s]+/[^?#\s]*")
_QUOTED = re.compile(r"""(["'`])((?:(?!\1).)+)\1""", re.DOTALL)


class RuleSyntaxError(ValueError):
    """The text is not a rule; `hint` says how to write one."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `content` is None for a bare tool, the host pattern for WebFetch."""

    tool: str
    content: str | None
    text: str

    def meanings(self, kind: RuleList) -> Iterator[tuple[Feeds, str | None]]:
        """Yield the parts of a policy that the rule feeds in a list, with the contents."""
        for rule in _of_each_tool(self, kind):
            tool = TOOLS.get(rule.tool)
            if tool is None:
                continue
            feeds = tool.feeds(kind, alone=rule.content is None)
            parameter = _parameter_of(rule)
            if parameter is not None:
                if parameter is Parameter.OUTSIDE and kind is RuleList.DENY:
                    yield Feeds.SANDBOXED_ONLY, None
                continue
            if rule.content is None:
                yield feeds, None if feeds is Feeds.COMMAND else tool.whole
                continue
            quoted = _QUOTED.fullmatch(rule.content)
            if quoted is None or feeds is Feeds.COMMAND:
                yield feeds, rule.content
            if quoted is not None and kind is not RuleList.ALLOW:
                yield feeds, quoted[2]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The reason why a rule has no effect, or not the one that it seems to have."""

    message: str
    hint: str = ""
    restricts: bool = False
    """It may restrict commands, and is not enforced."""


def parse_rule(text: str) -> Rule:
    """Parse one rule. Raises `RuleSyntaxError`."""
    stripped = text.strip()
    match = _TOOL.match(stripped)
    if match is None:
        raise RuleSyntaxError(
            f"{text!r} does not begin with the name of a tool", "write a rule such as Bash(git push:*) or Edit(src/**)"
        )
    tool, rest = match[0], stripped[match.end() :]
    if not rest:
        return Rule(tool, None, text)
    if rest[0] == "(":
        if not rest.endswith(")"):
            raise RuleSyntaxError(f"{text!r} does not end with a closing parenthesis", f"write {tool}({rest[1:]})")
        content = rest[1:-1]
    elif rest[0] == ":":
        content = rest[1:]
    else:
        inner = rest.strip().removeprefix("(").removesuffix(")")
        raise RuleSyntaxError(f"{text!r} has {rest[0]!r} after the name of the tool", f"write {tool}({inner})")
    content = content.strip()
    if not content:
        raise RuleSyntaxError(f"{text!r} has empty parentheses", f"write {tool} alone for the whole tool")
    if tool == "WebFetch":
        content = _host_of(content, text)
    return Rule(tool, content, text)


def _host_of(content: str, text: str) -> str:
    quoted = _QUOTED.fullmatch(content)
    if _URL.fullmatch(content):
        return URL_PREFIX + content
    name, colon, host = (quoted[2] if quoted else content).partition(":")
    if name.strip() != "domain" or not colon or not host.strip():
        raise RuleSyntaxError(f"{text!r} names no domain", "write WebFetch(domain:example.com)")
    return f"{quoted[1]}{host.strip()}{quoted[1]}" if quoted else host.strip()


def _of_each_tool(rule: Rule, kind: RuleList) -> Iterator[Rule]:
    """Yield the rule for each tool that its name matches; `*` allows no tool."""
    if "*" not in rule.tool:
        yield rule
        return
    if kind is RuleList.ALLOW:
        return
    for name in _matching(rule.tool, TOOLS):
        if name == "WebFetch" and rule.content is not None:
            try:
                yield replace(rule, tool=name, content=_host_of(rule.content, rule.text))
            except RuleSyntaxError:
                continue  # a rule for the other tools of that name
        else:
            yield replace(rule, tool=name)


def _matching(pattern: str, names: Iterable[str], flags: int = 0) -> list[str]:
    whole = re.compile(".*".join(map(re.escape, pattern.split("*"))), flags)
    return [name for name in names if whole.fullmatch(name)]


def _parameter_of(rule: Rule) -> Parameter | None:
    """Return the parameter of a rule such as `Bash(timeout:5)`, or None."""
    match = _PARAMETER.fullmatch(rule.content or "")
    tool = TOOLS.get(rule.tool)
    if match is None or tool is None:
        return None
    parameter = tool.parameter(match[1])
    prefix = tool.is_shell and match[2] == "*" and parameter is not Parameter.OUTSIDE
    return None if prefix else parameter


# --- doubts about a rule ---


def doubt_about(rule: Rule, kind: RuleList) -> Doubt | None:
    """Return the doubt about a rule in a list; None for a rule that is enforced."""
    return _doubt_about_allow(rule) if kind is RuleList.ALLOW else _doubt_about_closing(rule, kind)


def _doubt_about_allow(rule: Rule) -> Doubt | None:
    if "*" in rule.tool:
        if _ONE_SERVER.fullmatch(rule.tool) and "*" not in rule.tool.split("__")[1]:
            return None
        return Doubt(f"{rule.text!r} names a tool with '*', which allows nothing", "write one rule for each tool")
    if _parameter_of(rule) is not None:
        return Doubt(f"{rule.text!r} names a parameter, which allows nothing", _without_parameter(rule))
    tool = TOOLS.get(rule.tool)
    if tool is None:
        return _doubt_about_unknown(rule)
    if not tool.is_shell and _QUOTED.fullmatch(rule.content or ""):
        return Doubt(f"{rule.text!r} has quotes, so it allows nothing", "write it without quotes")
    return None


def _doubt_about_closing(rule: Rule, kind: RuleList) -> Doubt | None:
    known = _matching(rule.tool, TOOLS)
    if not known:
        return _doubt_about_unknown(rule)
    found = list(_of_each_tool(rule, kind))
    if not found:
        return Doubt(f"{rule.text!r} names no domain", "write WebFetch(domain:example.com)", True)
    parameters = {one.tool: _parameter_of(one) for one in found}
    if Parameter.CONTENT in parameters.values() and not (len(found) > 1 and "WebFetch" in parameters):
        return Doubt(f"{rule.text!r} names a parameter that no rule can match", _without_parameter(rule), True)
    if all(parameter is Parameter.CALL for parameter in parameters.values()):
        what = f"{rule.text!r} concerns the call of the tool, not commands, so it has no effect"
        return Doubt(what)
    feeds = {meaning for meaning, _ in rule.meanings(kind)}
    if Feeds.NO_COMMAND in feeds:
        what = f"{rule.text!r} denies all reading, and no command can run without reading"
        return Doubt(what, "name the paths to deny: Read(~/secret/**)", True)
    if feeds == {Feeds.WARNING}:
        what = f"{rule.text!r} denies the tool and not shell commands"
        return Doubt(what, f"write {rule.tool}(//**) for both")
    return None


def _doubt_about_unknown(rule: Rule) -> Doubt | None:
    """Doubt a rule for an unknown tool, which looks as if it denied something."""
    near = meant_tool(rule)
    if near is not None:
        return Doubt(_no_tool(rule), _did_you_mean(near, rule), True)
    if rule.tool.startswith("mcp__") or _matching(rule.tool, FOREIGN):
        return None
    hint = "correct the name of the tool, or use the lists of sandbox.filesystem and sandbox.network"
    return Doubt(_no_tool(rule), hint, rule.content is not None)


def _no_tool(rule: Rule) -> str:
    return f"{rule.text!r} names an unknown tool, so it has no effect"


def _did_you_mean(tool: str, rule: Rule) -> str:
    return f"did you mean {tool}{rule.text.strip()[len(rule.tool) :]}?"


def _without_parameter(rule: Rule) -> str:
    match = _PARAMETER.fullmatch(rule.content or "")
    value = match[2] if match else ""
    return f"write {rule.tool}({value or '…'}) for the command or path itself"


def meant_tool(rule: Rule) -> str | None:
    """Return the tool that a misspelt name most likely means: `bash`, `WebFech`."""
    if rule.tool in TOOLS or _matching(rule.tool, FOREIGN):
        return None
    exact = next(iter(_matching(rule.tool, TOOLS, re.IGNORECASE)), None) if rule.tool.strip("*") else None
    if exact or "*" in rule.tool:
        return exact if not _matching(rule.tool, TOOLS) else None
    return next(iter(get_close_matches(rule.tool, TOOLS, 1, 0.85)), None)
