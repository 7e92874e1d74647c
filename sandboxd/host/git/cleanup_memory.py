"""The state that the repository clean-ups of one daemon share."""

from __future__ import annotations

import os
import threading

from sandboxd.host.busy_places import BusyPlaces
from sandboxd.host.git.git_directory_cleanup import Signature
from sandboxd.host.watch.directory_index import DirectoryIndex

MOST_KEPT = 400_000
"""Directories that are remembered between looks, for all places together."""


class CleanupMemory:
    """Indexes of directories, times of commands, and files that no command has left."""

    def __init__(self) -> None:
        self.busy = BusyPlaces()
        self._indexes: dict[str, DirectoryIndex] = {}
        """By place, the least recently used first."""
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._admitted: dict[str, Signature] = {}
        """Files that git obeys and that no command has left, with their signatures at that time."""

    def has_index(self, place: str) -> bool:
        return place in self._indexes

    def index_of(self, place: str) -> tuple[DirectoryIndex, threading.Lock]:
        with self._guard:
            index = self._indexes.pop(place, None)
            self._indexes[place] = index = DirectoryIndex(place) if index is None else index
            return index, self._locks.setdefault(place, threading.Lock())

    def is_admitted(self, path: str, signature: Signature) -> bool:
        return self._admitted.get(path) == signature

    def admit(self, path: str, signature: Signature) -> None:
        self._admitted[path] = signature

    def shrink(self) -> None:
        """Drop indexes of unused places that are gone, or of all when too many are kept."""
        self.busy.forget_what_is_gone()
        in_use = self.busy.in_use()
        with self._guard:
            kept = sum(map(len, self._indexes.values()))
            for place, index in list(self._indexes.items())[:-1]:
                if place not in in_use and (kept > MOST_KEPT or not os.path.isdir(place)):
                    kept -= len(index)
                    del self._indexes[place]
                    self._locks.pop(place, None)
                    for path in [path for path in list(self._admitted) if path.startswith(f"{place}/")]:
                        self._admitted.pop(path, None)
