"""Warnings about paths that settings open: far too wide, or without effect."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from sandboxd.policy.model import FilePolicy, Missing, PathRule
from sandboxd.policy.paths.rule_paths import (
    PathScope,
    RulePath,
    RulePathError,
    expand_permission_path,
    expand_rule_path,
)
from sandboxd.settings.layer import Layer
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.problems import Problem, error, warning
from sandboxd.settings.rules import RuleSyntaxError, parse_rule
from sandboxd.settings.tools import Feeds, RuleList

_SYSTEM = ("/", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/home", "/root", "/var", "/opt", "/Users",
           "/private", "/private/etc", "/private/var", "/System", "/Library", "/Applications")  # fmt: skip
_MAGIC = re.compile(r"[*?\[]")
_HOME = re.compile(r"/(home|Users)/[^/]+")
_OPENING = ("sandbox.filesystem.allowWrite", "permissions.additionalDirectories", "permissions.allow")
_MAX_ENTRIES = 1_000
"""Limit for one list of one file: a project may send a hundred thousand entries."""
_MOST_PATTERNS = 100


def check_openings(settings: Settings, files: FilePolicy, scope: PathScope) -> Iterator[Problem]:
    """Report entries that open a system directory or home, or that denials cover."""
    for layer in settings.layers:
        for key in _OPENING:
            entries = layer.values.get(key, ())
            for entry in entries[:_MAX_ENTRIES] if isinstance(entries, tuple) else ():
                yield from _check_width(layer, entry.value, entry.origin, scope)
    yield from _covered(files)


def _check_width(layer: Layer, text: str, origin: Origin, scope: PathScope) -> Iterator[Problem]:
    try:
        opened = _opened(text, origin.key, scope)
    except (RulePathError, RuleSyntaxError):
        return  # reported by the builder
    wide = None if opened is None else _wide(opened, scope.home)
    if wide is None:
        return
    message = f"{text!r} opens {wide} to be written: programs outside the sandbox obey files there"
    hint = "name the directories that commands have to write"
    if layer.source is Source.PROJECT:
        yield error("path_too_wide", message, origin, hint=hint, fatal=False)
    else:
        yield warning("path_too_wide", message, origin, hint=hint)


def _opened(text: str, key: str, scope: PathScope) -> RulePath | None:
    if key != "permissions.allow":
        return expand_rule_path(text, scope)
    for feeds, content in parse_rule(text).meanings(RuleList.ALLOW):
        if feeds is Feeds.ALLOW_WRITE and content is not None:
            return expand_permission_path(content, scope, denies=False)[0].rule
    return None


def _wide(opened: RulePath, home: str) -> str | None:
    """Return the system directory or home that an entry opens, as `/e*c` does."""
    path = opened.path
    while opened.glob and path != "/" and not posixpath.basename(path).strip("*"):
        path = posixpath.dirname(path)
    above_home = [home]
    while above_home[-1] != "/":
        above_home.append(posixpath.dirname(above_home[-1]))
    if not (opened.glob and _MAGIC.search(path)):
        return path if path in _SYSTEM or path in above_home or _HOME.fullmatch(path) else None
    return next((one for one in (*above_home, *_SYSTEM) if _matches(path.split("/"), one.split("/"))), None)


def why_writable(program: str, files: FilePolicy, scope: PathScope) -> str:
    """Return why commands can write an excluded program, as far as the rules say."""
    if "/" not in program:
        return ""
    if program.startswith("~/"):
        program = scope.home + program[1:]
    if not program.startswith("/"):
        return "it is in the working directory, which commands can write"
    names = posixpath.normpath(program.partition("*")[0]).split("/")
    above = {"/".join(names[:length]) or "/" for length in range(1, len(names) + 1)}
    if scope.project in above and scope.project not in (scope.home, "/"):
        return f"commands can write {scope.project}"
    literal = next((rule for rule in files.allow_write if not rule.glob and rule.path in above), None)
    if literal is not None:
        return f"commands can write {literal.path}: {literal.origin}"
    patterns = [rule for rule in files.allow_write if rule.glob][:_MOST_PATTERNS]
    found = (rule for rule in patterns if any(_matches(rule.path.split("/"), path.split("/")) for path in above))
    rule = next(found, None)
    return "" if rule is None else f"commands can write {rule.text or rule.path}: {rule.origin}"


def _covered(files: FilePolicy) -> Iterator[Problem]:
    literal: dict[str, PathRule] = {}
    patterns: list[PathRule] = []
    for rule in files.deny_write:
        if rule.missing is Missing.UNMEANT:
            continue
        if rule.glob:
            patterns.append(rule)
        else:
            literal.setdefault(rule.path, rule)
    for opened in files.allow_write if files.deny_write else ():
        denial = _above(opened.path, literal) or _by_pattern(opened, patterns)
        if denial is not None and opened.missing is Missing.TELL:  # an entry of a preset cannot be removed
            message = f"{opened.text!r} opens nothing: {denial.text!r} in {denial.origin} denies writing there"
            yield warning("path_covered", message, opened.origin, hint="take one of the two out: the denial counts")


def _above(path: str, rules: dict[str, PathRule]) -> PathRule | None:
    while path not in rules and path != "/":
        path = posixpath.dirname(path)
    return rules.get(path)


def _by_pattern(opened: PathRule, patterns: list[PathRule]) -> PathRule | None:
    for rule in patterns[:_MOST_PATTERNS]:
        if opened.glob:
            if rule.path == opened.path:
                return rule
            continue
        names = opened.path.split("/")
        if any(_matches(rule.path.split("/"), names[:length]) for length in range(2, len(names) + 1)):
            return rule
    return None


def _matches(pattern: list[str], names: list[str]) -> bool:
    """Return whether a pattern matches a path, by sets of states, not recursion."""
    states = {0}
    for name in names:
        states = _passed(pattern, states)
        states = {
            state if pattern[state] == "**" else state + 1
            for state in states
            if state < len(pattern) and (pattern[state] == "**" or fnmatchcase(name, pattern[state]))
        }
    return len(pattern) in _passed(pattern, states)


def _passed(pattern: list[str], states: set[int]) -> set[int]:
    """Return the states, and those behind each `**`, which may stand for nothing."""
    found = set(states)
    for state in sorted(states):
        while state < len(pattern) and pattern[state] == "**":
            state += 1
            found.add(state)
    return found
