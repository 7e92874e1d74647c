"""Expansion of path rules to absolute paths or patterns.

A path in `sandbox.filesystem` (`expand_rule_path`):

| written | means |
| --- | --- |
| `/x`, `//x` | absolute |
| `~`, `~/x` | the home directory; `~name` is an error |
| `$VAR/x`, `${VAR}/x` | the variable's value; an unset or empty variable is an error |
| `./x`, `x`, `../x` | relative to the project directory, for a rule in any file |
| `x/` | the same as `x` |
| `x/**` | the same as `x`: the directory and everything below |
| `*` `?` `[..]` `**` | a pattern; `**` as a whole component matches any number of directories |

`..` is accepted at the start of a relative path only. Anywhere else its meaning would depend on symlinks.

A path in a permission rule (`expand_permission_path`) is written in the same way, except that `/x` is relative to the
project. A rule that denies has every likely meaning.
https://code.claude.com/docs/en/permissions"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from sandboxd_client.records import dataclass, field

MAX_PATH = 4096
_Quote = Callable[[str], str]
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))")
_MAGIC = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\\([^A-Za-z0-9/])")
_CLASS = re.compile(r"\[[!^]?(?:\][^\]]*|[^\]]+)\]")


@dataclass(frozen=True, slots=True)
class PathScope:
    """The directories and variables that a path rule is read against.

    Relative rules refer to `project`, where the session was opened. No rule may open `own_paths`, which are the
    daemon's. `environment` is the daemon's, `caller` holds the differences of the command's caller."""

    home: str
    project: str
    environment: Mapping[str, str] = field(default_factory=dict)
    platform: str = "linux"
    own_paths: tuple[str, ...] = ()
    caller: Mapping[str, str] = field(default_factory=dict)

    def of_caller(self) -> PathScope:
        """Return the scope with the caller's variables."""
        return replace(self, environment={**self.environment, **self.caller}, caller={})


@dataclass(frozen=True, slots=True)
class RulePath:
    path: str
    glob: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """One path that a rule means; a `second` meaning needs an existing path."""

    rule: RulePath
    second: bool = False
    unanchored: str = ""


