"""The launch journal: started commands whose clean-up is not done.

A daemon that is killed does no clean-up (repository_cleanup.py). The next daemon of this user reads here where its
commands could write and since when, waits for those that still run, and cleans up. A record is a line of JSON that ends
with NUL: `["place", number, places, excluded, known]`, `["start", launch, number, since, process, started]`, `["done",
launch]`. Nothing waits for the disk: a record survives the daemon, but not a power failure."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterable
from typing import Any

from sandboxd.errors import HostError, way_out
from sandboxd.host.placeholders.placeholder import is_at
from sandboxd.host.placeholders.placeholder_journal import Journal
from sandboxd.plan.host_facts import Territory
from sandboxd_client.records import dataclass

_MOST_RECORDS = 5_000
"""The limit at which the file is rewritten with the open records."""
_MOST_OPEN = 5_000

_Where = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class StartedLaunch:
    """A started command; `process` is bubblewrap.

    `since` is its start in clock ticks after boot (proc(5)), so that a reused number is not taken for it."""

    launch_id: str
    territory: Territory
    process: int
    since: int

    @property
    def runs(self) -> bool:
        """Return whether the process still runs."""
        return self.since != 0 and started_at(self.process) == self.since


class LaunchJournal:
    """The journal of one daemon; `start` is the common prefix of all journals' paths."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._path = ""
        self._file = -1
        self._open: dict[str, StartedLaunch] = {}
        self._places: dict[_Where, int] = {}
        """The numbers of the places in the file."""
        self._records = 0

    def add(self, started: StartedLaunch) -> None:
        """Record a start. Raises HostError: an unrecorded command must not start."""
        if len(self._open) >= _MOST_OPEN:
            raise self._failed(OSError(errno.ENOSPC, "it lists too many commands"))
        try:
            if self._records >= _MOST_RECORDS + 2 * len(self._open):
                self._write_anew()
            self._write(self._lines(started))
        except OSError as error:
            raise self._failed(error) from error
        self._open[started.launch_id] = started

    def remove(self, launch_id: str) -> None:
        """Record that the clean-up is done, or that the command never ran."""
        if self._open.pop(launch_id, None) is None:
            return
        with contextlib.suppress(OSError):  # the next daemon cleans up once more
            if self._open or self._records < _MOST_RECORDS:
                self._write(_record("done", launch_id))
            else:
                self.close()

    def take_over(self) -> list[StartedLaunch]:
        """Move the open records of ended daemons into this journal. Raises HostError."""
        found: dict[str, StartedLaunch] = {}
        try:
            with contextlib.ExitStack() as stack:
                for journal in Journal(self._start).abandoned(stack):
                    left = _read(journal.text)
                    for started in left:
                        if started.launch_id not in self._open:
                            self.add(started)
                            found[started.launch_id] = started
                    os.unlink(journal.path)
        except OSError as error:
            raise self._failed(error) from error
        return list(found.values())

    def hand_over(self) -> None:
        """Leave the file to the next daemon."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._open.clear()

    def close(self) -> None:
        """Remove the file, unless a clean-up is still to be done."""
        if self._open or self._file < 0:
            self.hand_over()
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._file)
        self._file, self._records = -1, 0
        self._places.clear()

    def _lines(self, started: StartedLaunch) -> bytes:
        territory = started.territory
        where = (territory.places, territory.excluded, territory.known)
        number, lines = self._places.get(where), b""
        if number is None:
            number = self._places[where] = len(self._places)
            lines = _record("place", number, *where)
        start = _record("start", started.launch_id, number, territory.since, started.process, started.since)
        return lines + start

    def _write(self, lines: bytes) -> None:
        if self._file < 0:
            self._create()
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._places.clear()
            os.ftruncate(self._file, size)  # a partial record would spoil the next one
            raise
        self._records += lines.count(b"\0")

    def _create(self) -> None:
        while True:
            path = Journal(self._start).path
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(path, flags, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if is_at(path, os.fstat(file)):
                self._path, self._file = path, file
                return
            os.close(file)  # another daemon took it for abandoned before the lock

    def _write_anew(self) -> None:
        """Write the open records to a new file, then remove the old one."""
        old_path, old = self._path, self._file
        self._file, self._records = -1, 0
        self._places.clear()
        try:
            self._write(b"".join(map(self._lines, self._open.values())))
        finally:
            if self._file < 0:
                self._file = old
            elif old >= 0:
                with contextlib.suppress(OSError):
                    os.unlink(old_path)
                os.close(old)

    def _failed(self, error: OSError) -> HostError:
        return HostError(
            "journal_failed",
            f"cannot write the launch journal {self._start}: {error.strerror}",
            hint=way_out(error, "free some disk space there"),
            data={"path": self._start},
        )


def started_at(process: int) -> int:
    """Return the start of a process in clock ticks after boot, else 0 (proc(5))."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def _record(*parts: object) -> bytes:
    return json.dumps(parts).encode() + b"\0"


def _read(text: bytes) -> Iterable[StartedLaunch]:
    """Yield the open records; malformed ones are skipped."""
    places: dict[int, tuple[tuple[str, ...], ...]] = {}
    found: dict[str, StartedLaunch] = {}
    for line in text.split(b"\0"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            parts: list[Any] = json.loads(line)
            match parts:
                case ["place", int(number), *where] if len(where) == 3:
                    places[number] = tuple(tuple(map(str, some)) for some in where)
                case ["start", str(launch), int(number), int(since), int(process), int(started)]:
                    where_it_can_write, excluded, known = places[number]
                    territory = Territory(where_it_can_write, excluded, known, since)
                    found[launch] = StartedLaunch(launch, territory, process, started)
                case ["done", str(launch)]:
                    found.pop(launch, None)
    return found.values()
