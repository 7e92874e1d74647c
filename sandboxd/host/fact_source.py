"""The fact source: answers to host queries, looked up by a worker thread.

Each name is registered with `Changes` before it is looked at, so `unchanged` is one read of an empty queue. The same
queries from several callers at once are answered once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from sandboxd.errors import PolicyError
from sandboxd.host.cache_scan import CacheScan
from sandboxd.host.git.config_targets import GitConfiguration, configuration_of_user
from sandboxd.host.git.made_repositories import MadeRepositories
from sandboxd.host.git.repositories import git_directories, obeyed_in, repositories_around, worktree_of
from sandboxd.host.globs import Effort, GlobScan
from sandboxd.host.mount_aliases import aliases_by_mounts
from sandboxd.host.resolve import NullNameRecorder, closing_owner, reject_closed, resolve
from sandboxd.host.sandbox_mounts import remove_made
from sandboxd.host.scan import ScanRecord, ScanTarget, TreeScan, found_at
from sandboxd.host.watch.directory_changes import Changes, Interest
from sandboxd.host.watch.name_watch import NameWatch
from sandboxd.plan.host_facts import Facts, Found, GitConfigTarget, GitDir, PathKind, PathObstacle, ResolvedPath, Scan
from sandboxd.plan.host_queries import BoundedNeed, HostQueries, ScanQuery
from sandboxd_client.records import dataclass, field

_TRIES = 20
MOST_REGISTERED = 50_000
"""A soft limit on directories kept in memory for several places together."""
_CACHES_KEPT = 64
"""Number of preset directories whose listings are kept."""
_ScanKey = tuple[str, int, tuple[str, ...], frozenset[str], tuple[str, ...]]


@dataclass(slots=True)
class _SharedScan:
    """A scan, with the number of facts that rest on it."""

    tree: TreeScan
    users: int = 0


@dataclass(slots=True, eq=False)
class _Stamp:
    """The dependencies of one set of facts."""

    needs: HostQueries
    stale: bool = False
    used: float = 0.0
    """The time of the last check, on the monotonic clock."""
    scans: list[tuple[TreeScan, int]] = field(default_factory=list)
    """Each with its version when the facts were made."""
    names: NameWatch | None = None
    globs: list[GlobScan] = field(default_factory=list)
    keys: list[_ScanKey] = field(default_factory=list)
    caches: list[tuple[CacheScan, int]] = field(default_factory=list)
    """Each with its version when the facts were made; no event reports their changes."""
    made: MadeRepositories | None = None
    made_version: int = 0
    owned: dict[str, int] = field(default_factory=dict)
    """The directories with an `owner`; no event reports its change."""
    removable: dict[str, None] = field(default_factory=dict)
    """The git directories that the facts leave out."""

    def spoil(self) -> None:
        """Mark the facts as outdated."""
        self.stale = True

    def slow(self) -> Iterator[Collection[Interest]]:
        """The registrations that `Changes.poll` does not report."""
        yield self.names.slow if self.names is not None else ()
        yield from (glob.slow for glob in self.globs)
        yield from (scan.slow for scan, _ in self.scans)

    @property
    def good(self) -> bool:
        known = not any(scan.stale or scan.version != version for scan, version in self.scans)
        if self.stale or not known or any(cache.version != version for cache, version in self.caches):
            return False
        if any(_owner_of(path) != owner for path, owner in self.owned.items()):
            return False
        made = self.made
        return made is None or (made.version == self.made_version and all(map(made.can_be_removed, self.removable)))

    def look_at_caches(self) -> None:
        for cache, _ in self.caches:
            cache.refresh(frozenset(self.needs.excluded))

    def cancel(self) -> None:
        if self.names is not None:
            self.names.cancel()
        for glob in self.globs:
            glob.close()


class HostFacts:
    """The `FactSource` of a daemon, on the real disk; `close` it at the end."""

    def __init__(self, made: MadeRepositories | None = None) -> None:
        self._made = made
        self._changes = Changes()
        self._known: dict[HostQueries, Facts] = {}
        self._locks: dict[HostQueries, asyncio.Lock] = {}
        self._scans: dict[_ScanKey, _SharedScan] = {}
        self._scans_lock = threading.Lock()
        self._caches: dict[tuple[str, tuple[str, ...]], CacheScan] = {}

    def close(self) -> None:
        self._changes.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about slow detection of file changes."""
        short_of = self._changes.compared
        if not short_of:
            return ()
        remedy = f"raise fs.inotify.max_user_{short_of}"
        if short_of == "instances":
            remedy += ", and then run: sandboxd restart"
        return (
            "some directories are compared before each command instead of watched, so commands start slower: inotify "
            f"{short_of} are used up; {remedy}",
        )

    def unchanged(self, facts: Facts) -> bool:
        self._changes.poll()
        if not isinstance(facts.stamp, _Stamp):
            return False
        facts.stamp.used = time.monotonic()
        return facts.stamp.good and not facts.stamp.caches and not any(facts.stamp.slow())

    async def _still_hold(self, facts: Facts) -> bool:
        """Return whether the facts still hold, by all means including slow ones."""
        if not self.unchanged(facts) and isinstance(facts.stamp, _Stamp) and facts.stamp.good:
            slow = [interest for interests in facts.stamp.slow() for interest in interests]
            await asyncio.to_thread(self._changes.compare, slow)
            await asyncio.to_thread(facts.stamp.look_at_caches)
        return isinstance(facts.stamp, _Stamp) and facts.stamp.good

    async def answer(self, needs: HostQueries) -> Facts:
        async with self._locks.setdefault(needs, asyncio.Lock()):
            known = self._known.get(needs)
            if known is not None and await self._still_hold(known):
                return known
            self._make_room(known)
            facts = await self._look_until_it_holds_still(needs)
            self._known[needs] = facts
            if known is not None and isinstance(known.stamp, _Stamp):
                self._release(known.stamp)
            return facts

    def _make_room(self, asked: Facts | None) -> None:
        """Drop the least recently used facts while too many directories are registered."""
        if not self._has_too_much():
            return
        others = [
            (facts.stamp.used, position, facts)
            for position, (needs, facts) in enumerate(self._known.items())
            if facts is not asked and isinstance(facts.stamp, _Stamp) and not self._locks[needs].locked()
        ]
        for _, _, facts in sorted(others):
            self.forget(facts)
            if not self._has_too_much():
                return

    def _has_too_much(self) -> bool:
        return self._changes.crowded or self._changes.registered > MOST_REGISTERED

    async def _look_until_it_holds_still(self, needs: HostQueries) -> Facts:
        """Repeat the look-up until no name goes between its scan and its look-up."""
        for _ in range(_TRIES):
            # scans are shared with other queries, so one may be outdated at the first answer
            self._changes.poll()
            try:
                return await asyncio.to_thread(self._look, needs)
            except (FileNotFoundError, NotADirectoryError) as error:
                self.look_again(str(error.filename))
        raise PolicyError(
            "scan_failed",
            "cannot read the protected names: programs create and remove them all the time",
            hint="stop the programs that change the working directory, and try again",
        )

    def look_again(self, path: str) -> None:
        """Discard the answers about a path, although no event has reported a change."""
        with self._scans_lock:
            for shared in self._scans.values():
                for above in _directories_above(path):
                    shared.tree.look_again(above)
        for facts in self._known.values():
            if isinstance(facts.stamp, _Stamp):
                facts.stamp.spoil()

    def remove_made(self, targets: Iterable[str], since: float) -> str:
        return remove_made(targets, since)

    async def resolve(self, path: str) -> ResolvedPath:
        return (await self.resolve_all((path,)))[0]

    async def resolve_all(self, paths: Iterable[str]) -> list[ResolvedPath]:
        wanted, names = list(paths), NullNameRecorder()
        return await asyncio.to_thread(lambda: [resolve(path, names) for path in wanted]) if wanted else []

    def forget(self, facts: Facts) -> None:
        if not isinstance(facts.stamp, _Stamp):
            return
        needs = facts.stamp.needs
        if self._known.get(needs) is facts:
            del self._known[needs]
            self._locks.pop(needs, None)
            self._release(facts.stamp)

    def _look(self, needs: HostQueries) -> Facts:
        stamp = _Stamp(needs, used=time.monotonic(), made=self._made)
        stamp.made_version = 0 if self._made is None else self._made.version
        names = stamp.names = NameWatch(self._changes, stamp.spoil)
        try:
            paths = {path: resolve(path, names) for path in needs.paths}
            for path, resolved in paths.items():
                reject_closed(path, problem=resolved.problem)
                if resolved.owner is not None:
                    stamp.owned[resolved.real] = resolved.owner
            effort = Effort()
            globs = {pattern: self._expand(pattern, needs, stamp, names, effort) for pattern in needs.globs}
            unseen: dict[str, str] = {}
            for bounded in needs.bounded:
                why = self._look_into(bounded, paths[bounded.directory], needs, stamp, names, globs)
                if why:
                    unseen[bounded.directory] = why
            user_configuration = configuration_of_user(os.path.expanduser("~"), names)
            scans = {
                need.root: self._scan(need, paths[need.root], needs, stamp, names, user_configuration)
                for need in needs.scans
            }
            obeyed = tuple(user_configuration.files(names))
        except BaseException:
            self._release(stamp)
            raise
        scanned = {root: scan for root, scan in scans.items() if scan is not None}
        unfollowed = {glob.pattern: links for glob in stamp.globs if (links := glob.unfollowed())}
        mount_aliases = aliases_by_mounts()
        return Facts(
            paths, globs, scanned, obeyed, unfollowed, stamp, mount_aliases, needs.excluded, names.absent_paths, unseen
        )

    def _look_into(
        self,
        need: BoundedNeed,
        root: ResolvedPath,
        needs: HostQueries,
        stamp: _Stamp,
        names: NameWatch,
        globs: dict[str, tuple[Found, ...]],
    ) -> str:
        """Add the matches of a bounded query; return why they are incomplete, else empty."""
        globs |= {need.whole(pattern): () for pattern in need.patterns}
        if root.kind is not PathKind.DIRECTORY:
            return ""
        with self._scans_lock:
            key = (root.real, need.patterns)
            cache = self._caches.pop(key, None) or CacheScan(*key)
            self._caches[key] = cache
            while len(self._caches) > _CACHES_KEPT:
                del self._caches[next(iter(self._caches))]
        stamp.caches.append((cache, cache.refresh(frozenset(needs.excluded))))
        for pattern in need.patterns:
            found = (found_at(path, names) for path in cache.found[pattern])
            globs[need.whole(pattern)] = tuple(replace(one, links=(*root.links, *one.links)) for one in found)
        return cache.unseen

    def _expand(
        self, pattern: str, needs: HostQueries, stamp: _Stamp, names: NameWatch, effort: Effort
    ) -> tuple[Found, ...]:
        glob = GlobScan(pattern, frozenset(needs.excluded), self._changes, stamp.spoil, effort)
        stamp.globs.append(glob)
        return glob.expand(names)

    def _scan(
        self,
        need: ScanQuery,
        root: ResolvedPath,
        needs: HostQueries,
        stamp: _Stamp,
        names: NameWatch,
        user_configuration: GitConfiguration,
    ) -> Scan | None:
        if root.kind is not PathKind.DIRECTORY or root.real in needs.excluded:
            return None
        tree = self._tree((root.real, need.depth, needs.names, needs.skipped, needs.excluded), stamp)
        self._changes.compare(tree.slow)
        stamp.scans.append((tree, tree.refresh()))
        found: list[Found] = []
        entries: list[Found] = []
        git_dirs: list[GitDir] = []
        unreadable: dict[str, None] = {}
        obeyed: dict[GitConfigTarget, None] = {}
        notable = tree.notable()
        for directory, record in notable.items():
            if self._made is not None and not record.unreadable:
                removable = self._made.around(directory, root.real, notable)
                if removable:
                    stamp.removable[removable] = None
                    continue
            closed = _closed(directory, record, names)
            if closed is not None:
                unreadable[closed] = None
                continue
            found += _found(directory, record.names, names)
            if record.git in ("file", "link"):
                entries += _found(directory, (".git",), names)
            if record.git == "file":
                obeyed |= dict.fromkeys(obeyed_in(directory, names, user_configuration))
            if record.git:
                git = resolve(os.path.join(directory, ".git"), names)
                inside = resolve(os.path.join(git.real, "modules"), names)
                if inside.problem and inside.obstacle is PathObstacle.OWNED:
                    unreadable[inside.existing] = None
                elif git.kind is PathKind.DIRECTORY:
                    git_dirs += git_directories(git.real, needs.git_names, names, user_configuration, directory)
            elif record.bare:
                git_dirs += git_directories(directory, needs.git_names, names, user_configuration)
        worktree = worktree_of(root.real, names) if need.follow_worktree else None
        if worktree is not None and not worktree.refused:
            git_dirs += git_directories(worktree.common, needs.git_names, names, user_configuration)
        top = ""
        if need.follow_worktree:
            top, around = repositories_around(root.real, needs.git_names, names, user_configuration)
            git_dirs += around
        dirs = _once(git_dirs)
        return Scan(root.real, tuple(found), tuple(entries), dirs, worktree, tuple(unreadable), top, tuple(obeyed))

    def _tree(self, key: _ScanKey, stamp: _Stamp) -> TreeScan:
        with self._scans_lock:
            shared = self._scans.get(key)
            if shared is None:
                root, depth, names, skipped, excluded = key
                tree = TreeScan(root, depth, ScanTarget.of(names, skipped, excluded), self._changes)
                shared = self._scans[key] = _SharedScan(tree)
            shared.users += 1
            stamp.keys.append(key)
        return shared.tree

    def _release(self, stamp: _Stamp) -> None:
        stamp.cancel()
        stamp.spoil()  # its changes are not reported from now on
        with self._scans_lock:
            for key in stamp.keys:
                shared = self._scans[key]
                shared.users -= 1
                if not shared.users:
                    del self._scans[key]
                    shared.tree.close()
            stamp.keys.clear()


def _owner_of(path: str) -> int | None:
    try:
        return closing_owner(os.lstat(path))
    except OSError:
        return None


def _directories_above(path: str) -> Iterator[str]:
    above = os.path.dirname(path.rstrip("/"))
    while above != "/":
        yield above
        above = os.path.dirname(above)
    yield above


def _closed(directory: str, record: ScanRecord, names: NameWatch) -> str | None:
    """Return the directory that keeps the names here from being looked up, if any."""
    if record.unreadable:
        return directory
    entry = os.path.join(directory, next(iter((*record.names, ".git" if record.git else "HEAD"))))
    try:
        os.lstat(entry)
    except PermissionError:
        return resolve(entry, names).existing  # without links on the way, this is the closed directory
    except OSError:
        pass
    return None


def _found(directory: str, wanted: Iterable[str], names: NameWatch) -> Iterator[Found]:
    """Yield the names that are there still; the scan hears of the others, and lists the directory again."""
    for name in wanted:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield found_at(os.path.join(directory, name), names)


def _once(git_dirs: list[GitDir]) -> tuple[GitDir, ...]:
    return tuple({git_dir.path: git_dir for git_dir in git_dirs}.values())
