"""All spellings of one name on a volume that folds case, as a regular expression. Pure.

APFS, as macOS formats it, compares names by canonical caseless matching (Unicode, section 3.13): `HEAD` is `head`, the
long s (U+017F) is `s`, the Kelvin sign is `k`, a ligature its letters, and composed letters are decomposed ones. So a
name that is not there yet can be made in any of these spellings. Letters outside ASCII are alternatives, not members of
a class: an engine may work on bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

from sandboxd.paths import caseless

_ASCII = {
    "s": "\u017f", "k": "\u212a", ";": "\u037e", "`": "\u1fef", "ff": "\ufb00", "fi": "\ufb01", "fl": "\ufb02",
    "ffi": "\ufb03", "ffl": "\ufb04", "ss": "\u00df\u1e9e", "st": "\ufb05\ufb06",
}  # fmt: skip
"""Characters that fold to ASCII, by the letters that they fold to."""
_BLOCKS = (
    (0x80, 0x3400), (0xA000, 0xD800), (0xF900, 0x10000), (0x10400, 0x10600), (0x10C00, 0x10D00), (0x11000, 0x11A00),
    (0x16E00, 0x16F00), (0x1D100, 0x1D200), (0x1E900, 0x1EA00), (0x2F800, 0x2FA20),
)  # fmt: skip
"""Blocks with letters that fold or decompose."""
_LONGEST_RUN = 6
"""Letters of one run whose spellings are listed; a longer run is covered by any sequence of them."""
_SPECIAL = re.compile(r"([.\[\]()*+?|^$\\{}])")


def quote(text: str) -> str:
    """Escape text."""
    return _SPECIAL.sub(r"\\\1", text)


@lru_cache(maxsize=4096)
def fold(text: str) -> str:
    """Return an expression for all spellings of a text; slashes stay."""
    folded = caseless(text)
    spellings = _ASCII if folded.isascii() else _spellings()
    longest = 3 if folded.isascii() else 6
    parts: list[str] = []
    start = 0
    while start < len(folded):
        end = reach = start + 1
        while end <= reach:  # as long as a spelling of several letters reaches over this place
            ahead = (at for at in range(end, end + longest) if folded[end - 1 : at] in spellings)
            reach = max(reach, *ahead, end)
            if end == reach:
                break
            end += 1
        parts.append(_run(folded[start:reach], spellings))
        start = reach
    return "".join(parts)


def _run(text: str, spellings: Mapping[str, str]) -> str:
    if len(text) == 1:
        return _letter(text, spellings)
    marks = [unicodedata.combining(one) for one in text if unicodedata.combining(one)]
    if len(set(marks)) > 1:
        return "[^/]+"  # marks may stand in another order
    pieces = {text[at:end] for at in range(len(text)) for end in range(at + 1, len(text) + 1)}
    if len(text) > _LONGEST_RUN:
        return f"({'|'.join(sorted(_letter(one, spellings) for one in pieces if len(one) == 1 or one in spellings))})+"
    return f"({'|'.join(_tilings(text, spellings))})"


def _tilings(text: str, spellings: Mapping[str, str]) -> Iterator[str]:
    if not text:
        yield ""
    for end in range(1, len(text) + 1):
        if end == 1 or text[:end] in spellings:
            yield from (_letter(text[:end], spellings) + rest for rest in _tilings(text[end:], spellings))


def _letter(text: str, spellings: Mapping[str, str]) -> str:
    """Return the spellings of a letter, or of letters that one character stands for."""
    others = list(spellings.get(text, ""))
    if len(text) == 1:
        plain = f"[{text}{text.upper()}]" if text.isascii() and text.isalpha() else quote(text)
        others.insert(0, plain)
    return others[0] if len(others) == 1 else f"({'|'.join(others)})"


@lru_cache(maxsize=1)
def _spellings() -> Mapping[str, str]:
    """Return all characters by what they fold to. Takes some 50 ms, once."""
    found: dict[str, str] = {}
    for first, last in _BLOCKS:
        for character in map(chr, range(first, last)):
            folded = caseless(character)
            if folded != character:
                found[folded] = found.get(folded, "") + character
    return found
