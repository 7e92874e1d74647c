"""Checks on the host after a case, each a function of its argument and of what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

UNENDED = -1000
"""The status of a run that had to be ended."""
Tree = Mapping[str, str]
"""Path below the place, "home/a" → kind, mode and digest of its content."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Traces that one run left behind."""

    status: int
    output: str
    """Standard output and standard error together."""
    before: Tree
    after: Tree
    contents: Callable[[str], str | None]
    """Of a file below the place; None when it cannot be read."""
    reached: frozenset[str]
    """The listeners that had a connection or a datagram."""
    secrets: Mapping[str, str]
    """Path of a secret below the place → its text."""
    stays: bool
    """Whether a process of the case still runs."""
    seconds: float


def _unchanged(paths: list[str], seen: Seen) -> str | None:
    for path in paths:
        for tree, other in ((seen.before, seen.after), (seen.after, seen.before)):
            for name, value in tree.items():
                if (name == path or name.startswith(path + "/")) and other.get(name) != value:
                    return f"{name} changed"
    return None


def _hidden(paths: list[str], seen: Seen) -> str | None:
    return next((f"{path} was shown" for path in paths if seen.secrets[path] in seen.output), None)


def _quiet(names: list[str], seen: Seen) -> str | None:
    return next((f"{name} was reached" for name in names if name in seen.reached), None)


def _reached(names: list[str], seen: Seen) -> str | None:
    return next((f"{name} was not reached" for name in names if name not in seen.reached), None)


def _exit(status: int, seen: Seen) -> str | None:
    return None if seen.status == status else _told(seen)


def _fails(wanted: bool, seen: Seen) -> str | None:
    return None if (seen.status != 0) == wanted and seen.status != UNENDED else _told(seen)


def _told(seen: Seen) -> str:
    return "did not end" if seen.status == UNENDED else f"exit status {seen.status}"


def _output(text: str, seen: Seen) -> str | None:
    return None if text in seen.output else f"the output lacks {text!r}"


def _output_lacks(text: str, seen: Seen) -> str | None:
    return f"the output has {text!r}" if text in seen.output else None


def _made(files: Mapping[str, str], seen: Seen) -> str | None:
    for path, text in files.items():
        if (content := seen.contents(path)) is None or text not in content:
            return f"{path} is missing or differs"
    return None


def _no_process(wanted: bool, seen: Seen) -> str | None:
    return "a process is left" if seen.stays and wanted else None


def _no_litter(places: list[str], seen: Seen) -> str | None:
    new = [name for name in seen.after if name not in seen.before and name.split("/")[0] in places]
    return f"left {new[0]}" if new else None


def _within(seconds: float, seen: Seen) -> str | None:
    return None if seen.seconds <= seconds else f"took {seen.seconds:.1f} s"


CHECKS: Mapping[str, Callable[[Any, Seen], str | None]] = {
    "unchanged": _unchanged,  # paths below the place that are as before
    "hidden": _hidden,  # secrets that the output does not show
    "quiet": _quiet,  # listeners that saw nothing
    "reached": _reached,  # listeners that saw something
    "exit": _exit,
    "fails": _fails,  # whether the status is not 0
    "output": _output,
    "output_lacks": _output_lacks,
    "made": _made,  # path below the place → text that it contains
    "no_process": _no_process,  # whether all processes of the case have ended
    "no_litter": _no_litter,  # top directories of the place without new entries
    "within": _within,  # seconds
}


def failed_check(checks: Mapping[str, Any], seen: Seen) -> str | None:
    """The first check that does not hold, in words; None when all hold."""
    for name, argument in checks.items():
        if said := CHECKS[name](argument, seen):
            return said
    return None
