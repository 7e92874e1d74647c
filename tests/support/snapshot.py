"""The host before and after: the oracle of every "nothing was changed" and "nothing was left"."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes import descendants
from support.users import Identity
from support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Facts by name: `file /path` to type, mode, owner and content; `process PID` to its command."""

    facts: dict[str, str]

    def difference(self, later: Snapshot) -> list[str]:
        """One line for each fact that appeared (+), went (-) or changed (!)."""
        before, after = self.facts, later.facts
        lines = [f"- {name} {before[name]}" for name in before.keys() - after.keys()]
        lines += [f"+ {name} {after[name]}" for name in after.keys() - before.keys()]
        lines += [f"! {name} {before[name]} -> {after[name]}" for name in before.keys() & after.keys()
                  if before[name] != after[name]]
        return sorted(lines)


@dataclass(frozen=True, slots=True)
class HostWatch:
    """What of the host belongs to one identity: its trees, what carries our name in the shared places, and every
    process below the test. The shared places are other programs' too, so only names that can be ours count there."""

    identity: Identity
    processes: bool = True

    def take(self) -> Snapshot:
        facts: dict[str, str] = {}
        for tree in (self.identity.home, self.identity.workspace, self.identity.runtime, self.identity.temporary):
            facts.update(describe_tree(tree))
        for shared in (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), Path("/run/user")):
            facts.update(_ours_in(shared, self.identity))
        if self.processes:
            facts.update({f"process {process.pid}": " ".join(process.command) for process in descendants()})
        return Snapshot(facts)

    @contextmanager
    def assert_unchanged(self, *, limit_s: float = 10.0) -> Iterator[None]:
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


def _ours_in(shared: Path, identity: Identity) -> dict[str, str]:
    try:
        names = [name for name in os.listdir(shared) if "sandboxd" in name or "bwrap" in name]
    except FileNotFoundError:
        return {}
    facts = {}
    for name in names:
        try:
            status = (shared / name).lstat()
        except FileNotFoundError:
            continue
        if status.st_uid == identity.uid:
            facts[f"file {shared / name}"] = f"{stat.S_IFMT(status.st_mode):o} {stat.S_IMODE(status.st_mode):04o}"
    return facts
