"""Placeholders: empty directories that keep absent protected names from being created by a sandbox.

A mount needs something to stand on. Where a protected name does not exist, an empty directory is made on the host for
as long as a sandbox needs it: git never lists one, and `rmdir` can never destroy data. For a few names that programs
fail at when they are directories (`~/.gitconfig`) it is an empty file, and never in a working tree. They are counted
across the sandboxes of this daemon, and held with a shared flock against other daemons of this user, so that sandboxes
in one directory keep each other's protection.

A placeholder is empty, this user's, and has the sticky bit, which mkdir(2) and open(2) set in the same step, and which
nobody gives to a private directory or a file. So whoever looks (`resolve`, the scan) takes the name for absent, which
it is; and once a program has put something into it, it is a directory or a file like any other.

Before one is made for the first time its path goes into a journal, with a sync; what a killed daemon leaves is known to
the next one. A line stays while the daemon lives: further commands in the same directory cost no writes.
"""

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
from dataclasses import dataclass, field

from sandboxd.errors import HostError
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor
from sandboxd.host import without_links
from sandboxd.host.sandbox_mounts import Ends, in_use, mounts_of_sandboxes

_MODE = 0o1755
_FILE_MODE = 0o1644
_WRITTEN_BY_OTHERS = 0o022
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINES = 10_000
_TRIES = 100
LINGER = 0.2
"""Seconds for which a placeholder outlives its last sandbox: removing and making it again for each of several commands
in a row would cost more than everything else in a wrap."""
_NO_PLACEHOLDER = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS}
)


def _is_marked(state: os.stat_result) -> bool:
    """Whether it is ours by its mode; a directory that others write, as /tmp, has the sticky bit too."""
    return state.st_uid == os.geteuid() and state.st_mode & (stat.S_ISVTX | _WRITTEN_BY_OTHERS) == stat.S_ISVTX


def is_placeholder(path: str, state: os.stat_result) -> bool:
    """Whether an entry only keeps a name absent: its own, or that of a placeholder in it. `state` is what lstat(2) says
    about it."""
    if not _is_marked(state):
        return False
    if stat.S_ISREG(state.st_mode):
        return state.st_size == 0
    if not stat.S_ISDIR(state.st_mode):
        return False
    try:
        with os.scandir(path) as entries:
            return all(is_placeholder(entry.path, entry.stat(follow_symlinks=False)) for entry in entries)
    except OSError:
        return False


