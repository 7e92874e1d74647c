"""The scan for protected names below a writable root, kept up to date.

The first scan lists every directory that it reaches; later ones list only those that have changed. Symlinks are never
followed, and ignore files play no part. A directory that cannot be listed is reported. Any other failure fails the
scan, since a name that was not seen would not be protected.

The scan uses `os.scandir` and no external program: empty directories count (`.vscode`, `.git/hooks`), and the
directories have to be known anyway, to be watched."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Mapping
from fnmatch import translate

from sandboxd.errors import PolicyError
from sandboxd.host.placeholders.placeholder import is_absent
from sandboxd.host.resolve import NameRecorder, kind_of, reject_closed, resolve
from sandboxd.host.watch.directory_changes import Changes, Interest
from sandboxd.plan.host_facts import Found, PathKind
from sandboxd_client.records import dataclass

MAX_DIRECTORIES = 100_000
_BARE = frozenset({"HEAD", "refs", "objects"})


@dataclass(frozen=True, slots=True)
class ScanTarget:
    """The names to find, by their first part, and the directories not to enter."""

    literal: frozenset[str]
    """Single-part names."""
    tails: dict[str, tuple[str, ...]]
    """By the first part of a longer name: the parts looked for below it."""
    skipped: frozenset[str]
    excluded: frozenset[str]

    @classmethod
    def of(cls, names: tuple[str, ...], skipped: frozenset[str], excluded: tuple[str, ...]) -> ScanTarget:
        tails: dict[str, tuple[str, ...]] = {}
        for name in names:
            first, _, rest = name.partition("/")
            if rest:
                tails[first] = (*tails.get(first, ()), rest)
        return cls(frozenset(name for name in names if "/" not in name), tails, skipped, frozenset(excluded))


@dataclass(slots=True)
class ScanRecord:
    """The notable content of one directory."""

    depth: int
    tail: re.Pattern[str] | None
    names: tuple[str, ...] = ()
    """Protected names here, as entries."""
    git: str = ""
    """`file`, `directory` or `link` when there is a `.git`."""
    bare: bool = False
    below: tuple[str, ...] = ()
    unreadable: bool = False
    interest: Interest | None = None
    outdated: bool = False
    """Set while the directory is listed again: what changes meanwhile is compared with neither record."""


class TreeScan:
    """The scan of one canonical root."""

    def __init__(self, root: str, depth: int, wanted: ScanTarget, changes: Changes) -> None:
        self.root = root
        self._depth = depth
        self._wanted = wanted
        self._changes = changes
        self._tails = {first: re.compile("|".join(map(translate, rest))) for first, rest in wanted.tails.items()}
        self._records: dict[str, ScanRecord] = {}
        self._dirty: dict[str, None] = {root: None}
        self._notable: dict[str, ScanRecord] = {}
        self._identity: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self.slow: dict[Interest, None] = {}
        self.version = 0
        """A number that changes with each change, for the facts that rest on this scan."""

    @property
    def stale(self) -> bool:
        return bool(self._dirty)

    def refresh(self) -> int:
        """Apply changes since the last scan; return its `version`. Raises `PolicyError`."""
        with self._lock:
            if (identity := _identity(self.root)) != self._identity:
                self.version += self._identity is not None
                self._identity = identity
                self._forget(self.root)
                self._dirty[self.root] = None
            version = self.version  # before the scan, so that a change meanwhile outdates it
            while self._dirty:
                path = next(iter(self._dirty))
                self._dirty.pop(path, None)
                record = self._records.get(path)
                if path == self.root:
                    self._list(path, 0, None)
                elif record is not None:
                    self._list(path, record.depth, record.tail)
            return version

    def notable(self) -> dict[str, ScanRecord]:
        """Return the directories with notable content, by path."""
        with self._lock:
            return dict(self._notable)

    def close(self) -> None:
        for record in self._records.values():
            self._cancel(record.interest)
        self._records.clear()

    def _list(self, top: str, depth: int, tail: re.Pattern[str] | None) -> None:
        todo = [(top, depth, tail)]
        while todo:
            path, depth, tail = todo.pop()
            old = self._records.get(path)
            if old is not None and old.interest is not None and old.interest.gone:  # it reports no further changes
                self._forget(path)
                old = None
            if old is not None:
                old.outdated = True
            record = self._read(path, depth, tail, old.interest if old is not None else None)
            kept = set(record.below) if record is not None else set()
            for name in old.below if old is not None else ():
                if name not in kept:
                    self._forget(_join(path, name))
            if record is None:
                self._forget(path)
                continue
            self._records[path] = record
            if record.names or record.git or record.bare or record.unreadable:
                self._notable[path] = record
            else:
                self._notable.pop(path, None)
            if len(self._records) > MAX_DIRECTORIES:
                raise PolicyError(
                    "scan_too_large",
                    f"{self.root} has more than {MAX_DIRECTORIES:,} directories to search for protected names",
                    hint="make a smaller directory writable, or lower sandbox.mandatoryDenySearchDepth",
                )
            for name in record.below:
                below = _join(path, name)
                if below not in self._records or below in self._dirty:
                    self._dirty.pop(below, None)
                    todo.append((below, depth + 1, self._tails.get(name)))

    def _read(
        self, path: str, depth: int, tail: re.Pattern[str] | None, interest: Interest | None
    ) -> ScanRecord | None:
        """Read one directory; None when it no longer exists."""
        record = ScanRecord(depth, tail, interest=interest)
        try:
            if interest is None:
                record.interest = self._register(path, record)
            if self._can_be_searched(path, record):
                self._fill(record, path)
            else:
                record.unreadable = _can_be_opened_up(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._cancel(record.interest)
                return None
            reject_closed(path, error)
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise PolicyError(
                    "scan_failed",
                    f"cannot search {path} for protected names: {error.strerror}",
                    hint="make the directory readable, or make a smaller directory writable",
                    data={"path": path},
                ) from error
            record.unreadable = _can_be_opened_up(path)
        return record

    def _register(self, path: str, record: ScanRecord, *, attributes: bool = False) -> Interest:
        matters = _RecordFilter(path, self._records, self._wanted, record.tail, record.depth < self._depth)
        interest = self._changes.register(path, matters, self._changed, attributes=attributes)
        if interest.slow:
            self.slow[interest] = None
        return interest

    def _cancel(self, interest: Interest | None) -> None:
        if interest is not None:
            self.slow.pop(interest, None)
            self._changes.cancel(interest)

    def _can_be_searched(self, path: str, record: ScanRecord) -> bool:
        """Return whether names in a directory can be used; else watch its mode too."""
        if os.access(path, os.X_OK):
            return True
        names_only = record.interest
        record.interest = self._register(path, record, attributes=True)
        self._cancel(names_only)
        return os.access(path, os.X_OK)

    def _fill(self, record: ScanRecord, path: str) -> None:
        wanted = self._wanted
        names, below, bare = [], [], 0
        deeper = record.depth < self._depth
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name in wanted.literal or (record.tail is not None and record.tail.match(name)):
                    if is_absent(_join(path, name)):
                        continue
                    names.append(name)
                if name == ".git":
                    record.git = _git_kind(entry)
                elif name in _BARE:
                    bare += 1
                elif name in wanted.tails and is_absent(_join(path, name)):
                    continue
                if (
                    entry.is_dir(follow_symlinks=False)
                    and name != ".git"
                    and (deeper or name in wanted.tails)
                    and name not in wanted.skipped
                    and _join(path, name) not in wanted.excluded
                ):
                    below.append(name)
        record.names = tuple(sorted(names))
        record.bare = bare == len(_BARE)
        # inside a bare repository there are only its objects; a name's own directory at the rim is entered for its tail
        record.below = () if record.bare else tuple(below)

    def look_again(self, directory: str) -> None:
        """List a directory again: no event reports that its mode has changed."""
        if directory in self._records:
            self._changed(directory)

    def _changed(self, directory: str) -> None:
        self.version += 1
        self._dirty[directory] = None

    def _forget(self, path: str) -> None:
        """Drop a directory that is gone, with everything below it."""
        todo = [path]
        while todo:
            path = todo.pop()
            record = self._records.pop(path, None)
            self._notable.pop(path, None)
            self._dirty.pop(path, None)
            if record is None:
                continue
            self._cancel(record.interest)
            todo += [_join(path, name) for name in record.below]


@dataclass(frozen=True, slots=True)
class _RecordFilter:
    """Decides whether the change of a name changes the record of a directory."""

    directory: str
    records: Mapping[str, ScanRecord]
    wanted: ScanTarget
    tail: re.Pattern[str] | None
    deeper: bool

    def __call__(self, name: str, is_directory: bool) -> bool:
        if (
            name in self.wanted.literal
            or name == ".git"
            or name in _BARE
            or name in self.wanted.tails
            or (self.tail is not None and self.tail.match(name))
        ):
            return not self._still_absent(name)
        return is_directory and self.deeper and name not in self.wanted.skipped and not self._still_absent(name)

    def _still_absent(self, name: str) -> bool:
        """Return whether a name is absent still; placeholders count as absent."""
        record = self.records.get(self.directory)
        return (
            record is not None
            and not record.outdated
            and name not in record.names
            and name not in record.below
            and name != ".git"
            and not record.bare
            and is_absent(_join(self.directory, name))
        )


def found_at(path: str, seen: NameRecorder) -> Found:
    """Return a name with its type, after its link."""
    state = os.lstat(path)
    if not os.path.islink(path):
        return Found(
            path, path, kind_of(state.st_mode), state.st_nlink if kind_of(state.st_mode) is PathKind.FILE else 1
        )
    resolved = resolve(path, seen)
    reject_closed(path, problem=resolved.problem)
    closed = resolved.existing if resolved.is_closed else ""
    return Found(path, resolved.real, resolved.kind, resolved.hard_links, resolved.links, closed)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _git_kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    return "directory" if entry.is_dir(follow_symlinks=False) else "file"


def _can_be_opened_up(path: str) -> bool:
    """Return whether the user could still list or fill a directory of this mode."""
    try:
        return os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK | os.X_OK)
    except OSError:
        return True


def _join(directory: str, name: str) -> str:
    return directory + name if directory == "/" else f"{directory}/{name}"
