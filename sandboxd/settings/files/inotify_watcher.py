"""inotify(7) for one event loop: no thread, no polling, no wake-up without an event.

watchfiles, which serves the other platforms, looks at its queue twenty times a second from a thread of its own. A
daemon that promises to idle without waking up cannot afford that, and what is needed here of inotify is little.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from sandboxd.errors import HostError
from sandboxd.settings.files.watched_paths import Watch, WatchedPath

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_DONT_FOLLOW, _MASK_ADD = 0x02000000, 0x20000000
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_EVENT = struct.Struct("iIII")

_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_MASKS = {
    Watch.CONTENT: _MODIFY | _ATTRIB | _CLOSE_WRITE | _DELETE_SELF | _MOVE_SELF,
    Watch.PLACE: _ATTRIB | _DELETE_SELF | _MOVE_SELF,
    Watch.NAMES: _NAMES,
    Watch.ENTRY: _NAMES | _MODIFY | _ATTRIB | _CLOSE_WRITE,
}


class InotifyWatcher:
    """Watches a set of paths that can be exchanged at any time; `changed` is set when something happened to one."""

    def __init__(self) -> None:
        """Raises `HostError` (`watch_unavailable`) when the kernel gives no descriptor."""
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.inotify_init1(_NONBLOCK | _CLOEXEC)
        if self._descriptor < 0:
            code = ctypes.get_errno()
            raise HostError(
                "watch_unavailable",
                f"settings files cannot be watched: {os.strerror(code)}",
                hint="raise fs.inotify.max_user_instances, or use: sandboxd settings reload",
            )
        self._names: dict[int, tuple[bool, set[str]]] = {}
        """By watch: whether all `.json` entries matter, and the entries that matter."""
        self._watched: frozenset[WatchedPath] = frozenset()
        self.changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._descriptor, self._readable)

    def watch(self, paths: frozenset[WatchedPath]) -> None:
        """Watch exactly these. A path that has vanished meanwhile sets `changed`, so that the caller looks again.

        Raises `HostError` (`watch_limit`) when the kernel allows no further watch."""
        before, self._names = self._names, {}
        try:
            self.watch_also(paths)
        except HostError:
            self._names = {**before, **self._names}  # what is watched still is better than nothing
            raise
        for watch in set(before) - set(self._names):
            self._library.inotify_rm_watch(self._descriptor, watch)

    def watch_also(self, paths: frozenset[WatchedPath]) -> None:
        """Watch these beside the others. Raises as above."""
        for path in paths:
            watch = self._add(path)
            if watch is None:
                self.changed.set()
                continue
            everything, names = self._names.setdefault(watch, (False, set()))
            everything = everything or (path.watch is Watch.NAMES and not path.names)
            self._names[watch] = (everything, names | path.names)

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _add(self, path: WatchedPath) -> int | None:
        mask = _MASKS[path.watch] | _MASK_ADD | (0 if path.names or path.watch is Watch.NAMES else _DONT_FOLLOW)
        watch: int = self._library.inotify_add_watch(self._descriptor, os.fsencode(path.path), mask)
        if watch >= 0:
            return watch
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.ENOMEM):
            raise HostError("watch_limit", "no more files can be watched", hint="raise fs.inotify.max_user_watches")
        # Gone since we looked: look again. Not permitted since then: the watches on the way have told.
        return None if code in (errno.ENOENT, errno.ENOTDIR) else -1

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        if any(self._matters(*event) for event in _events(data)):
            self.changed.set()

    def _matters(self, watch: int, mask: int, name: str) -> bool:
        if mask & _OVERFLOW:
            return True
        known = self._names.get(watch)
        if known is None or mask & _IGNORED:
            # The watch was taken away by us, or its inode is gone, which an event before this one has told.
            return False
        everything, names = known
        return not name or name in names or (everything and name.endswith(".json"))


def _events(data: bytes) -> Iterable[tuple[int, int, str]]:
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        yield watch, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
        offset += length