def is_absent(path: str) -> bool:
    """Whether nothing is there, or only a placeholder. False when it cannot be looked at."""
    try:
        return is_placeholder(path, os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


@dataclass(slots=True, eq=False)
class Hold:
    """What one sandbox needs kept absent. `release` when it has ended; a second call does nothing."""

    paths: tuple[str, ...]
    watched: tuple[tuple[str, ...], ...]
    _release: Callable[[tuple[str, ...]], None] = field(repr=False)

    def release(self) -> tuple[str, ...]:
        """Let go. Names that could only be watched and have appeared are moved aside; where they are now."""
        paths, self.paths = self.paths, ()
        watched, self.watched = self.watched, ()
        self._release(paths)
        return tuple(moved for together in watched if (moved := _move_aside(together)))


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """`lock` is the descriptor with its shared flock; `inherited` that a command of a killed daemon needs it."""

    path: str
    lock: Descriptor
    inherited: bool = False


@dataclass(frozen=True, slots=True)
class PlaceholdersRecord:
    """What a daemon hands over to the next: the journal with its flock, and what stands."""

    journal: str
    log: Descriptor
    held: tuple[HeldRecord, ...] = ()
    written: tuple[str, ...] = ()


class Placeholders:
    """All placeholders of one daemon. `journal` is the path, in a directory that survives the daemon, with which the
    names of the journals begin: one for each daemon of this user, locked as long as that lives."""

    def __init__(self, journal: str, linger: float = LINGER) -> None:
        self._journals = journal
        self._namespace = _pid_namespace()
        self._journal = f"{journal}-{self._namespace}-{secrets.token_hex(6)}"
        self._log = -1
        self._linger = linger
        self._idle: dict[str, None] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._held: dict[str, _Placeholder] = {}
        self._written: set[str] = set()
        self._writing = threading.RLock()
        """Of the journal: threads write it, and each open file has a lock of its own (flock(2))."""
        self._inherited: frozenset[str] = frozenset()
        self._ends = Ends()

    def recover(self) -> tuple[str, ...]:
        """Remove what an earlier daemon left; the paths that were removed. What a command of that daemon still needs
        is kept until it has ended, see `follow`. To be called before the first `hold`. Its journal goes last: who is
        killed in the middle of this leaves it to the next."""
        with contextlib.ExitStack() as journals:
            return self._recover(tuple(self._abandoned(journals)))

    def _recover(self, journals: tuple[_Journal, ...]) -> tuple[str, ...]:
        text = b"".join(journal.text for journal in journals)
        # only paths: a journal may have been damaged, and that keeps no daemon from starting
        lines = sorted({os.fsdecode(line) for line in text.split(b"\0") if line.startswith(b"/")}, reverse=True)
        # A command outlives its daemon, and a mount goes with the directory it stands on.
        self._inherited = in_use(lines, mounts_of_sandboxes())
        for path in self._inherited:
            if (found := _take(path)) is not None:
                self._held[path] = found
                found.users = 1
        # the longest first: a directory is empty once what stood in it is gone
        removed = tuple(path for path in lines if path not in self._inherited and _recovered(path))
        self._clear()
        if self._inherited:
            self._write(sorted(self._inherited))
        for journal in journals:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(journal.path)
        return removed

    def follow(self) -> None:
        """Remove what commands of earlier daemons needed when they end. To be called in the event loop, after `recover`
        and `resume`."""
        self._ends.close()
        if not self._inherited:
            return
        running = mounts_of_sandboxes()
        needing = [process for process in running if in_use(self._inherited, {process: running[process]})]
        if needing:
            self._ends.watch(needing, self._one_has_ended)
        else:
            self._sweep_inherited()

    def _one_has_ended(self) -> None:
        self._sweep_inherited()
        self.follow()

    def _sweep_inherited(self) -> None:
        left = in_use(self._inherited, mounts_of_sandboxes())
        for path in self._inherited - left:
            placeholder = self._held.get(path)
            if placeholder is not None:
                placeholder.users -= 1
                if not placeholder.users:
                    self._idle[path] = None
        self._inherited = left
        if self._idle and self._sweeping is None:
            self._sweep()

    def hand_over(self) -> PlaceholdersRecord:
        """Let go of everything and leave it standing. Holds that are released later change nothing."""
        self._ends.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        held = tuple(HeldRecord(p, Descriptor(one.lock), p in self._inherited) for p, one in self._held.items())
        record = PlaceholdersRecord(self._journal, Descriptor(self._log), held, tuple(sorted(self._written)))
        self._held.clear()
        self._idle.clear()
        self._written.clear()
        self._inherited = frozenset()
        self._log = NO_DESCRIPTOR
        return record

    def resume(self, record: PlaceholdersRecord) -> None:
        """Take over what another daemon has handed over. Whoever needs it has to `hold` it again before the next sweep.
        To be called before the first `hold`."""
        mine, mine_log, found = self._journal, self._log, self._written
        self._journal, self._log, self._written = record.journal, record.log, set()
        if mine_log >= 0:  # of a third daemon, which was killed
            self._write(sorted(found))
            os.unlink(mine)
            os.close(mine_log)
        self._written.update(record.written)
        self._inherited |= {one.path for one in record.held if one.inherited}
        for one in record.held:
            self._held[one.path] = _Placeholder(one.path, one.lock, int(one.inherited))
            if not one.inherited:
                self._idle[one.path] = None
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(max(self._linger, LINGER), self._sweep)

    async def prepare(self, paths: tuple[str, ...]) -> None:
        """Write what `hold` would have to write in the journal, without keeping the event loop waiting for the disk."""
        unknown = [path for path in paths if path not in self._written]
        if unknown:
            await asyncio.to_thread(self._write, unknown)

    def hold(self, paths: tuple[str, ...], watched: tuple[tuple[str, ...], ...] = ()) -> Hold:
        """Make what is missing (parents first) and count what is there. `watched`: see `FileView`. Raises `HostError`
        when a directory cannot be made: then nothing is held."""
        held: list[str] = []
        try:
            unknown = [path for path in paths if path not in self._written]
            if unknown:
                self._write(unknown)
            for path in paths:
                self._hold(path)
                held.append(path)
        except OSError as error:
            self._release(tuple(held))
            raise HostError(
                "placeholder_failed",
                f"cannot keep {error.filename} from being created: {error.strerror}",
                hint="the working directory has to be writable, and its disk must have room",
                data={"path": error.filename},
            ) from error
        return Hold(paths, watched, self._release)

    def close(self) -> None:
        """Remove everything, whoever still holds it; but what a command of an earlier daemon still needs stays, and in
        the journal."""
        self._ends.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        left = in_use(self._inherited, mounts_of_sandboxes()) if self._inherited else frozenset()
        for path in sorted(self._held, reverse=True):
            if path in left:
                os.close(self._held.pop(path).lock)
            else:
                self._drop(path)
        self._clear()
        if left:
            self._write(sorted(left))

    def _hold(self, path: str) -> None:
        placeholder = self._held.get(path)
        if placeholder is not None and not placeholder.users and not _is_at(path, os.fstat(placeholder.lock)):
            self._drop(path)  # somebody removed it while nobody here needed it
            placeholder = None
        if placeholder is None:
            self._held[path] = placeholder = _make(path)
        placeholder.users += 1
        self._idle.pop(path, None)

    def _release(self, paths: tuple[str, ...]) -> None:
        for path in reversed(paths):
            placeholder = self._held.get(path)
            if placeholder is None:
                continue
            placeholder.users -= 1
            # The last of ours: the command that it was kept for may have been this one, taken over after a crash.
            if placeholder.users <= int(path in self._inherited):
                self._idle[path] = None
        if not self._idle:
            return
        if self._linger <= 0:
            self._sweep()
        elif self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._linger, self._sweep)

    def _sweep(self) -> None:
        """Remove what nobody needs any more, the innermost first."""
        self._sweeping = None
        doubtful = self._inherited & self._idle.keys()
        left = in_use(doubtful, mounts_of_sandboxes()) if doubtful else frozenset()
        self._inherited -= doubtful - left
        for path in sorted(self._idle, reverse=True):
            if path in left:
                del self._idle[path]
            else:
                self._drop(path)

    def _drop(self, path: str) -> None:
        self._idle.pop(path, None)
        placeholder = self._held.pop(path, None)
        if placeholder is not None:
            _remove(placeholder)

    def _write(self, paths: Iterable[str]) -> None:
        """Raises HostError: what is not in the journal must not be made."""
        try:
            with self._writing:
                self._write_alone([path for path in paths if path not in self._written])
        except OSError as error:
            raise HostError(
                "placeholder_failed",
                f"cannot write down what is to be kept from being created: {self._journal}: {error.strerror}",
                hint="that disk must have room",
                data={"path": self._journal},
            ) from error

    def _write_alone(self, paths: Sequence[str]) -> None:
        if len(self._written) > _MOST_LINES and not self._held:
            self._clear()
        lines = b"".join(os.fsencode(path) + b"\0" for path in paths)
        while self._log < 0:
            log = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(log, fcntl.LOCK_EX)
            if _is_at(self._journal, os.fstat(log)):
                self._log = log
            else:  # before it was locked another daemon took it for abandoned
                os.close(log)
        size = os.fstat(self._log).st_size
        try:
            if os.write(self._log, lines) != len(lines):  # the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._log)
        except OSError:
            os.ftruncate(self._log, size)  # half a line would make another one of the next
            raise
        self._written.update(paths)

    def _clear(self) -> None:
        with self._writing:
            self._written.clear()
            if self._log >= 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._journal)
                os.close(self._log)
                self._log = -1

    def _abandoned(self, stack: contextlib.ExitStack) -> Iterator[_Journal]:
        """The journals whose daemons have ended, locked as long as `stack` is open."""
        directory, start = os.path.split(self._journals)
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if name != start and not name.startswith(f"{start}-"):
                continue
            with contextlib.suppress(OSError):  # gone, in use, or nothing that a daemon has written
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                stack.callback(os.close, file)
                state = os.fstat(file)
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
                    continue
                where = name.removeprefix(f"{start}-").split("-")
                if len(where) > 1 and where[0] != self._namespace and state.st_mtime >= _started_at():
                    continue  # of a container, or of the host when we are in one: what runs there cannot be seen here
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                text = _whole(file)
                # a last line without its end was cut off before its directory was made
                yield _Journal(path, text[: text.rfind(b"\0") + 1])


