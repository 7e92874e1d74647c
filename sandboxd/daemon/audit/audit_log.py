"""Files of an audit log: the current one, and numbered older ones (`.1` newest).

- A line that `append` has returned for survives the end of the daemon. It survives a power cut after at most a second
  (`sync`, called from a thread).
- The part of a line that a killed daemon or a full disk has left is cut off. The next line reports its length.
- The files have mode 0600, and their directory 0700. A symbolic link, another owner or a second writer is refused."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from sandboxd.daemon.audit.audit_chain import (
    BEGINNING,
    GENESIS,
    LONGEST_LINE,
    OPENED,
    Position,
    decode_head,
    decode_line,
    encode_head,
    encode_line,
)
from sandboxd.errors import HostError

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_REWRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_RARE = re.compile(rb'"kind":"(violation|question|answer|control|settings|fallback)"')


def numbered(path: str, number: int) -> str:
    """Return the name of an older file; number 0 is the current one."""
    return f"{path}.{number}" if number else path


def head_path(path: str) -> str:
    return f"{path}.head"


class AuditLog:
    """Open audit log.

    `time` returns the time of a line in ISO 8601. The chain continues behind `after`, even where files are lost.

    Raises HostError `audit_unavailable` when the log cannot be opened, `audit_directory` when its directory is shared,
    `audit_locked` when another daemon writes it."""

    def __init__(
        self, path: str, max_bytes: int, keep: int, time: Callable[[], str], after: Position = BEGINNING
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._time = time
        self._file = self._head = -1
        self._size = 0
        try:
            prepare_directory(path)
            self._head = _open(head_path(path), _REWRITE)
            _lock(self._head, path)
            self._file = _open(path, _APPEND)
            self.position, cut = self._resume(after)
            self._begin(cut)
        except OSError as error:
            self.close()
            raise _unavailable(path, error) from error
        except HostError:
            self.close()
            raise

    def close(self) -> None:
        for descriptor in (self._file, self._head):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._head = -1

    @property
    def is_in_place(self) -> bool:
        """Return whether the open files still have their names."""
        try:
            return all(
                os.path.samestat(os.fstat(descriptor), os.lstat(path))
                for descriptor, path in ((self._file, self.path), (self._head, head_path(self.path)))
            )
        except OSError:
            return False

    def append(self, record: Mapping[str, Any]) -> Position:
        """Write one line and return its place. An OSError means that nothing was written."""
        if self._size and self._size >= self._max_bytes:
            self._rotate()
        elif not self._size:  # the disk was full when the file began
            self._begin()
        return self._write(record)

    def sync(self) -> None:
        """Synchronise to disk. Blocks, so it runs in a thread. Raises OSError."""
        with contextlib.suppress(ValueError):
            os.fdatasync(self._file)

    def _write(self, record: Mapping[str, Any]) -> Position:
        line, position = encode_line(self.position, record)
        written = os.write(self._file, line)
        if written != len(line):  # the disk is full, and half a line must not remain
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        self.position = position
        os.pwrite(self._head, encode_head(position), 0)
        return position

    def _resume(self, after: Position) -> tuple[Position, int]:
        """Return the last place of the chain, and the length of a cut-off line."""
        size = os.fstat(self._file).st_size
        known = decode_head(os.pread(self._head, 200, 0)) or BEGINNING
        tail = _read_end(self.path, size)
        whole = tail.rfind(b"\n") + 1
        cut = len(tail) - whole
        if cut:
            os.ftruncate(self._file, size - cut)
        self._size = size - cut
        last = decode_line(tail[:whole].rstrip(b"\n").rsplit(b"\n", 1)[-1]) if whole else None
        if last is None and not self._size:  # moved away just before the daemon was killed
            last = _last_line(numbered(self.path, 1))
        found = last.position if last is not None else BEGINNING
        return max(after, known, found, key=lambda place: place.seq), cut

    def _begin(self, cut: int = 0) -> None:
        record: dict[str, Any] = {"time": self._time(), "kind": OPENED, "pid": os.getpid(), "keep": self._keep}
        if cut:
            record["unfinished_bytes_removed"] = cut
        if self.position.hash != GENESIS and not self._size:
            record["continues"] = self.position.seq
        self._write(record)

    def _rotate(self) -> None:
        """Create a new file first, so that a full disk keeps the others; rename them."""
        fresh = _open(f"{self.path}.new", _APPEND)
        os.ftruncate(fresh, 0)
        rare = self._rare_lines()
        for number in range(self._keep - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(numbered(self.path, number), numbered(self.path, number + 1))
        os.rename(f"{self.path}.new", self.path)
        os.close(self._file)
        self._file, self._size = fresh, 0
        self._begin()
        with contextlib.suppress(OSError):
            for record in rare:
                self._write(record)

    def _rare_lines(self) -> list[dict[str, Any]]:
        """Return rare lines of the oldest file, to be repeated in the new one.

        They are the newest, a quarter of a file at most. Violations take half of that, so that they do not push out
        questions and changes of settings."""
        kept: dict[bool, deque[bytes]] = {True: deque(), False: deque()}
        size = {True: 0, False: 0}
        with contextlib.suppress(OSError), open(numbered(self.path, self._keep), "rb") as file:
            for line in file:
                if (found := _RARE.search(line)) is None:
                    continue
                refused = found[1] == b"violation"
                kept[refused].append(line.rstrip(b"\n"))
                size[refused] += len(line)
                while size[refused] > self._max_bytes // 8:
                    size[refused] -= len(kept[refused].popleft()) + 1
        lines = [line for line in map(decode_line, [*kept[False], *kept[True]]) if line is not None and line.intact]
        return [
            {"carried": line.position.seq, **{k: v for k, v in line.record.items() if k not in ("seq", "prev", "hash")}}
            for line in lines
        ]


def prepare_directory(path: str) -> None:
    """Make or check the private directory. Raises HostError, OSError."""
    directory, name = os.path.split(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    state = os.stat(directory)
    strangers = [entry for entry in os.listdir(directory) if not entry.startswith(name)]
    problem = ""
    if state.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif stat.S_IMODE(state.st_mode) & 0o022:
        problem = "can be written by others"
    elif strangers:
        problem = f"holds other files as well ({strangers[0]!a})"
    if problem:
        raise HostError(
            "audit_directory",
            f"the audit log cannot be kept in {directory}: it {problem}",
            hint="set audit.path to a file in an empty directory, for example ~/audit/audit.jsonl",
            data={"path": path},
        )


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "not a private file of this user")
    if stat.S_IMODE(state.st_mode) != 0o600:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _lock(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HostError(
            "audit_locked",
            f"another daemon writes the audit log {path}",
            hint="end the other daemon, or set another audit.path for this one",
            data={"path": path},
        ) from None


def _unavailable(path: str, error: OSError) -> HostError:
    return HostError(
        "audit_unavailable",
        f"the audit log {path} cannot be written: {error.strerror or error}",
        hint="free disk space or correct its permissions; audit.onFull: drop lets commands run without it",
        data={"path": path},
    )


def _read_end(path: str, size: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(max(0, size - 2 * LONGEST_LINE))
        return file.readall() or b""


def _last_line(path: str) -> Any:
    try:
        data = _read_end(path, os.stat(path).st_size)
    except OSError:
        return None
    return decode_line(data.rstrip(b"\n").rsplit(b"\n", 1)[-1])
