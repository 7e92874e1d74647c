"""Path patterns as regular expressions that Seatbelt understands. Pure.

The patterns mean what `host.globs` makes of them on Linux:

| written | matches | regular expression |
| --- | --- | --- |
| `**` as a whole component | any number of directories, none too | `(/[^/]+)*` |
| `*` | any characters of one name, a leading dot too | `[^/]*` |
| `?` | one character of a name | `[^/]` |
| `[a-c]` `[!a-c]` | one character of a name | `[a-c]` `[^a-c/]` |
| everything else | itself | itself, escaped where it is special |

A rule also covers what lies below a match, so an expression ends in `(/|$)`. Only constructs are used that mean the
same to every engine: no `.`, no counts, no backslash in a class.

Patterns that deny match every spelling of their letters, as the volume does; classes stay as they are written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sandboxd.backends.macos.seatbelt.case_folding import fold, quote
from sandboxd.errors import PolicyError
from sandboxd.paths import is_below
from sandboxd.plan.host_queries import split_pattern

LONGEST = 900
"""Bytes of one expression. macOS refuses somewhere above 1,000."""
END = "(/|$)"


@dataclass(frozen=True)
class Glob:
    """A pattern below a literal directory.

    `base` (`/`, or without a trailing slash), then one expression per component, None for `**`. The last one is never
    None: `x/**` is the directory `x`. What of `base` lies below `existing` matches in every spelling."""

    base: str
    parts: tuple[str | None, ...]
    existing: str | None = None

    @cached_property
    def expression(self) -> str:
        """Return an expression for matches and paths below them. Raises `PolicyError`."""
        parts = "".join("(/[^/]+)*" if part is None else "/" + part for part in self.parts)
        existing = (self.base if self.existing is None else self.existing).rstrip("/")
        return checked(f"^{quote(existing)}{fold(self.base.rstrip('/')[len(existing) :])}{parts}{END}", self.base)

    @property
    def is_deep(self) -> bool:
        return None in self.parts

    @property
    def depth(self) -> int:
        """The number of components of a match without `**`."""
        return self.base.count("/") * (self.base != "/") + len(self.parts)

    def rebased(self, base: str, existing: str | None = None) -> Glob:
        """Return the pattern below another directory, its real literal beginning."""
        return Glob(base, self.parts, existing)

    def meets(self, path: str) -> Meeting:
        """Return the relation of a literal path to the pattern."""
        below = _components_below(path, self.base)
        if below is None:
            if is_below(self.base, path):
                return Meeting(False, False, (self,))
            return Meeting(False, False, ())
        states = self._closure({0})
        above = False
        for name in below:
            above = above or len(self.parts) in states
            states = self._closure(self._step(states, name))
        exact = len(self.parts) in states
        rest = tuple(Glob(path, self.parts[state:]) for state in sorted(states) if state < len(self.parts))
        return Meeting(above, exact, tuple(_without_repeats(rest)))

    def _closure(self, states: set[int]) -> set[int]:
        for state in sorted(states):
            following = state
            while following < len(self.parts) and self.parts[following] is None:
                following += 1
                states.add(following)
        return states

    def _step(self, states: set[int], name: str) -> set[int]:
        found = set()
        for state in states:
            if state == len(self.parts):
                continue
            part = self.parts[state]
            if part is None:
                found.add(state)
            elif _name_pattern(part).fullmatch(name):
                found.add(state + 1)
        return found


@dataclass(frozen=True, slots=True)
class Meeting:
    """The relation of a path to a pattern.

    `above`: the path lies below a match. `exact`: it is one. `below`: the parts of the pattern that can match strictly
    below it, as patterns."""

    above: bool
    exact: bool
    below: tuple[Glob, ...]


def parse_glob(pattern: str, *, folded: bool = False) -> Glob:
    """Parse an absolute pattern of `policy.paths.rule_paths`; `folded` takes letters in every spelling.

    Raises `PolicyError` for what cannot be expressed."""
    beginning, parts = split_pattern(pattern)
    return Glob(beginning, tuple(_component(part, pattern, fold if folded else quote) for part in parts))


def _component(part: str, pattern: str, literal: Callable[[str], str]) -> str | None:
    if part == "**":
        return None
    if not part.strip("*"):
        return "[^/]+"
    return "".join(_pieces(part, pattern, literal))


def _pieces(part: str, pattern: str, literal: Callable[[str], str]) -> Iterator[str]:
    position = 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            while part[position : position + 1] == "*":
                position += 1
            yield "[^/]*"
        elif character == "?":
            yield "[^/]"
        elif character == "[":
            end = _class_end(part, position)
            if end is None:
                yield r"\["
            else:
                yield _class(part[position:end], pattern)
                position = end + 1
        else:
            end = next((at for at in range(position, len(part)) if part[at] in "*?["), len(part))
            yield literal(part[position - 1 : end])
            position = end


def _class_end(part: str, start: int) -> int | None:
    position = start
    if part[position : position + 1] == "!":
        position += 1
    if part[position : position + 1] == "]":
        position += 1
    end = part.find("]", position)
    return end if end >= 0 else None


def _class(inside: str, pattern: str) -> str:
    """Convert a bracket expression.

    `]`, `[`, `^` and the backslash become alternatives outside the class: inside, engines read them differently."""
    negated = inside.startswith("!")
    items = list(_class_items(inside[1:] if negated else inside))
    outside = [item for item in items if item in ("]", "[", "^", "\\", "-")]
    inner = "".join(item for item in items if item not in outside)
    if negated:
        if set(outside) - {"-"}:
            raise PolicyError(
                "pattern_unsupported",
                f"{pattern}: a negated class with [, ], ^ or a backslash cannot be enforced on macOS",
                hint="write the pattern without it",
                data={"pattern": pattern},
            )
        return f"[^{inner}/{'-' if outside else ''}]"
    choices = [f"[{inner}]"] if inner else []
    choices += [quote(item) for item in outside]
    if not choices:
        # an empty range such as [b-a] matches nothing, and neither does a name with a slash
        return "/"
    return choices[0] if len(choices) == 1 else f"({'|'.join(choices)})"


def _class_items(inside: str) -> Iterator[str]:
    """Split into characters and ranges, without empty ranges, as `fnmatch` does."""
    position = 0
    while position < len(inside):
        if inside[position + 1 : position + 2] == "-" and position + 2 < len(inside):
            first, last = inside[position], inside[position + 2]
            position += 3
            if first <= last:
                yield from _range(first, last)
        else:
            yield inside[position]
            position += 1


def _range(first: str, last: str) -> Iterator[str]:
    """Return a range without the characters that a class cannot hold."""
    awkward = [c for c in "-[\\]^" if first <= c <= last]
    if not awkward:
        yield f"{first}-{last}" if first != last else first
        return
    yield from awkward
    start = first
    for character in awkward:
        yield from _plain_range(start, chr(ord(character) - 1))
        start = chr(ord(character) + 1)
    yield from _plain_range(start, last)


def _plain_range(first: str, last: str) -> Iterator[str]:
    if first < last:
        yield f"{first}-{last}"
    elif first == last:
        yield first


@lru_cache(maxsize=4096)
def _name_pattern(part: str) -> re.Pattern[str]:
    return re.compile(part)


def _components_below(path: str, base: str) -> list[str] | None:
    if path == base:
        return []
    prefix = base if base == "/" else base + "/"
    return path[len(prefix) :].split("/") if path.startswith(prefix) else None


def _without_repeats(globs: Iterable[Glob]) -> Iterator[Glob]:
    """Drop repeated states: `**` covers the state behind it."""
    skip: Glob | None = None
    for glob in globs:
        if skip is None or glob != skip:
            yield glob
        skip = Glob(glob.base, glob.parts[1:]) if glob.parts and glob.parts[0] is None else None


def checked(expression: str, what: str) -> str:
    """Return an expression that macOS accepts. Raises `PolicyError`."""
    size = _size(expression)
    if size > LONGEST:
        raise PolicyError(
            "pattern_too_long",
            f"a pattern below {what[:100]} needs an expression of {size:,} bytes; macOS takes {LONGEST}",
            hint="write a shorter pattern, or start it in a directory with a shorter name",
        )
    return expression


def _size(text: str) -> int:
    """Return the bytes of a text in its longest spelling."""
    return max(len(one.encode("utf-8", "surrogateescape")) for one in (text, unicodedata.normalize("NFD", text)))


def alternatives(before: str, texts: Iterable[str], after: str) -> Iterator[str]:
    """Return expressions `before(a|b|…)after` of all texts, each short enough.

    The texts are expressions. Raises `PolicyError` when a single one is too long."""
    room = LONGEST - _size(before + after + "()")
    chunk: list[str] = []
    size = 0
    for text in texts:
        width = _size(text) + 1
        if chunk and size + width > room:
            yield checked(f"{before}({'|'.join(chunk)}){after}", before)
            chunk, size = [], 0
        chunk.append(text)
        size += width
    if chunk:
        yield checked(f"{before}({'|'.join(chunk)}){after}", before)
