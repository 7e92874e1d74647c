"""Trusted contents of settings files: a record for each directory, by SHA-256.

The directory of the records is masked in every sandbox. Content that is not surely a valid record counts as none: then
a file may only tighten."""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping

from sandboxd.errors import SettingsError, way_out
from sandboxd_client.records import dataclass, field

_MAX_RECORD = 16 * 1024 * 1024
_MAX_OPENED = 4 * 1024 * 1024
_SHOWN_LINES, _SHOWN_LETTERS = 40, 200


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """The content of one file when it was trusted."""

    sha256: str
    text: str


@dataclass(frozen=True, slots=True)
class TrustedDirectory:
    """The record of a real path; `files` by relative names, time since the epoch."""

    directory: str
    files: Mapping[str, TrustedFile] = field(default_factory=dict)
    trusted_at: float = 0.0


class TrustStore:
    """The records in `directory`, which is made when it is needed."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def make(self) -> bool:
        """Make the directory, so that it can be masked; False when it is not usable."""
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            return _is_owned(os.lstat(self.directory), stat.S_IFDIR)
        except OSError:
            return False

    def find(self, directory: str) -> TrustedDirectory | None:
        """Return the record of a real directory; None without a usable one."""
        found = self._read(self._path(directory))
        return found if found is not None and found.directory == directory else None

    def state(self, directory: str) -> tuple[int, ...]:
        """Return a value that changes with each write or removal of a record."""
        try:
            status = os.stat(self._path(directory))
        except OSError:
            return ()
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    def all(self) -> tuple[TrustedDirectory, ...]:
        """Return all records, by directory."""
        try:
            names = os.listdir(self.directory)
        except OSError:
            return ()
        found = (self._read(os.path.join(self.directory, name)) for name in names if name.endswith(".json"))
        return tuple(sorted((one for one in found if one is not None), key=lambda one: one.directory))

    def save(self, record: TrustedDirectory) -> None:
        """Write a record in one step. Raises SettingsError `trust_unwritable`."""
        files = {name: {"sha256": file.sha256, "text": file.text} for name, file in record.files.items()}
        value = {"version": 1, "directory": record.directory, "trusted_at": record.trusted_at, "files": files}
        path = self._path(record.directory)
        new = f"{path}.{secrets.token_hex(8)}"
        try:
            if not self.make():
                raise PermissionError(0, "it is not a directory that only this user can write", self.directory)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, path)
            _sync(self.directory)
        except OSError as fault:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise self._unwritable("write", fault) from fault

    def remove(self, directory: str) -> bool:
        """Forget a directory; False without a record. Raises `trust_unwritable`."""
        try:
            os.unlink(self._path(directory))
            _sync(self.directory)
        except FileNotFoundError:
            return False
        except OSError as fault:
            raise self._unwritable("remove", fault) from fault
        return True

    def _unwritable(self, verb: str, fault: OSError) -> SettingsError:
        return SettingsError(
            "trust_unwritable",
            f"cannot {verb} the record of trust in {self.directory}: {fault.strerror}",
            hint=way_out(fault, f"make {self.directory} a directory that only you can write"),
        )

    def seal_key(self) -> bytes:
        """Return the key of blocks of violations, kept for the next daemon where the directory is usable."""
        path, key = os.path.join(self.directory, "seal"), secrets.token_bytes(32)
        new = f"{path}.{secrets.token_hex(8)}"
        try:
            if not self.make():
                return key
            if (known := _read_key(path)) is not None:
                return known
            with open(
                os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(key)
            os.rename(new, path)
            return _read_key(path) or key
        except OSError:
            return key

    def _path(self, directory: str) -> str:
        return os.path.join(self.directory, f"{hashlib.sha256(os.fsencode(directory)).hexdigest()}.json")

    @staticmethod
    def _read(path: str) -> TrustedDirectory | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not _is_owned(status, stat.S_IFREG) or status.st_size > _MAX_RECORD:
                    return None
                value = json.loads(file.read(_MAX_RECORD))
            if value["version"] != 1:
                return None
            files = {str(name): TrustedFile(str(f["sha256"]), str(f["text"])) for name, f in value["files"].items()}
            return TrustedDirectory(str(value["directory"]), files, float(value["trusted_at"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


class OpenedPlaces:
    """Real paths of directories that commands of any daemon of the user could write.

    The file `path`, beside the records, has one a line, as JSON. A command may have left a settings file in them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: set[str] = set()
        self._state: tuple[int, ...] = ()
        self._added = self._synced = 0
        """The number of additions, and of those that are on the disk."""

    @property
    def is_durable(self) -> bool:
        """Return whether all additions are on the disk."""
        return self._synced == self._added

    def sync(self) -> None:
        """Wait until they are, in a worker thread. Raises `opened_unwritable`."""
        added = self._added
        try:
            _sync(self._path)
            _sync(os.path.dirname(self._path))
        except FileNotFoundError:  # removed by the user
            pass
        except OSError as fault:
            raise self._unwritable(fault) from fault
        self._synced = max(self._synced, added)

    def add(self, paths: Iterable[str], store: TrustStore) -> None:
        """Record further directories, durably after `sync`.

        Raises SettingsError `opened_unwritable` when the user may write the record and writing fails: the next daemon
        would trust what commands leave there. A home without write permission has no record, and no directory is
        trusted (`read`)."""
        known = self.read()
        new = {path for path in map(real_path, paths) if not _is_in(path, known)}
        if not new or not self._can_be_kept():
            return
        lines = "".join(
            f"\n{json.dumps(path)}" for path in sorted(new)
        )  # a new line, since the last one may be cut off
        try:
            if not store.make():
                raise PermissionError(errno.EPERM, "it is not a directory that only this user can write")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self._path, flags, 0o600), "w", encoding="ascii") as file:
                file.write(lines)
        except OSError as fault:
            raise self._unwritable(fault) from fault
        self._added += 1

    def _unwritable(self, fault: OSError) -> SettingsError:
        return SettingsError(
            "opened_unwritable",
            f"cannot record in {self._path} which directories commands may write: {fault.strerror}",
            hint=way_out(fault, f"make {os.path.dirname(self._path)} a directory that only you can write"),
        )

    def _can_be_kept(self) -> bool:
        """Return whether the user can write the record, or make its directories."""
        at = self._path
        while not os.path.lexists(at):
            at = os.path.dirname(at)
        is_made = at == os.path.dirname(self._path)
        return os.access(at, os.W_OK) and (not is_made or _is_owned(os.lstat(at), stat.S_IFDIR))

    def read(self) -> set[str]:
        """Return all directories; the root when there are too many or no valid record."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return set() if self._can_be_kept() else {"/"}
        state = (status.st_ino, status.st_mtime_ns, status.st_size)
        if state != self._state:
            self._known, self._state = self._read(status), state
        return self._known

    def _read(self, status: os.stat_result) -> set[str]:
        if not _is_owned(status, stat.S_IFREG) or status.st_size > _MAX_OPENED:
            return {"/"}
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                lines = file.read(_MAX_OPENED).splitlines()
        except OSError:
            return {"/"}
        found: set[str] = set()
        for line in lines:
            with contextlib.suppress(ValueError):
                found.add(str(json.loads(line)))
        return found


def _read_key(path: str) -> bytes | None:
    with contextlib.suppress(OSError):
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            key = file.read(33)
            if _is_owned(os.fstat(file.fileno()), stat.S_IFREG) and len(key) == 32:
                return key
    return None


def _sync(path: str) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_in(path: str, places: set[str]) -> bool:
    """Return whether a canonical path is one of these directories or below one."""
    while path not in places:
        if path == "/":
            return False
        path = os.path.dirname(path)
    return True


def real_path(path: str) -> str:
    """Resolve links as far as this process may; /proc has links of other processes."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.normpath(path)


