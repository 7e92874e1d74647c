"""The host before and after: the oracle of every "nothing was changed" and "nothing was left"."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes import Births, descendants
from support.users import Identity
from support.waiting import LIMIT_S, wait_until

_OUR_NAME = re.compile(r"sandboxd(?!-test-|-fake-)|bwrap")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Facts by name: `file /path` to type, mode, owner and content; `shared /path` to type and mode, for places that
    are other programs' too; `process PID` to its command."""

    facts: dict[str, str]

    def difference(self, later: Snapshot) -> list[str]:
        """One line for each fact that appeared (+), went (-) or changed (!). What went from a shared place was there
        before the test, so another's to remove."""
        before, after = self.facts, later.facts
        lines = [f"- {name} {before[name]}" for name in before.keys() - after.keys() if not name.startswith("shared ")]
        lines += [f"+ {name} {after[name]}" for name in after.keys() - before.keys()]
        lines += [
            f"! {name} {before[name]} -> {after[name]}"
            for name in before.keys() & after.keys()
            if before[name] != after[name]
        ]
        return sorted(lines)


@dataclass(frozen=True, slots=True)
class HostWatch:
    """What of the host belongs to one identity: its trees, what carries our name in the shared places, and every
    process below the test but `strangers`, who come and go by themselves. The shared places are other programs' too, so
    only names that can be the test's count there."""

    identity: Identity
    strangers: Births = frozenset()

    def take(self) -> Snapshot:
        facts: dict[str, str] = {}
        for tree in (self.identity.home, self.identity.workspace, self.identity.runtime, self.identity.temporary):
            facts.update(describe_tree(tree))
        # what daemons record for good: what a person trusts, and where commands could write
        state = self.identity.home / ".local" / "state" / "sandboxd"
        kept = {f"file {path}" for path in (state, state.parent, state.parent.parent)}
        facts = {name: fact for name, fact in facts.items() if name not in kept and f"file {state}/" not in name}
        ours = [process for process in descendants() if process.birth not in self.strangers]
        pids = frozenset({os.getpid(), *(process.pid for process in ours)})
        for shared in (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), Path("/run/user")):
            facts.update(_ours_in(shared, self.identity, pids))
        facts.update({f"process {process.pid}": " ".join(process.command) for process in ours})
        return Snapshot(facts)

    @contextmanager
    def assert_unchanged(self, *, limit_s: float = LIMIT_S) -> Iterator[None]:
        """What stands inside leaves the host as it found it. Ends take a moment (a killed tree is still being torn
        down), so the comparison is repeated until it holds or `limit_s` is over."""
        before = self.take()
        yield
        last: list[str] = []

        def unchanged() -> bool:
            last[:] = before.difference(self.take())
            return not last

        try:
            wait_until(unchanged, limit_s=limit_s)
        except AssertionError:
            raise AssertionError("the host was changed:\n  " + "\n  ".join(last)) from None


def describe_tree(root: Path) -> dict[str, str]:
    """Every entry at and below `root`: type, mode, owner, and for files a hash, for links their target."""
    facts: dict[str, str] = {}
    open_paths = [root]
    while open_paths:
        path = open_paths.pop()
        try:
            status = path.lstat()
            kind, content = _kind_and_content(path, status)
            if kind == "directory":
                open_paths.extend(path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue  # went while we looked: the next comparison sees it
        facts[f"file {path}"] = f"{kind} {stat.S_IMODE(status.st_mode):04o} {status.st_uid}:{status.st_gid} {content}"
    return facts


def _kind_and_content(path: Path, status: os.stat_result) -> tuple[str, str]:
    if stat.S_ISDIR(status.st_mode):
        return "directory", ""
    if stat.S_ISLNK(status.st_mode):
        return "link", os.readlink(path)
    if stat.S_ISREG(status.st_mode):
        return "file", hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    if stat.S_ISSOCK(status.st_mode):
        return "socket", str(status.st_ino)
    return "special", f"{stat.S_IFMT(status.st_mode):o} {status.st_rdev}"


def _ours_in(shared: Path, identity: Identity, processes: frozenset[int]) -> dict[str, str]:
    """What carries our name (not that of our tests) in a shared place and belongs to the identity. For the directory
    in which all daemons of a user keep their temporary files, its entries count instead of itself, as far as no daemon
    of another program (another test's, a person's own on a developer's machine) holds them."""
    facts: dict[str, str] = {}
    for path in _children(shared):
        if not _OUR_NAME.search(path.name):
            continue
        if path == Path(f"/var/tmp/sandboxd-{identity.uid}"):
            entries = [entry for entry in _children(path) if not _held_by_others(_lock_of(entry), processes)]
            facts.update(_facts_of(entry, identity) for entry in entries if not _is_kept(entry))
        else:
            facts.update([_facts_of(path, identity)])
    return {name: fact for name, fact in facts.items() if fact}


def _is_kept(entry: Path) -> bool:
    """A journal of launches.

    A daemon has one from its first command to its end. That of a killed one stays until the next daemon of this user
    has looked; tests that run beside this one kill daemons of the same user."""
    return entry.name.startswith("launches-")


def _lock_of(entry: Path) -> Path:
    """The file that a daemon holds as long as it needs the entry: the one in a directory, or a journal itself."""
    return entry / "lock" if entry.is_dir() else entry


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, PermissionError):
        return []


def _facts_of(path: Path, identity: Identity) -> tuple[str, str]:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return f"shared {path}", ""
    own = status.st_uid == identity.uid
    return f"shared {path}", f"{stat.S_IFMT(status.st_mode):o} {stat.S_IMODE(status.st_mode):04o}" if own else ""


def _held_by_others(lock: Path, ours: frozenset[int]) -> bool:
    """Whether a process that is not one of `ours` holds an flock on the file."""
    return bool(_holders(lock) - ours)


def _holders(lock: Path) -> set[int]:
    """The processes that hold an flock on the file (proc_locks(5))."""
    try:
        inode = lock.stat().st_ino
    except OSError:
        return set()
    return {int(line.split()[4]) for line in Path("/proc/locks").read_text().splitlines()
            if line.split()[5].endswith(f":{inode}")}  # fmt: skip
