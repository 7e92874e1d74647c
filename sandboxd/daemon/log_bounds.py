"""Bounds on the daemon's log: repeats are counted, and its file is capped."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from sandboxd.runtime.rate_bound import RateBound

TEMPLATE: Final = "log_template"
"""Key of the template of an event whose text holds names and numbers."""
EVENTS_KNOWN: Final = 256
LONGEST_TEXT: Final = 4096
"""Characters of one value that later steps see; searching millions takes seconds."""
LARGEST_FILE: Final = 8 << 20
_BURST, _PER_SECOND = 50, 1.0
_BURST_OF_ALL, _PER_SECOND_OF_ALL = 1000, 20.0


class Repeats:
    """Step of the log that bounds repeats.

    It passes 50 records of one event, then one a second, and 1000 of all events, then 20 a second. The next record that
    passes reports how many did not (`not_logged`). Debug records are not bounded."""

    def __init__(self, make_bound: Callable[[int, float], RateBound] = RateBound) -> None:
        self._make = make_bound
        self._all = make_bound(_BURST_OF_ALL, _PER_SECOND_OF_ALL)
        self._bounds: OrderedDict[str, RateBound] = OrderedDict()

    def __call__(self, _logger: WrappedLogger, method: str, record: EventDict) -> EventDict:
        key = str(record.pop(TEMPLATE, None) or record.get("event", ""))
        for name, value in record.items():
            if isinstance(value, str) and len(value) > LONGEST_TEXT:
                record[name] = value[:LONGEST_TEXT] + "…"
        if method == "debug":
            return record
        bound = self._bounds.get(key)
        if bound is None:
            bound = self._bounds[key] = self._make(_BURST, _PER_SECOND)
        self._bounds.move_to_end(key)
        if len(self._bounds) > EVENTS_KNOWN:
            self._bounds.popitem(last=False)
        if not bound.admits():
            raise structlog.DropEvent
        if not self._all.admits():
            bound.lost += 1
            raise structlog.DropEvent
        if bound.lost:
            record["not_logged"], bound.lost = bound.lost, 0
        return record


class CappedFile:
    """Writer of lines to `stream`.

    Where that is the daemon's file `path`, it becomes `path.1` at its largest size, and a new file begins. Both
    together are never much larger than twice that size, also with several daemons of a user, which share the file."""

    def __init__(self, stream: TextIO, path: str = "", largest: int = LARGEST_FILE) -> None:
        self._stream = stream
        self._largest = largest
        self._path = path if self._state(path)[1] else ""

    def write(self, line: str) -> None:
        # The terminal or pipe of stderr may be gone; the daemon continues without a log.
        with contextlib.suppress(OSError, ValueError):
            if self._path:
                self._begin_another_if_needed()
            self._stream.write(line + "\n")
            self._stream.flush()

    def _state(self, path: str) -> tuple[int, bool]:
        """Return the size of the stream's file, and whether that is the one at `path`."""
        try:
            opened = os.fstat(self._stream.fileno())
            return opened.st_size, os.path.samestat(opened, os.lstat(path))
        except (OSError, ValueError):
            return 0, False

    def _begin_another_if_needed(self) -> None:
        """Rename a file of its largest size, and go on in the one at `path`, which another daemon may have begun."""
        size, is_own = self._state(self._path)
        if is_own and size <= self._largest:
            return
        if is_own:
            os.rename(self._path, f"{self._path}.1")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fresh = os.open(self._path, flags, 0o600)
        try:
            os.dup2(fresh, self._stream.fileno())  # standard output, where nothing is written, keeps the older one
        finally:
            os.close(fresh)
