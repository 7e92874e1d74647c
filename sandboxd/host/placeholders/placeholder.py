"""One placeholder: an empty directory or file with the sticky bit, and a shared flock on it while it is needed.

mkdir(2) and open(2) set the sticky bit in the same step, and nobody gives it to a private directory or a file. So
whoever looks (`resolve`, the scan) takes the name for absent, which it is; and once a program has put something into
it, it is a directory or a file like any other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxd.host import nofollow

_MODE = 0o1755
_FILE_MODE = 0o1644
_WRITTEN_BY_OTHERS = 0o022
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100
_TICK = 100_000_000
"""Nanoseconds, several times what the clock of times takes for one step."""
_MOST_KNOWN = 1000
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
            return all(_keeps_absent(entry) for entry in entries)
    except FileNotFoundError:  # it was removed meanwhile, as they are when no command needs them
        return True
    except OSError:
        return False


def _keeps_absent(entry: os.DirEntry[str]) -> bool:
    try:
        return is_placeholder(entry.path, entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return True


def is_absent(path: str) -> bool:
    """Whether nothing is there, or only a placeholder. False when it cannot be looked at."""
    try:
        return is_placeholder(path, os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


@dataclass(slots=True, eq=False)
class Placeholder:
    """`lock` is a descriptor of the directory with a shared flock. `lost`: it was removed while somebody needed it, or
    it was made in the place of such a one."""

    path: str
    lock: int
    users: int = 0
    lost: bool = False
    times: tuple[int, int] = (0, 0)
    """Of a directory, when it was last seen to hold nothing."""
    is_known_used: bool = False
    """It was told that another program uses it."""


def make(path: str) -> Placeholder:
    """Make one, or join another daemon's. Raises FileExistsError when something real is there, OSError (EBUSY) when a
    program keeps it locked, and (ENOTSUP) where nothing can be marked as ours."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            parent, name = os.path.split(path.rstrip("/"))
            with nofollow.opened(parent) as directory:
                if path.endswith("/"):
                    os.mkdir(name, _MODE, dir_fd=directory)
                else:
                    os.close(os.open(name, _CREATE, _FILE_MODE, dir_fd=directory))
                _see_that_it_is_marked(name, directory, path)
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


def _see_that_it_is_marked(name: str, directory: int, path: str) -> None:
    """What has just been made. Some file systems in user space take the sticky bit only afterwards. Where there is
    none, or all belongs to one user, nothing tells ours from somebody's own, so nothing of ours may stay."""
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
            with contextlib.suppress(OSError):  # in use: then it is theirs
                if stat.S_ISDIR(state.st_mode):
                    os.rmdir(name, dir_fd=directory)
                elif not os.fstat(made).st_size:
                    os.unlink(name, dir_fd=directory)
    finally:
        os.close(made)
    raise OSError(errno.ENOTSUP, "its file system keeps no modes and owners", path)


def take(path: str) -> Placeholder | None:
    """A placeholder that is there, locked; None for anything else, and where somebody else has the lock alone: for a
    moment that is a daemon that removes it. A sandboxed program could keep it for ever, so nobody waits."""
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
    # in an outer placeholder stands an inner one, so emptiness is no test for directories here
    if _is_marked(state) and (stat.S_ISDIR(state.st_mode) or (stat.S_ISREG(state.st_mode) and not state.st_size)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_at(path, state):
                return Placeholder(path, lock)
    os.close(lock)
    return None


class Directories:
    """Whether the directories that placeholders stand in are as they were when all of these were last looked at, by
    their times: one question for each instead of two for every placeholder."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}

    def as_before(self, paths: tuple[str, ...]) -> frozenset[str]:
        """The directories in which none of these placeholders can have been removed. The caller looks at the others."""
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
    """For as long as it is needed, what stands there can be looked at and removed, although a command has closed a
    directory above it (`chmod 555 .`). Where that is somebody else's, nothing is different."""
    with contextlib.ExitStack() as stack:
        for above in {os.path.dirname(path.rstrip("/")) for path in paths}:
            if not os.access(above, os.W_OK | os.X_OK):
                with contextlib.suppress(OSError):
                    stack.enter_context(nofollow.made_accessible(above))
        yield


def remove(placeholder: Placeholder) -> bool:
    """Remove one, unless another daemon holds it too or it is not a placeholder any more."""
    try:
        fcntl.flock(placeholder.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = os.fstat(placeholder.lock)
        parent, name = os.path.split(placeholder.path.rstrip("/"))  # as its holder calls it: a directory ends in one
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
            unmark(placeholder.lock)  # somebody uses it: from now on it is theirs
        elif error.errno not in _NO_PLACEHOLDER:
            raise
        return False
    finally:
        os.close(placeholder.lock)
    return True


def is_lost(placeholder: Placeholder) -> bool:
    """Whether it is certainly not at its path any more; not so where nobody can look at the moment."""
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
    """Whether another program has put something into it, or has made it its own: then the name is not absent. Neither
    changes the directory that it stands in."""
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
    """From now on it is an entry like any other."""
    with contextlib.suppress(OSError):
        os.fchmod(lock, stat.S_IMODE(os.fstat(lock).st_mode) & ~stat.S_ISVTX)


def remove_empty(path: str) -> bool:
    """Whether an empty directory of whatever kind was there, and has been removed."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError), nofollow.opened(parent) as directory:
        os.rmdir(name, dir_fd=directory)
        return True
    return False


def remove_left(path: str) -> bool:
    """Whether one that an earlier daemon has written down was there, and has been removed."""
    try:
        with reachable(path):
            found = take(path)
            return found is not None and remove(found)
    except OSError:  # nothing that could be one: too long, or on a disk that fails
        return False


def is_at(path: str, state: os.stat_result, directory: int | None = None) -> bool:
    """Whether the entry there (below `directory`) is still the one with this state."""
    try:
        now = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (state.st_dev, state.st_ino)
