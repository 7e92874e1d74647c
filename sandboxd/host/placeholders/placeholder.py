"""One placeholder: an empty directory or file with sticky bit and a shared flock.

mkdir(2) and open(2) set the sticky bit in the same step, and no program gives it to a private directory or a file. So
`resolve` and the scan take the name for absent. A placeholder that a program has put something into counts as an
ordinary entry."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator

from sandboxd.host import nofollow
from sandboxd_client.records import dataclass

_MODE = 0o1755
_FILE_MODE = 0o1644
_WRITTEN_BY_OTHERS = 0o022
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100
_TICK = 100_000_000
"""Nanoseconds, several times a step of the clock of file times."""
_MOST_KNOWN = 1000
_NO_PLACEHOLDER = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS}
)


def _is_marked(state: os.stat_result) -> bool:
    """Return whether owner and mode are a placeholder's (/tmp is sticky too)."""
    return state.st_uid == os.geteuid() and state.st_mode & (stat.S_ISVTX | _WRITTEN_BY_OTHERS) == stat.S_ISVTX


def is_placeholder(path: str, state: os.stat_result) -> bool:
    """Return whether an entry (lstat(2): `state`) is a placeholder, or holds others."""
    if not _is_marked(state):
        return False
    if stat.S_ISREG(state.st_mode):
        return state.st_size == 0
    if not stat.S_ISDIR(state.st_mode):
        return False
    try:
        with os.scandir(path) as entries:
            return all(_keeps_absent(entry) for entry in entries)
    except FileNotFoundError:  # removed meanwhile, when no command needed it
        return True
    except OSError:
        return False