def trust_directory(home: str) -> str:
    """Return the directory of a user's records."""
    return os.path.join(home, ".local/state/sandboxd/trust")


def opened_file(home: str) -> str:
    """Return the record of directories that were opened for commands."""
    return os.path.join(trust_directory(home), "opened")


def digest(data: bytes) -> str:
    """Return the SHA-256 of a content."""
    return hashlib.sha256(data).hexdigest()


def remembered(data: bytes) -> TrustedFile:
    """Return the record of a file: its digest, and its text for a later difference."""
    return TrustedFile(digest(data), data.decode("utf-8", "replace"))


def difference(before: str, after: bytes) -> tuple[str, ...]:
    """List removed (`-`) and added (`+`) lines, bounded and printable."""
    new = after.decode("utf-8", "replace").splitlines()
    old = before.splitlines()
    if len(old) + len(new) > 2000:  # quadratic time, and a command may have written the text
        return ("(too long to compare)",)
    lines = [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:3] not in ("---", "+++", "@@ ")]
    shown = ["".join(c if c.isprintable() else " " for c in line[:_SHOWN_LETTERS]) for line in lines[:_SHOWN_LINES]]
    more = len(lines) - len(shown)
    return (*shown, *([f"(and {more} more lines)"] if more else []))


def _is_owned(status: os.stat_result, kind: int) -> bool:
    """Return whether a file is the user's, and writable for no other user."""
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022
