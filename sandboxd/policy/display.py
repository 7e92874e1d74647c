"""Display of untrusted text: as data, never as instructions to a terminal.

Control characters could move the cursor or set the clipboard (OSC 52), bidirectional marks could reorder a line, and
tag characters (U+E0000…) are invisible. Each becomes a visible escape."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 1024
LONGEST_TARGET = 200
_PLAIN = re.compile(r"[\w@%+=:,./~\\\[\]*-]+…?")

# Cc control, Cf format (bidirectional marks, zero-width, tags), Cs lone surrogates, Co private use, Zl/Zp separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def neutralise(text: str, longest: int = LONGEST) -> str:
    """Replace each character that is not plainly visible by its escape, and cut."""
    if len(text) > longest:
        text = text[:longest] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(c) for c in text)


def quoted(text: str, longest: int = LONGEST_TARGET) -> str:
    """Return a name for a line of text, in quotes where it could be misread."""
    if len(text) > longest:
        text = text[:longest] + "…"
    return text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '\\"') + '"'


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
