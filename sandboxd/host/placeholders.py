"""Placeholders: empty directories that keep absent protected names from being created by a sandbox.

A bind mount needs something to stand on. Where a protected name does not exist, an empty directory is made on the host
for as long as a sandbox needs it: git never lists one, and `rmdir` can never destroy data. Counted across all sandboxes
of this daemon, so that two sandboxes in one directory keep each other's protection.

Before a directory is made for the first time its path is appended to a journal, with a sync; so whatever a killed daemon
leaves is known to the next one. A line stays until the journal is cleared, which is when nobody holds anything: commands
in the same directory cost no further writes. What the journal names is removed only if it still *is* a placeholder: an
empty directory of this user with the marks that `_make` gives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandboxd.errors import HostError

_MARK_NS = 86_399_000_731_000_000
"""The modification time of a placeholder, in nanoseconds: in 1972, a moment no program picks."""
_MODE = 0o755


@dataclass(slots=True, eq=False)
class Hold:
    """The placeholders of one sandbox. `release` when it has ended; a second call does nothing."""

    paths: tuple[str, ...]
    _release: Callable[[tuple[str, ...]], None] = field(repr=False)

    def release(self) -> None:
        paths, self.paths = self.paths, ()
        self._release(paths)


class Placeholders:
    """All placeholders of one daemon. `journal` is a file in a directory that survives the daemon."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._users: dict[str, int] = {}
        self._written: set[str] = set()

    def recover(self) -> tuple[str, ...]:
        """Remove what an earlier daemon left; the paths that were removed. To be called before the first `hold`."""
        try:
            with open(self._journal, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return ()
        # a last line without its end was cut off before its directory was made
        paths = dict.fromkeys(os.fsdecode(line) for line in text.split(b"\0")[:-1] if line)
        removed = tuple(path for path in sorted(paths, reverse=True) if _remove(path))
        self._clear()
        return removed

    def hold(self, paths: tuple[str, ...]) -> Hold:
        """Make what is missing (parents first) and count what is there. Raises `HostError` when a directory cannot be
        made: then nothing is held."""
        new = [path for path in paths if path not in self._users]
        if new:
            self._write([path for path in new if path not in self._written])
        held: list[str] = []
        try:
            for path in paths:
                if path in self._users or _make(path):
                    self._users[path] = self._users.get(path, 0) + 1
                    held.append(path)
        except OSError as error:
            self._release(tuple(held))
            raise HostError(
                "placeholder_failed",
                f"cannot keep {error.filename} from being created: {error.strerror}",
                hint="the working directory has to be writable and its disk must have room",
                data={"path": error.filename},
            ) from error
        return Hold(tuple(held), self._release)

    def close(self) -> None:
        """Remove everything, whoever still holds it."""
        for path in sorted(self._users, reverse=True):
            _remove(path)
        self._users.clear()
        self._clear()

    def _release(self, paths: tuple[str, ...]) -> None:
        for path in reversed(paths):
            users = self._users.get(path, 0) - 1
            if users > 0:
                self._users[path] = users
            elif self._users.pop(path, None) is not None:
                _remove(path)

    def _write(self, paths: Iterable[str]) -> None:
        lines = b"".join(os.fsencode(path) + b"\0" for path in paths)
        if not lines:
            return
        fd = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, lines)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self._written.update(os.fsdecode(line) for line in lines.split(b"\0")[:-1])

    def _clear(self) -> None:
        self._written.clear()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._journal)


def _make(path: str) -> bool:
    """Make one placeholder. False when something of that name has appeared meanwhile: it is protected as it is by the
    next command, and covered in this one."""
    try:
        os.mkdir(path, _MODE)
    except FileExistsError:
        return False
    os.utime(path, ns=(_MARK_NS, _MARK_NS))
    return True


def _remove(path: str) -> bool:
    """Remove a placeholder. Anything that is not one any more is left alone."""
    try:
        state = os.lstat(path)
        if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and state.st_mtime_ns == _MARK_NS:
            os.rmdir(path)
            return True
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EROFS):
            raise
    return False
