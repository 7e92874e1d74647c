"""The regular expressions of Seatbelt, as far as their meaning is undisputed.

The kernel has a small engine of its own. What is accepted here is the part that profiles in the wild use and that means
the same in POSIX extended syntax and elsewhere: literals, `.`, classes, groups, `|`, `*`, `+`, `?`, `^`, `$` and a
backslash before a character that is special. Counts, look-arounds, back references and `\\d` are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache

from support.sbpl_reader import SbplError

LONGEST = 1000
"""Bytes. Longer expressions are refused when a profile is compiled."""

_SPECIAL = frozenset(".[]()*+?|^$\\{}/-")
_TRANSLATED = {"^": r"\A", "$": r"\Z"}


@lru_cache(maxsize=20_000)
def compile_regex(text: str) -> re.Pattern[str]:
    """For `search`: not anchored unless it says so. Raises SbplError."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > LONGEST:
        raise SbplError(f"a regular expression of {size} bytes is too long")
    if not text:
        raise SbplError("an empty regular expression")
    try:
        return re.compile("".join(_translate(text)))
    except re.error as error:
        raise SbplError(f"not a regular expression: {text!r}: {error}") from error


def _translate(text: str) -> list[str]:
    parts: list[str] = []
    position = 0
    repeatable = False
    while position < len(text):
        character = text[position]
        if character == "\\":
            following = text[position + 1 : position + 2]
            if following not in _SPECIAL or not following:
                raise SbplError(f"\\{following} has no agreed meaning in {text!r}")
            parts.append(re.escape(following))
            position += 2
            repeatable = True
        elif character == "[":
            end = _class_end(text, position)
            parts.append(_class(text[position:end], text))
            position = end
            repeatable = True
        elif character in "{}":
            raise SbplError(f"{character} has no agreed meaning in {text!r}")
        elif character in "*+?":
            if not repeatable:
                raise SbplError(f"{character} repeats nothing, or twice, in {text!r}")
            parts.append(character)
            position += 1
            repeatable = False
        elif character in ".()|^$":
            parts.append(_TRANSLATED.get(character, character))
            position += 1
            repeatable = character in ".)"
        else:
            parts.append(re.escape(character))
            position += 1
            repeatable = True
    return parts


def _class_end(text: str, start: int) -> int:
    position = start + 1
    if text[position : position + 1] == "^":
        position += 1
    if text[position : position + 1] == "]":
        position += 1
    while position < len(text) and text[position] != "]":
        position += 1
    if position >= len(text):
        raise SbplError(f"a class is not closed in {text!r}")
    return position + 1


def _class(written: str, text: str) -> str:
    inside = written[1:-1]
    if "\\" in inside:
        raise SbplError(f"a backslash in a class is itself for some and an escape for others: {text!r}")
    if re.search(r"\[[.:=]", inside):
        raise SbplError(f"a named class has no agreed meaning in {text!r}")
    return "[" + re.sub(r"([\[\]&|~])", r"\\\1", inside) + "]"


def quote_regex(text: str) -> str:
    """What `regex-quote` of the profile language does."""
    return re.sub(r"([.\[\]()*+?|^$\\{}])", r"\\\1", text)
