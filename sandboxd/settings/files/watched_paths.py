"""What has to be watched so that any change of a settings file is noticed: inodes, and what may happen to them.

A file that exists is watched itself, not its directory: other files in it can change all day without waking anybody.
Replacing a file or moving a directory above it is seen on the old inode. Where something does not exist yet, the
nearest directory that does is watched for new names.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from sandboxd.settings.files.locations import Location

MAX_LINKS = 16


class Watch(Enum):
    """What is of interest about one path."""

    CONTENT = "content"
    """Written, truncated, changed mode, replaced, removed."""
    PLACE = "place"
    """Moved or removed: a directory, or a symbolic link itself, on the way to a file."""
    NAMES = "names"
    """Entries appear, disappear or are replaced in a directory."""
    ENTRY = "entry"
    """The same, and whatever else happens to one that we may not read: inotify(7) wants read permission for a watch."""


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """`names` limits NAMES and ENTRY to these entries; empty means every entry ending in `.json`."""

    path: str
    watch: Watch
    names: frozenset[str] = frozenset()


def watched_paths(locations: Iterable[Location]) -> frozenset[WatchedPath]:
    """Look at the file system and list what to watch for these locations now. Never raises."""
    found: set[WatchedPath] = set()
    for location in locations:
        _follow(location.path, location.directory, found)
    return frozenset(found)


def _follow(path: str, directory: bool, found: set[WatchedPath]) -> None:
    """Walk down a path component by component, through links, and note what can change."""
    pending = [part for part in path.split("/") if part]
    here, links = "/", 0
    while pending:
        name = pending.pop(0)
        candidate = os.path.normpath(os.path.join(here, name))
        try:
            mode = os.lstat(candidate).st_mode
        except OSError as fault:
            if fault.errno in (errno.ENOENT, errno.ENOTDIR):
                found.add(WatchedPath(here, Watch.NAMES, frozenset({name})))
            return
        if stat.S_ISLNK(mode):
            found.add(WatchedPath(candidate, Watch.PLACE))
            links += 1
            if links > MAX_LINKS:
                return
            target = os.readlink(candidate)
            pending = [part for part in target.split("/") if part] + pending
            here = "/" if target.startswith("/") else here
            continue
        if not os.access(candidate, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            found.add(WatchedPath(here, Watch.ENTRY, frozenset({name})))
        elif pending or stat.S_ISDIR(mode):
            found.add(WatchedPath(candidate, Watch.PLACE))
        else:
            found.add(WatchedPath(candidate, Watch.CONTENT))
        here = candidate
    if directory and os.path.isdir(here):
        found.add(WatchedPath(here, Watch.NAMES))
        for name in _json_names(here):
            _follow(os.path.join(here, name), False, found)


def _json_names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.endswith(".json")]
    except OSError:
        return []