def _pid_namespace() -> str:
    """What tells it from others as long as the machine runs; the first one is the same after every start."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # macOS
        return "0"


def _started_at() -> float:
    """When this machine was started, in seconds since the epoch."""
    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class _Journal:
    """What an ended daemon has written: `text` are its whole lines."""

    path: str
    text: bytes


@dataclass(slots=True, eq=False)
class _Placeholder:
    """`lock` is a descriptor of the directory with a shared flock."""

    path: str
    lock: int
    users: int = 0


def _make(path: str) -> _Placeholder:
    """Make one, or join another daemon's. Raises FileExistsError when something real is there."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            parent, name = os.path.split(path.rstrip("/"))
            with without_links.opened(parent) as directory:
                if path.endswith("/"):
                    os.mkdir(name, _MODE, dir_fd=directory)
                else:
                    os.close(os.open(name, _CREATE, _FILE_MODE, dir_fd=directory))
        found = _take(path)
        if found is not None:
            return found
        if os.path.lexists(path.rstrip("/")) and not is_absent(path.rstrip("/")):
            break
    raise FileExistsError(errno.EEXIST, "it has just been created by another program", path)


def _whole(file: int) -> bytes:
    with open(file, "rb", closefd=False) as stream:
        return stream.read()


def _recovered(path: str) -> bool:
    """Whether one that an earlier daemon has written down was there, and has been removed."""
    try:
        found = _take(path)
        return found is not None and _remove(found)
    except OSError:  # nothing that could be one: too long, or on a disk that fails
        return False


