"""Guesses from a program's output at paths that no enforcer reported.

A guess is marked (`Violation.inferred`), because a command may write any text. It is made only about paths that a rule
really closes, so an ordinary "Permission denied" gives none."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

MOST_LINES = 400
MOST_PATHS = 20
_LONGEST_LINE = 1000
_DENIED = re.compile(r"permission denied|\bEACCES\b", re.IGNORECASE)
_MISSING = re.compile(r"no such file or directory|\bENOENT\b", re.IGNORECASE)
_QUOTED = re.compile(r"(?<!\w)'([^']+)'|\"([^\"]+)\"|\u2018([^\u2018\u2019]+)\u2019|`([^`']+)[`']")
_VERB = re.compile(r"^.*\b(?:open|opening|read|reading|stat|access|directory|file)\s+", re.IGNORECASE)


def paths_said_to_be_denied(text: str, cwd: str, home: str) -> list[str]:
    """Return absolute paths, normalised; of a long text from its last lines."""
    return _paths_said(_DENIED, text, cwd, home)


def paths_said_to_be_missing(text: str, cwd: str, home: str) -> list[str]:
    """Return absolute paths that a program has not found, as `paths_said_to_be_denied` does."""
    return _paths_said(_MISSING, text, cwd, home)


def _paths_said(said: re.Pattern[str], text: str, cwd: str, home: str) -> list[str]:
    found: dict[str, None] = {}
    for line in text.splitlines()[-MOST_LINES:]:
        if len(line) > _LONGEST_LINE or said.search(line) is None:
            continue
        for candidate in _candidates(line, said):
            path = home + candidate[1:] if candidate.startswith("~/") else posixpath.join(cwd, candidate)
            found[posixpath.normpath(path)] = None
            if len(found) == MOST_PATHS:
                return list(found)
    return list(found)


def _candidates(line: str, said: re.Pattern[str]) -> Iterator[str]:
    """Yield possible paths: quoted text, and the parts between colons."""
    for match in _QUOTED.finditer(line):
        yield next(group for group in match.groups() if group)
    for part in re.split(r":\s+|:$", line):
        part = part.strip(" ,").rstrip(".")
        if part and said.search(part) is None:
            yield part
            shorter = _VERB.sub("", part)
            if shorter and shorter != part:
                yield shorter
