"""Relations between absolute paths as text, and paths in lists of mounts. Pure."""

from __future__ import annotations

import re
import unicodedata

_ESCAPED = re.compile(rb"\\([0-7]{3})")


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is this directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def caseless(text: str) -> str:
    """Return the form in which APFS compares names: canonical caseless matching of Unicode."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())


def mount_field(line: bytes, number: int) -> str:
    """Return a field of a line of mountinfo, counted from 0."""
    field = _ESCAPED.sub(lambda code: bytes([int(code[1], 8)]), line.split(b" ")[number])
    return field.decode("utf-8", "surrogateescape")
