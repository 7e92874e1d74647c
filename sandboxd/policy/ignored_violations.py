"""Violations that settings hide (`sandbox.ignoreViolations`), still enforced.

A key is `*`, or the first words of a command (`git push`). A value is a part of the target, or of operation and target
(`file-read-data /private/x`); `*` in it stands for any text."""

from __future__ import annotations

import re
from functools import lru_cache

Rules = tuple[tuple[str, tuple[str, ...]], ...]
"""The form of `Policy.ignore_violations`."""


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
    words, wanted = command.split(), key.split()
    return bool(wanted) and words[: len(wanted)] == wanted


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)