def _keeps_absent(entry: os.DirEntry[str]) -> bool:
    try:
        return is_placeholder(entry.path, entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return True


def is_absent(path: str) -> bool:
    """Return whether nothing or only a placeholder is there; false when unknown."""
    try:
        return is_placeholder(path, os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


@dataclass(slots=True, eq=False)
class Placeholder:
    """A held placeholder; `lock` has a shared flock, `lost` ones were removed in use."""

    path: str
    lock: int
    users: int = 0
    lost: bool = False
    times: tuple[int, int] = (0, 0)
    """Of a directory: its times when it was last seen empty."""
    is_known_used: bool = False
    """Set once its use by another program was reported."""


def make(path: str) -> Placeholder:
    """Make a placeholder, or join another daemon's.

    Raises FileExistsError when something real is there, OSError EBUSY when a program keeps it locked, and ENOTSUP where
    the file system cannot mark it."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            parent, name = os.path.split(path.rstrip("/"))
            with nofollow.opened(parent) as directory:
                if path.endswith("/"):
                    os.mkdir(name, _MODE, dir_fd=directory)
                else:
                    os.close(os.open(name, _CREATE, _FILE_MODE, dir_fd=directory))
                _check_mark(name, directory, path)
        found = take(path)
        if found is not None and is_in_use(found):
            unmark(found.lock)
            os.close(found.lock)
            break
        if found is not None:
            return found
        if os.path.lexists(path.rstrip("/")) and not is_absent(path.rstrip("/")):
            break
    else:
        raise OSError(errno.EBUSY, "a program has locked it (flock)", path)
    raise FileExistsError(errno.EEXIST, "it has just been created by another program", path)


def _check_mark(name: str, directory: int, path: str) -> None:
    """Check the mark of a new placeholder, and remove one without it.

    Some file systems in user space set the sticky bit only afterwards. Others have none, or give every file to one
    user: a placeholder could not be told from a user's file there."""
    made = os.open(name, _OPEN, dir_fd=directory)
    try:
        state = os.fstat(made)
        if _is_marked(state):
            return
        with contextlib.suppress(OSError):
            os.fchmod(made, _MODE if stat.S_ISDIR(state.st_mode) else _FILE_MODE)
        if _is_marked(os.fstat(made)):
            return
        if is_at(name, state, directory):
            with contextlib.suppress(OSError):  # in use by a program, which owns it then
                if stat.S_ISDIR(state.st_mode):
                    os.rmdir(name, dir_fd=directory)
                elif not os.fstat(made).st_size:
                    os.unlink(name, dir_fd=directory)
    finally:
        os.close(made)
    raise OSError(errno.ENOTSUP, "its file system keeps no modes and owners", path)


def take(path: str) -> Placeholder | None:
    """Lock an existing placeholder; None for others, and for an exclusive lock.

    A daemon that removes it holds the lock for a moment. A command could hold it for ever, so the lock is never waited
    for."""
    path = path.rstrip("/")
    parent, name = os.path.split(path)
    try:
        with nofollow.opened(parent) as directory:
            lock = os.open(name, _OPEN, dir_fd=directory)
    except OSError as error:
        if error.errno in _NO_PLACEHOLDER:
            return None
        raise
    state = os.fstat(lock)
    # an outer placeholder holds an inner one, so emptiness is no test for directories
    if _is_marked(state) and (stat.S_ISDIR(state.st_mode) or (stat.S_ISREG(state.st_mode) and not state.st_size)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_at(path, state):
                return Placeholder(path, lock)
    os.close(lock)
    return None


class Directories:
    """The times of the directories that hold placeholders: one check for all in one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}

    def as_before(self, paths: tuple[str, ...]) -> frozenset[str]:
        """Return the directories from which no placeholder can have been removed."""
        before = self._known.get(paths, {})
        now: dict[str, tuple[int, ...]] = {}
        for directory in {os.path.dirname(path.rstrip("/")) for path in paths}:
            with contextlib.suppress(OSError):
                state = os.stat(directory, follow_symlinks=False)
                if state.st_ctime_ns < time.time_ns() - _TICK:  # later ones tell of no change within the same tick
                    now[directory] = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known[paths] = now
        return frozenset(directory for directory, times in now.items() if before.get(directory) == times)


@contextlib.contextmanager
def reachable(*paths: str) -> Iterator[None]:
    """Make a placeholder reachable where a command has closed a directory above."""
    with contextlib.ExitStack() as stack:
        for above in {os.path.dirname(path.rstrip("/")) for path in paths}:
            if not os.access(above, os.W_OK | os.X_OK):
                with contextlib.suppress(OSError):
                    stack.enter_context(nofollow.made_accessible(above))
        yield


def remove(placeholder: Placeholder) -> bool:
    """Remove a placeholder, unless another daemon holds it or it has changed."""
    try:
        fcntl.flock(placeholder.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = os.fstat(placeholder.lock)
        parent, name = os.path.split(placeholder.path.rstrip("/"))  # the path of a directory ends in a slash
        with reachable(placeholder.path), nofollow.opened(parent) as directory:
            if not is_at(name, state, directory) or not _is_marked(state):
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
            unmark(placeholder.lock)  # a program uses it, and owns it from now on
        elif error.errno not in _NO_PLACEHOLDER:
            raise
        return False
    finally:
        os.close(placeholder.lock)
    return True


def is_lost(placeholder: Placeholder) -> bool:
    """Return whether it is certainly gone from its path; false when unknown."""
    state = os.fstat(placeholder.lock)
    if not state.st_nlink:
        return True
    try:
        now = os.stat(placeholder.path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return not os.path.samestat(now, state)


def is_in_use(placeholder: Placeholder) -> bool:
    """Return whether another program uses it: the directory above does not change."""
    state = os.fstat(placeholder.lock)
    if not _is_marked(state):
        return True
    if not stat.S_ISDIR(state.st_mode):
        return state.st_size > 0
    times = (state.st_mtime_ns, state.st_ctime_ns)
    if times == placeholder.times:
        return False
    path = placeholder.path.rstrip("/")
    if is_at(path, state) and not is_placeholder(path, state):
        return True
    if max(times) < time.time_ns() - _TICK:  # later ones tell of no change within the same tick
        placeholder.times = times
    return False


def unmark(lock: int) -> None:
    """Turn a placeholder into an ordinary entry."""
    with contextlib.suppress(OSError):
        os.fchmod(lock, stat.S_IMODE(os.fstat(lock).st_mode) & ~stat.S_ISVTX)


def remove_empty(path: str) -> bool:
    """Remove an empty directory; return whether there was one."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError), nofollow.opened(parent) as directory:
        os.rmdir(name, dir_fd=directory)
        return True
    return False


def remove_left(path: str) -> bool:
    """Remove a placeholder in an earlier daemon's journal; return whether it existed."""
    try:
        with reachable(path):
            found = take(path)
            return found is not None and remove(found)
    except OSError:  # no possible placeholder: too long, or on a failing disk
        return False


def is_at(path: str, state: os.stat_result, directory: int | None = None) -> bool:
    """Return whether the entry at a path still has this state."""
    try:
        now = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (state.st_dev, state.st_ino)
