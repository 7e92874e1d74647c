"""Doubts about named settings files (`--settings`, `$SANDBOXD_FLAG_SETTINGS`).

A file that a command could have written counts as a project's: it only tightens until the user trusts its content. The
directories that daemons of this user have opened for commands are recorded. A file below the marks of a project is
doubtful too."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.paths import is_below
from sandboxd.settings.files.trust import real_path

_MARKS = (".git", ".claude")


def why_doubtful(path: str, opened: Iterable[str], home: str, earlier: Collection[str] = ()) -> str:
    """Return why commands may have written the file at `path` (absolute), or empty.

    Commands may write the directories `opened`, and could write the real paths `earlier`. Links on the way are checked
    at their own places too: a program that can write a link names another file."""
    roots = set(map(real_path, opened))
    found = resolve(path, NullNameRecorder())
    real, real_home = found.real, real_path(home)
    for name in (*(link.path for link in found.links), real):
        above = name
        while True:
            if above in roots or above in earlier:
                return f"commands may write in {above}"
            marks = (os.path.join(above, mark) for mark in _MARKS)
            if above != name and not is_below(real_home, above) and any(map(os.path.lexists, marks)):
                return f"it lies in the project {above}"
            if above == os.path.dirname(above):
                break
            above = os.path.dirname(above)
    try:
        links = os.stat(real).st_nlink
    except OSError:
        return ""
    return f"it has {links} names (hard links)" if links > 1 else ""


def literal_part(path: str) -> str:
    """Return the directory that holds all matches of a pattern."""
    parts = path.split("/")
    at = next((at for at, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    return "/".join(parts[:at]) or "/"