class RulePathError(ValueError):
    """A rule that names no path."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint


def expand_rule_path(text: str, scope: PathScope) -> RulePath:
    """Return the absolute path or pattern of a rule; raises `RulePathError`."""
    if not text.strip():
        raise RulePathError("path_empty", "the path is empty", 'write "." for the project directory')
    if "\0" in text:
        raise RulePathError("path_invalid", f"{text!r} contains a NUL character")
    _check_classes(text)
    glob = _MAGIC.search(_without_tail(text)) is not None
    quote = quoted if glob else str
    expanded = _absolute(text, scope, quote)
    path = _normalised(expanded, text)
    if len(path) > MAX_PATH:
        raise RulePathError("path_too_long", f"the path is longer than {MAX_PATH} characters: {text[:60]!r}…")
    return RulePath(path, glob)


def unanchored_pattern(text: str, scope: PathScope, *, names: bool = False) -> str:
    """Return the part of a pattern that holds below any directory, else "".

    Such patterns begin in no directory (`**/.env`, `*.pem`). With `names`, a plain name (`.env`) is one too, as in a
    permission rule. Raises `RulePathError`."""
    body = _without_tail(text)
    if not body.startswith("**/"):
        if "/" in body or body in ("", ".", "..") or body[0] in "~$" or not body.strip("*"):
            return ""
        if not names and _MAGIC.search(body) is None:
            return ""
        body = "**/" + body
    beginning = quoted(scope.project).rstrip("/") + "/"
    return expand_rule_path(body, scope).path[len(beginning) :]


def expand_permission_path(text: str, scope: PathScope, *, denies: bool, settings_directory: str = "") -> list[Reading]:
    """Return the paths of a permission rule, its first meaning first."""
    plain = _without_escapes(text)
    if plain != text:
        readings = expand_permission_path(plain, scope, denies=denies, settings_directory=settings_directory)
        return [*readings, Reading(expand_rule_path(text, scope), True)] if denies else readings
    absolute = expand_rule_path(text, scope)
    if not is_project_path(text):
        readings = [Reading(absolute)]
        if denies and (deep := unanchored_pattern(text, scope, names=True)):
            if not absolute.glob:
                readings.append(Reading(expand_rule_path(deep, scope), True, deep))
            else:
                readings = [Reading(expand_rule_path(deep, scope), unanchored=deep)]
        return readings
    below = "./" + text.lstrip("/")
    readings = [Reading(expand_rule_path(below, scope))]
    if denies:
        if settings_directory:
            elsewhere = replace(scope, project=settings_directory)
            readings.append(Reading(expand_rule_path(below, elsewhere), True))
        if not absolute.path.startswith("/**/"):  # a pattern for the whole machine is unlikely to be meant
            readings.append(Reading(absolute, True))
    return readings


def _without_escapes(text: str) -> str:
    """Replace escaped characters (gitignore(5)) by bracketed or plain ones."""
    return _ESCAPED.sub(lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], text)


def is_project_path(text: str) -> bool:
    """Return whether a path with a slash in front is relative to the project."""
    return text.startswith("/") and not text.startswith("//")


def _absolute(text: str, scope: PathScope, quote: _Quote) -> str:
    if text == "~" or text.startswith("~/"):
        return quote(scope.home) + "/" + _with_variables(text[1:], scope, quote)
    if text.startswith("~"):
        raise RulePathError(
            "path_other_home",
            f"{text!r} names another user's home directory",
            "write the directory in full: //home/name",
        )
    expanded = _with_variables(text, scope, quote)
    if expanded.startswith("/"):
        return expanded
    base = scope.project
    while expanded == ".." or expanded.startswith(("../", "./")):
        step, _, expanded = expanded.partition("/")
        base = posixpath.dirname(base) if step == ".." else base
        expanded = expanded.lstrip("/")
    return quote(base) + "/" + expanded


def variables_in(text: str) -> set[str]:
    """Return the names of the variables in a path."""
    return {match["braced"] or match["plain"] for match in _VARIABLE.finditer(text)}


def _with_variables(text: str, scope: PathScope, quote: _Quote) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        value = scope.environment.get(name, "")
        if not value:
            raise RulePathError(
                "path_variable_unset",
                f"{text!r} uses ${name}, which is not set",
                "set it where the daemon is started, or write the path in full",
            )
        return quote(value)

    return _VARIABLE.sub(value_of, text)


def _normalised(path: str, text: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise RulePathError(
            "path_dotdot",
            f"{text!r} has '..' in the middle, which means another place for each symlink",
            "write the path without '..'",
        )
    while parts and parts[-1] == "**":
        parts.pop()
    return "/" + "/".join(parts)


def _without_tail(text: str) -> str:
    """Return the text without the trailing `/**` and slashes, which add nothing."""
    shorter = text.rstrip("/")
    while shorter == "**" or shorter.endswith("/**"):
        shorter = shorter[:-2].rstrip("/")
    return shorter


def _check_classes(text: str) -> None:
    for component in text.split("/"):
        if "[" in _CLASS.sub("", component):
            raise RulePathError(
                "path_glob_invalid",
                f"{text!r} has a '[' without its ']' in {component!r}",
                "write [[] for the character",
            )


def quoted(value: str) -> str:
    """Return a path as a pattern that matches it alone."""
    return _MAGIC.sub(lambda match: f"[{match[0]}]", value)


_DOUBTS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"\A\s|\s\Z"), "has white space around it, which is taken as part of the name", "take it away"),
    (re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://"), "looks like a URL, and is read as a path", "write the path alone"),
    (re.compile(r"\{[^{}/]*,[^{}/]*\}"), "has braces, which are not expanded", "write one rule for each"),
    (re.compile(r"\A!"), "begins with '!', which does not negate a rule", "use the opposite list"),
    (re.compile(r"\\"), "has a backslash, which is part of the name", "write / between names, and [*] for a star"),
)


def doubt(text: str) -> tuple[str, str] | None:
    """Return the doubt about a rule's spelling, and a hint; None without doubt."""
    for pattern, message, hint in _DOUBTS:
        if pattern.search(text):
            return f"{text!r} {message}", hint
    return None
