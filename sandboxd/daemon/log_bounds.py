"""How much the daemon's log takes, whatever commands do: repeated events are counted, and the log file is capped."""

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
"""Key of a record for what its event was made from, where the event itself holds names and numbers."""
EVENTS_KNOWN: Final = 256
LONGEST_TEXT: Final = 4096
"""Characters of one value that later steps see: to look for secrets in millions takes seconds."""
LARGEST_FILE: Final = 8 << 20
_BURST, _PER_SECOND = 50, 1.0
_BURST_OF_ALL, _PER_SECOND_OF_ALL = 1000, 20.0


class Repeats:
    """A step of the log: lets 50 records of one event through, then one a second, and of all events 1000 and 20. The
    next one that passes says how many did not (`not_logged`). Debug records pass: who asks for them wants all."""

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
    """Writes lines to `stream`. Where that is the file `path`, the daemon's own, it becomes `path.1` at its largest
    size and a new one is begun: both together are never much larger than twice that."""

    def __init__(self, stream: TextIO, path: str = "", largest: int = LARGEST_FILE) -> None:
        self._stream = stream
        self._path = path
        self._largest = largest
        self._size = self._size_of_own()

    def write(self, line: str) -> None:
        # Nobody reads stderr any more (its terminal or pipe is gone): the daemon goes on, silently.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()
            self._size += len(line) + 1
            if self._path and self._size > self._largest:
                self._begin_another()

    def _size_of_own(self) -> int:
        """Of the file; forgets `path` where the stream leads elsewhere."""
        try:
            ours, there = os.fstat(self._stream.fileno()), os.lstat(self._path)
        except (OSError, ValueError):
            self._path = ""
            return 0
        if not os.path.samestat(ours, there):
            self._path = ""
        return ours.st_size

    def _begin_another(self) -> None:
        self._size = self._size_of_own()
        if not self._path or self._size <= self._largest:
            return
        os.rename(self._path, f"{self._path}.1")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fresh = os.open(self._path, flags, 0o600)
        try:
            os.dup2(fresh, self._stream.fileno())  # standard output, where nothing is written, keeps the older one
        finally:
            os.close(fresh)
        self._size = 0
