"""Violations that settings hide (`sandbox.ignoreViolations`), still enforced.

A key is `*`, or a program with its first words (`git push`), which may stand anywhere in the line. A value is a part of
the target, or of operation and target (`file-read-data /private/x`); `*` in it stands for any text."""

from __future__ import annotations

import re
from functools import lru_cache

from sandboxd.policy.commands.command_decisions import programs_of

Rules = tuple[tuple[str, tuple[str, ...]], ...]
"""The form of `Policy.ignore_violations`."""
_LONGEST = 16 << 10
"""Characters of a command line that are looked at."""


def expanded(pattern: str, home: str) -> str:
    """Return a value with the home directory in place of each `~` that begins a path."""
    return re.sub(r"(?:^|(?<= ))~(?=/|$)", lambda found: home, pattern)


def is_ignored(rules: Rules, command: str, operation: str, target: str) -> bool:
    """Return whether a violation of this command is hidden."""
    shown = f"{operation} {target}"
    return any(
        _pattern(pattern).search(shown) is not None
        for key, patterns in rules
        if _is_about(key, command)
        for pattern in patterns
    )


def _is_about(key: str, command: str) -> bool:
    if key == "*":
        return True
    wanted = tuple(key.split())
    return bool(wanted) and any(
        words[: len(wanted)] == wanted or (words[0].rpartition("/")[2], *words[1 : len(wanted)]) == wanted
        for words in _programs(command[:_LONGEST])
    )


@lru_cache(maxsize=64)
def _programs(command: str) -> tuple[tuple[str, ...], ...]:
    """Return the words from each program of a line on; the plain words of one that cannot be read."""
    return (tuple(command.split()) or ("",), *programs_of(command))


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)
