"""Whether a settings file that somebody names (`--settings`, `$SANDBOXD_FLAG_SETTINGS`) is the person's own word.

It is not where a command could have written it. There it counts as a project's: it only tightens, until a person trusts
its content.

What daemons of this user have opened for commands is recorded. Marks of a project make a file doubtful as well, and
never believed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.paths import is_below
from sandboxd.settings.files.trust import real_path

_MARKS = (".git", ".claude")


def why_doubtful(path: str, opened: Iterable[str], home: str, earlier: Collection[str] = ()) -> str:
    """Why commands may have written the file at `path` (absolute); empty when nothing speaks for it. `opened` are
    directories that commands may write, `earlier` the real paths of those that they could. The file is looked for where
    links lead, and where each of them stands: who can write a link names another file."""
    roots = set(map(real_path, opened))
    found = resolve(path, NullNameRecorder())
    real, own_home = found.real, real_path(home)
    for name in (*(link.path for link in found.links), real):
        above = name
        while True:
            if above in roots or above in earlier:
                return f"commands may write in {above}"
            marks = (os.path.join(above, mark) for mark in _MARKS)
            if above != name and not is_below(own_home, above) and any(map(os.path.lexists, marks)):
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
    """The directory in which everything lies that a rule with a pattern matches."""
    parts = path.split("/")
    at = next((at for at, part in enumerate(parts) if any(c in part for c in "*?[")), len(parts))
    return "/".join(parts[:at]) or "/"
