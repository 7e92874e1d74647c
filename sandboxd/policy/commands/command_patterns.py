"""Patterns for one simple command, in `excludedCommands` and `Bash(…)` rules.

| pattern | matches |
| --- | --- |
| `docker` | the program `docker` with any arguments, or none |
| `uv run:*`, `uv run *` | the words `uv run`, then any arguments, or none; not `uv runner` |
| `npm run build` | exactly these words |
| `npm run test-*`, `git * main` | `*` stands for any text, as long as the rest is there |

Quotes and backslashes in the command are resolved before, and space between words does not count. A pattern that would
match every command is an error in `excludedCommands`."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache

from sandboxd_client.records import dataclass

MAX_PATTERN = 1024


class CommandPatternError(ValueError):
    """A pattern that cannot be used."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A parsed pattern: `words`, or the texts between the stars of a `wildcard`."""

    text: str
    words: tuple[str, ...] = ()
    open_ended: bool = False
    wildcard: tuple[str, ...] = ()

    @property
    def matches_all(self) -> bool:
        return self.open_ended and not self.words and not self.wildcard

    @property
    def is_exact(self) -> bool:
        return not self.open_ended and not self.wildcard

    @property
    def program(self) -> str:
        """The program's name without directory; empty where a wildcard stands for it."""
        start = self.wildcard[0].split(" ")[0] if self.wildcard else "".join(self.words[:1])
        return posixpath.basename(start)

    def matches(self, words: Sequence[str], *, by_name: bool = False) -> bool:
        """Return whether the pattern matches the words of a simple command.

        With `by_name` the program's directory does not count: right for rules that close, wrong for rules that open."""
        if not words:
            return False
        if self._matches(words):
            return True
        name = posixpath.basename(words[0])
        return by_name and name != words[0] and bool(name) and self._matches((name, *words[1:]))

    def _matches(self, words: Sequence[str]) -> bool:
        if self.wildcard:
            return _matches_parts(self.wildcard, shlex.join(words), self.open_ended)
        if self.open_ended:
            return tuple(words[: len(self.words)]) == self.words
        return tuple(words) == self.words


@lru_cache(maxsize=4096)
def parse_command_pattern(text: str) -> CommandPattern:
    """Parse a pattern; raises `CommandPatternError`."""
    body = text.strip()
    if not body:
        raise CommandPatternError("command_pattern_empty", "the pattern is empty", "name a program, such as docker")
    if len(body) > MAX_PATTERN or any(ord(character) < 32 for character in body):
        raise CommandPatternError("command_pattern_invalid", "the pattern is too long or has control characters")
    open_ended = False
    for tail in (":*", " *"):
        if body.endswith(tail):
            body, open_ended = body[: -len(tail)].rstrip(), True
            break
    if not body.strip("* "):
        return CommandPattern(text, (), True)
    if "*" in body:
        return CommandPattern(text, (), open_ended, _wildcard(body))
    try:
        words = tuple(shlex.split(body))
    except ValueError:
        raise CommandPatternError(
            "command_pattern_invalid", f"{text!r} has a quote that is not closed", "close it, or leave it out"
        ) from None
    return CommandPattern(text, words, open_ended or len(words) == 1)


def parse_exclusion(text: str) -> CommandPattern:
    """Parse a pattern, and refuse one that would exclude every program."""
    pattern = parse_command_pattern(text)
    if pattern.matches_all or (pattern.wildcard and text.strip().startswith("*")):
        raise CommandPatternError(
            "command_pattern_matches_all",
            f"{text!r} would take every program out of the sandbox"
            if pattern.matches_all
            else f"{text!r} does not say which program it means",
            "begin with the program's name; to turn the sandbox off, use sandbox.enabled",
        )
    return pattern


def _wildcard(body: str) -> tuple[str, ...]:
    """Return the texts between the stars; runs of space count as one."""
    return tuple(re.sub(r"\s+", " ", re.sub(r"\*+", "*", body)).split("*"))


def _matches_parts(parts: tuple[str, ...], text: str, open_ended: bool) -> bool:
    """Return whether `text` is the parts with anything between; no backtracking."""
    first, *middle, last = parts
    if not text.startswith(first):
        return False
    position = len(first)
    for part in middle:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    if not open_ended:
        return text.endswith(last) and len(text) - len(last) >= position
    found = text.find(last, position)
    while found >= 0:
        end = found + len(last)
        if end == len(text) or text[end] == " ":
            return True
        found = text.find(last, found + 1)
    return False
