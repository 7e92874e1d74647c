"""A watch of settings files through inotify(7): no thread, and no idle wake-ups.

The library watchfiles, which serves the other platforms, polls its queue twenty times a second in a thread."""

from __future__ import annotations

import asyncio
import errno

from sandboxd.errors import HostError
from sandboxd.settings.files import inotify
from sandboxd.settings.files.watched_paths import Watch, WatchedPath

_CONTENT = inotify.MODIFY | inotify.ATTRIB | inotify.CLOSE_WRITE
_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_MASKS = {
    Watch.CONTENT: _CONTENT | _SELF,
    Watch.PLACE: inotify.ATTRIB | _SELF,
    Watch.NAMES: inotify.NAMES_CHANGE,
    Watch.ENTRY: inotify.NAMES_CHANGE | _CONTENT,
}


class InotifyWatcher:
    """A watch of a replaceable set of paths; events set `changed`."""

    def __init__(self) -> None:
        """Create an inotify instance. Raises `HostError` (`watch_unavailable`)."""
        try:
            self._inotify = inotify.Inotify()
        except HostError as error:
            raise HostError(
                "watch_unavailable",
                f"cannot watch settings files: {error}",
                hint="raise fs.inotify.max_user_instances; until then, after changes: sandboxd restart",
            ) from error
        self._names: dict[int, tuple[bool, set[str]]] = {}
        """By watch: True when all `.json` entries matter, and the entries that matter."""
        self.changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._readable)

    def watch(self, paths: frozenset[WatchedPath]) -> None:
        """Watch exactly these paths.

        A path that is gone by now sets `changed`, so that the caller lists the paths again.
        Raises `HostError` (`watch_limit`) when the kernel allows no further watch."""
        before, self._names = self._names, {}
        try:
            self.watch_also(paths)
        except HostError:
            self._names = {**before, **self._names}  # keep what is watched
            raise
        for watch in set(before) - set(self._names):
            self._inotify.remove(watch)

    def watch_also(self, paths: frozenset[WatchedPath]) -> None:
        """Watch these paths in addition. Raises as `watch` does."""
        for path in paths:
            watch = self._add(path)
            if watch is None:
                self.changed.set()
                continue
            everything, names = self._names.setdefault(watch, (False, set()))
            everything = everything or (path.watch is Watch.NAMES and not path.names)
            self._names[watch] = (everything, names | path.names)

    def close(self) -> None:
        if self._inotify.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()

    def _add(self, path: WatchedPath) -> int | None:
        mask = _MASKS[path.watch] | (0 if path.names or path.watch is Watch.NAMES else inotify.DONT_FOLLOW)
        try:
            return self._inotify.add(path.path, mask)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise HostError(
                    "watch_limit", "cannot watch more settings files", hint="raise fs.inotify.max_user_watches"
                ) from error
            # A path that is gone is listed again. One that is not permitted any more has caused an event further up.
            return None if error.errno in (errno.ENOENT, errno.ENOTDIR) else -1

    def _readable(self) -> None:
        if any(self._matters(event) for event in self._inotify.read()):
            self.changed.set()

    def _matters(self, event: inotify.Event) -> bool:
        if event.mask & inotify.OVERFLOW:
            return True
        known = self._names.get(event.watch)
        if known is None or event.mask & inotify.IGNORED:
            # The watch was removed, or its inode is gone, for which an event came before.
            return False
        everything, names = known
        return not event.name or event.name in names or (everything and event.name.endswith(".json"))