def _take(path: str) -> _Placeholder | None:
    """A placeholder that is there, locked; None for anything else."""
    path = path.rstrip("/")
    parent, name = os.path.split(path)
    try:
        with without_links.opened(parent) as directory:
            lock = os.open(name, _OPEN, dir_fd=directory)
    except OSError as error:
        if error.errno in _NO_PLACEHOLDER:
            return None
        raise
    state = os.fstat(lock)
    # in an outer placeholder stands an inner one, so emptiness is no test for directories here
    if _is_marked(state) and (stat.S_ISDIR(state.st_mode) or (stat.S_ISREG(state.st_mode) and not state.st_size)):
        fcntl.flock(lock, fcntl.LOCK_SH)
        if _is_at(path, state):
            return _Placeholder(path, lock)
    os.close(lock)
    return None


def _is_at(path: str, state: os.stat_result, directory: int | None = None) -> bool:
    try:
        now = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (state.st_dev, state.st_ino)


def _remove(placeholder: _Placeholder) -> bool:
    """Remove one, unless another daemon holds it too or it is not a placeholder any more."""
    try:
        fcntl.flock(placeholder.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = os.fstat(placeholder.lock)
        parent, name = os.path.split(placeholder.path)
        with without_links.opened(parent) as directory:
            if not _is_at(name, state, directory):
                return False
            if stat.S_ISDIR(state.st_mode):
                os.rmdir(name, dir_fd=directory)
            elif state.st_size:
                raise OSError(errno.ENOTEMPTY, "it is in use", placeholder.path)
            else:
                os.unlink(name, dir_fd=directory)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            # somebody uses it: from now on it is theirs
            with contextlib.suppress(OSError):
                os.fchmod(placeholder.lock, stat.S_IMODE(os.fstat(placeholder.lock).st_mode) & ~stat.S_ISVTX)
        elif error.errno not in _NO_PLACEHOLDER:
            raise
        return False
    finally:
        os.close(placeholder.lock)
    return True


def _move_aside(together: tuple[str, ...]) -> str | None:
    """A name that must not be there, out of the way; None when it, or one it is harmless without, is not. All of them
    stand in one directory."""
    above, name = os.path.split(together[0])
    try:
        with without_links.opened(above) as directory:
            if not all(without_links.mode_of(directory, os.path.basename(path)) for path in together):
                return None
            moved = without_links.move_aside(directory, name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return moved and os.path.join(above, moved)
