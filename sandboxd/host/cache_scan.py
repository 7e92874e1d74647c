"""The scan of a preset's cache directory, which may be large and changes often.

Nothing is watched there. Each scan compares the change time of every directory, and lists those where it differs: about
5 µs and 30 µs each. A cache with more directories than the budget stays closed. Symlinks are not followed: their
targets are no part of the cache."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Sequence
from fnmatch import fnmatchcase, translate

from sandboxd.host.placeholders.placeholder import is_absent
from sandboxd.host.watch.directory_index import Budget, Deadline, Directory, DirectoryIndex

MOST_DIRECTORIES = 20_000
"""Limit for one cache: so many take a tenth of a second for each command."""
_SECONDS = 3.0
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class CacheScan:
    """The names below `root`, a canonical path, that match patterns relative to it."""

    def __init__(self, root: str, patterns: Sequence[str]) -> None:
        self.root = root
        self.unseen = ""
        """The reason why the last scan was incomplete, else empty."""
        self.version = 0
        """A number that changes with each change of the result."""
        self.found: dict[str, tuple[str, ...]] = {}
        """The matches of each pattern, as absolute paths."""
        self._parts = {pattern: pattern.split("/") for pattern in patterns}
        self._last = re.compile("|".join(sorted({translate(parts[-1]) for parts in self._parts.values()})))
        self._index = DirectoryIndex(root)
        self._listed: dict[str, tuple[Directory, tuple[str, ...]]] = {}
        self._lock = threading.Lock()

    def refresh(self, excluded: frozenset[str]) -> int:
        """Scan again, but for `excluded` directories; return the `version`."""
        with self._lock:
            before = (self.found, self.unseen)
            self._look(excluded)
            if (self.found, self.unseen) != before:
                self.version += 1
            return self.version

    def _look(self, excluded: frozenset[str]) -> None:
        budget = Budget(Deadline.after(_SECONDS), MOST_DIRECTORIES, lambda path: False)
        listed: dict[str, tuple[Directory, tuple[str, ...]]] = {}
        hits: list[str] = []
        closed = ""
        for path, record in self._index.look(excluded, budget):
            known = self._listed.get(path)
            if known is None or known[0] is not record:
                try:
                    known = (record, self._names(path))
                except OSError as error:
                    closed = closed or f"{path} cannot be listed: {error.strerror}"
                    continue
            listed[path] = known
            hits += (os.path.join(path, name) for name in known[1])
        failed = "" if self._index.failed is None else str(self._index.failed.strerror)
        self.unseen = self._index.unseen or closed or failed
        self._listed = listed if not self._index.unseen else self._listed | listed
        self.found = {pattern: () for pattern in self._parts}
        for path in sorted(hits):
            names = path[len(self.root.rstrip("/")) + 1 :].split("/")
            for pattern, parts in self._parts.items():
                if _matches(parts, names):
                    self.found[pattern] += (path,)

    def _names(self, path: str) -> tuple[str, ...]:
        try:
            with os.scandir(path) as entries:
                names = (entry.name for entry in entries if self._last.match(entry.name))
                return tuple(name for name in names if not is_absent(os.path.join(path, name)))
        except OSError as error:
            if error.errno in _GONE or os.stat(path).st_uid != os.geteuid():
                return ()
            raise


def _matches(pattern: Sequence[str], names: Sequence[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_matches(pattern[1:], names[at:]) for at in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(pattern[1:], names[1:])
