"""The paths to watch so that any change of a settings file is noticed.

An existing file is watched itself, not its directory, so that changes of other files there wake no daemon. Replacing a
file or moving a directory above it is an event of the old inode. For a file that does not exist, the nearest existing
directory is watched for new names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from enum import Enum

from sandboxd.settings.files.locations import Location
from sandboxd_client.records import dataclass

MAX_LINKS = 16


class Watch(Enum):
    """The events of interest at one path."""

    CONTENT = "content"
    """The file is written, truncated, replaced or removed, or its mode changes."""
    PLACE = "place"
    """A directory or symlink on the way to a file is moved or removed."""
    NAMES = "names"
    """Entries appear, disappear or are replaced in a directory."""
    ENTRY = "entry"
    """The same, and any event of an entry that cannot be read: inotify(7) needs read permission for a watch."""


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """A path with its events; `names` limits NAMES and ENTRY, empty means `*.json`."""

    path: str
    watch: Watch
    names: frozenset[str] = frozenset()


def watched_paths(locations: Iterable[Location]) -> frozenset[WatchedPath]:
    """List what to watch for these locations, as of now. Never raises."""
    found: set[WatchedPath] = set()
    for location in locations:
        _follow(location.path, location.directory, found)
    return frozenset(found)


def _follow(path: str, directory: bool, found: set[WatchedPath]) -> None:
    """Walk down a path by component, through links, and note what can change."""
    pending = [part for part in path.split("/") if part]
    current, links = "/", 0
    while pending:
        name = pending.pop(0)
        candidate = os.path.normpath(os.path.join(current, name))
        try:
            mode = os.lstat(candidate).st_mode
        except OSError as fault:
            if fault.errno in (errno.ENOENT, errno.ENOTDIR):
                found.add(WatchedPath(current, Watch.NAMES, frozenset({name})))
            return
        if stat.S_ISLNK(mode):
            found.add(WatchedPath(candidate, Watch.PLACE))
            links += 1
            if links > MAX_LINKS:
                return
            target = os.readlink(candidate)
            pending = [part for part in target.split("/") if part] + pending
            current = "/" if target.startswith("/") else current
            continue
        if not os.access(candidate, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            found.add(WatchedPath(current, Watch.ENTRY, frozenset({name})))
        elif pending or stat.S_ISDIR(mode):
            found.add(WatchedPath(candidate, Watch.PLACE))
        else:
            found.add(WatchedPath(candidate, Watch.CONTENT))
        current = candidate
    if directory and os.path.isdir(current):
        found.add(WatchedPath(current, Watch.NAMES))
        for name in _json_names(current):
            _follow(os.path.join(current, name), False, found)


def _json_names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.endswith(".json")]
    except OSError:
        return []
