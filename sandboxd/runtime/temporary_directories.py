"""Temporary directories of sessions: private, made on demand, removed at the end.

Each daemon has one directory below the base, held by an flock for as long as it lives. A daemon that starts removes
the directories whose lock is free: a killed daemon left them. The lock, not a pid, decides, so that a
recycled pid can neither keep litter alive nor take a running daemon's directory away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import heapq
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from types import TracebackType

from sandboxd.errors import HostError
from sandboxd.handover.record import Descriptor
from sandboxd.runtime.tree_removal import remove_tree
from sandboxd_client.records import dataclass

_LOCK = "lock"
_PREFIX = "d-"
_TRIES = 100


@dataclass(frozen=True, slots=True)
class TemporaryRecord:
    """The directory with its lock and its sessions' names, for the next daemon."""

    path: str
    lock: Descriptor
    slots: Mapping[str, int]
    free: tuple[int, ...] = ()


class TemporaryRoot:
    """The directory of one daemon.

    `base` exists, is owned by the user and has mode 0700. `before` is what an earlier daemon has handed over: then
    it goes on with that directory. In `elsewhere`, directories of macOS, commands of a session make `sandboxd-D-T`."""

    def __init__(self, base: str, before: TemporaryRecord | None = None, elsewhere: tuple[str, ...] = ()) -> None:
        self._base = base
        self._elsewhere = elsewhere
        self.path = "" if before is None else before.path
        self._lock: int = -1 if before is None else before.lock
        self._slots: dict[str, int] = {} if before is None else dict(before.slots)
        self._free: list[int] = [] if before is None else sorted(before.free)
        self.mask = "" if before is None else _mask(before.path)
        """A file with mode 000, bound over files whose reading is denied."""

    @property
    def record(self) -> TemporaryRecord:
        return TemporaryRecord(self.path, Descriptor(self._lock), dict(self._slots), tuple(self._free))

    def hand_over(self) -> TemporaryRecord:
        """Let go of the directory and leave it as it is."""
        record, self._lock = self.record, -1
        return record

    async def keep_only(self, sessions: frozenset[str]) -> list[OSError]:
        """Remove the directories of all other sessions; return what failed."""
        failed = []
        for session_id in [name for name in self._slots if name not in sessions]:
            try:
                await self.remove_session(session_id)
            except OSError as error:
                failed.append(error)
        return failed

    async def __aenter__(self) -> TemporaryRoot:
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._close)

    def _open(self) -> None:
        if self._lock >= 0:
            return
        try:
            for left in reversed(range(_TRIES)):
                try:
                    self._make()
                    break
                except (FileNotFoundError, FileExistsError):  # the last other daemon in there takes the base away
                    if not left:
                        raise
            self.mask = _mask(self.path)
            os.close(os.open(self.mask, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o000))
        except OSError as error:
            raise HostError(
                "temporary_directory",
                f"cannot make a temporary directory in {self._base}: {error.strerror}",
                hint=f"check the owner and the free space of {self._base}",
            ) from error

    def _make(self) -> None:
        os.makedirs(self._base, mode=0o700, exist_ok=True)
        with _exclusive(self._base):
            self._sweep()
            self.path = os.path.join(self._base, _PREFIX + secrets.token_hex(6))
            os.mkdir(self.path, 0o700)
            self._lock = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _close(self) -> None:
        if self._lock < 0:
            return
        self._remove_elsewhere(os.path.basename(self.path))
        remove_tree(self.path)
        os.close(self._lock)
        self._lock = -1
        # Another daemon of this user may still have its own in there, or be about to.
        with contextlib.suppress(OSError), _exclusive(self._base, fcntl.LOCK_NB):
            os.rmdir(self._base)

    def _sweep(self) -> None:
        with os.scandir(self._base) as found:
            entries = list(found)
        for entry in entries:
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            if _held(os.path.join(entry.path, _LOCK)):
                continue
            self._remove_elsewhere(entry.name)
            remove_tree(entry.path)

    def _remove(self, name: str) -> None:
        daemon = os.path.basename(self.path)
        self._remove_elsewhere(daemon, f"sandboxd-{daemon}-{name}")
        for path in (f"{self.path}/{name}-over", f"{self.path}/{name}-masked", f"{self.path}/{name}"):
            remove_tree(path)

    def _remove_elsewhere(self, name: str, session: str = "") -> None:
        """Remove what commands of one session, or of all of a daemon, have made in `elsewhere`."""
        for parent in self._elsewhere:
            with contextlib.suppress(OSError), os.scandir(parent) as found:
                for entry in list(found):
                    own = entry.name == session if session else entry.name.startswith(f"sandboxd-{name}-")
                    if own and entry.is_dir(follow_symlinks=False):
                        remove_tree(entry.path)

    def session(self, session_id: str) -> str:
        """Return the temporary directory of a session; make it when missing.

        Absolute, mode 0700. Its name is one that an ended session has left free, since whatever is known about a
        place is known by its path."""
        slot = self._slots.get(session_id)
        if slot is None:
            slot = self._slots[session_id] = heapq.heappop(self._free) if self._free else len(self._slots)
        path = f"{self.path}/t{slot}"
        try:
            state = os.lstat(path)
        except FileNotFoundError:
            os.mkdir(path, 0o700)
            return path
        if not stat.S_ISDIR(state.st_mode):
            raise HostError(
                "temporary_directory", f"{path} is not a directory", hint="remove it; the next command makes a new one"
            )
        return path

    async def remove_session(self, session_id: str) -> None:
        """Remove a session's directory. Raises OSError; its name is then not reused."""
        slot = self._slots.get(session_id)
        if slot is None:
            return
        await asyncio.to_thread(self._remove, f"t{slot}")
        del self._slots[session_id]
        heapq.heappush(self._free, slot)


def _mask(path: str) -> str:
    return os.path.join(path, "denied")


@contextlib.contextmanager
def _exclusive(directory: str, flags: int = 0) -> Iterator[None]:
    """Hold the base directory while sweeping and making.

    A directory without its lock yet must not look abandoned. Raises FileNotFoundError when it is taken away meanwhile.
    `flags`: LOCK_NB to raise instead of waiting."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        if not os.path.samestat(os.fstat(descriptor), os.stat(directory)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        yield
    finally:
        os.close(descriptor)


def _held(lock: str) -> bool:
    """Return whether a living daemon holds the lock file.

    The lock of a directory is made with it (`_exclusive`)."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
