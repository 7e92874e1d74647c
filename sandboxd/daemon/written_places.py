"""Where a sandboxed command may have written, and so whose local settings a project's really are.

A project's `.claude/settings.local.json` counts as local: it may widen. In the directory a command runs in, that name
is guarded. Below it, in a directory the command makes itself, nothing guards it, and the next command may be started
there: the first would decide what the second may do. So the file is believed only in a directory that no sandbox has
had in its reach from further up. Elsewhere it may tighten, like a project's shared settings, and that is reported.

What this daemon has run is known; what an earlier one has run is guessed from the project around the directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_MARKS = (".git", ".claude")


class WrittenPlaces:
    """`home` and what is above it are nobody's project, `roots` what is known already. Paths are absolute and
    normalised."""

    def __init__(self, home: str, roots: Iterable[str] = ()) -> None:
        self._home = os.path.realpath(home)
        self._roots: set[str] = set(roots)

    @property
    def roots(self) -> tuple[str, ...]:
        """All that is known, for the next daemon."""
        return tuple(sorted(self._roots))

    def note(self, directory: str) -> None:
        """A command may write in `directory` from now on."""
        self._roots.add(os.path.realpath(directory) if directory not in self._roots else directory)

    def distrust(self, directory: str, writable: Iterable[str]) -> str:
        """Why the local settings of this project may only tighten; empty when they may widen. `writable` are further
        directories that every command may write in."""
        real = os.path.realpath(directory)
        opened = self._roots.union(os.path.realpath(path) for path in writable)
        above = os.path.dirname(real)
        while True:
            if above in opened:
                return f"commands that run in {above} can write this file, so it may only tighten"
            if not _is_below(self._home, above) and any(os.path.lexists(f"{above}/{mark}") for mark in _MARKS):
                return f"it lies inside the project {above}, whose commands can write it, so it may only tighten"
            if above == "/":
                return ""
            above = os.path.dirname(above)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
