"""The journal of placeholders: a killed daemon's are known to the next one.

The path of a placeholder is written, with a sync, before it is made for the first time. A line stays while the daemon
lives: further commands in the same directory cost no writes. Each daemon of this user has one file, locked (flock(2))
while it lives. An unlocked file is abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from sandboxd.errors import HostError, way_out
from sandboxd.host.placeholders.placeholder import is_at
from sandboxd.settings.files.inotify import CLOSE_WRITE, DIRECTORY, Inotify, leaves_room
from sandboxd_client.records import dataclass

_MOST_LINES = 10_000


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The journal of a daemon that has ended: `text` are its whole lines."""

    path: str
    text: bytes


class Journal:
    """The journal of one daemon; `start` is the prefix of all. Threads may write."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._namespace = _pid_namespace()
        self.path = f"{start}-{self._namespace}-{secrets.token_hex(6)}"
        self._log = -1
        self._written: set[str] = set()
        self._writing = threading.RLock()
        """Needed besides flock, which does not exclude threads of one process."""

    @property
    def directory(self) -> str:
        """Return the directory of all journals of this user."""
        return os.path.dirname(self._start)

    def unknown(self, paths: Iterable[str]) -> list[str]:
        """Return the paths that are not written yet."""
        return [path for path in paths if path not in self._written]

    def write(self, paths: Iterable[str], *, afresh: bool = False) -> None:
        """Write the paths that are not written yet. Raises HostError.

        Starts a new file if `afresh` (no written placeholder exists any more) and this one is long. A path that is not
        in the journal must not be made."""
        try:
            with self._writing:
                if afresh and len(self._written) > _MOST_LINES:
                    self.clear()
                self._write(self.unknown(paths))
        except OSError as error:
            raise HostError(
                "placeholder_failed",
                f"cannot write the journal of placeholders {self.path}: {error.strerror}",
                hint=way_out(error, "free some disk space there"),
                data={"path": self.path},
            ) from error

    def _write(self, paths: Sequence[str]) -> None:
        lines = b"".join(os.fsencode(path) + b"\0" for path in paths)
        while self._log < 0:
            log = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(log, fcntl.LOCK_EX)
            if is_at(self.path, os.fstat(log)):
                self._log = log
            else:  # another daemon took it for abandoned before the lock
                os.close(log)
        size = os.fstat(self._log).st_size
        try:
            if os.write(self._log, lines) != len(lines):  # the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._log)
        except OSError:
            os.ftruncate(self._log, size)  # a partial line would change the next one
            raise
        self._written.update(paths)

    def clear(self) -> None:
        """Empty the journal: none of its placeholders exist any more."""
        with self._writing:
            self._written.clear()
            if self._log >= 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)
                os.close(self._log)
                self._log = -1

    def abandoned(self, stack: contextlib.ExitStack) -> Iterator[Abandoned]:
        """Yield the journals whose daemons have ended, locked as long as `stack` is open."""
        directory, start = os.path.split(self._start)
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if name != start and not name.startswith(f"{start}-"):
                continue
            with contextlib.suppress(OSError):  # gone, in use, or not written by a daemon
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                stack.callback(os.close, file)
                state = os.fstat(file)
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
                    continue
                where = name.removeprefix(f"{start}-").split("-")
                if len(where) > 1 and where[0] != self._namespace and state.st_mtime >= _started_at():
                    continue  # of another pid namespace, whose processes cannot be seen here
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                text = _whole(file)
                # a last line without its end was cut off before its directory was made
                yield Abandoned(path, text[: text.rfind(b"\0") + 1])

    # from one daemon to the next (docs/restarts.md)

    def hand_over(self) -> tuple[str, int, tuple[str, ...]]:
        """Leave the file: return its path, locked descriptor (-1 for none) and lines."""
        log, self._log = self._log, -1
        written = tuple(sorted(self._written))
        self._written.clear()
        return self.path, log, written

    def resume(self, path: str, log: int, written: Iterable[str]) -> None:
        """Continue the journal of another daemon."""
        mine, mine_log, found = self.path, self._log, self._written
        self.path, self._log, self._written = path, log, set()
        if mine_log >= 0:  # of a third daemon, which was killed
            self.write(sorted(found))
            os.unlink(mine)
            os.close(mine_log)
        self._written.update(written)


class JournalsClosed:
    """A watch by inotify(7), where it exists, for journals of killed daemons."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._inotify: Inotify | None = None

    def watch(self, closed: Callable[[], None]) -> None:
        """Call `closed` in the event loop, until `close`."""
        with contextlib.suppress(HostError, OSError):
            if not leaves_room():
                return
            made = Inotify()
            try:
                made.add(self._directory, CLOSE_WRITE | DIRECTORY)
            except BaseException:
                made.close()
                raise
            self._inotify = made
            asyncio.get_running_loop().add_reader(made.fileno(), self._readable, closed)

    def _readable(self, closed: Callable[[], None]) -> None:
        if self._inotify is not None and any([*self._inotify.read()]):
            closed()

    def close(self) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None


def _pid_namespace() -> str:
    """Return an identifier of the pid namespace, unique until the next boot."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # macOS
        return "0"


def _started_at() -> float:
    """Return the boot time in seconds since the epoch."""
    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _whole(file: int) -> bytes:
    with open(file, "rb", closefd=False) as stream:
        return stream.read()
