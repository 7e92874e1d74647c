"""One pass of a repository clean-up: find git directories, make them harmless.

A pass tells what a command has left from what a person has made by inode change times, which no program can set.
Those of another machine, and of a file system in memory, prove nothing."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property, partial
from glob import glob

from sandboxd.errors import PolicyError
from sandboxd.host.git import git_directory_cleanup
from sandboxd.host.git.cleanup_memory import CleanupMemory
from sandboxd.host.git.config_targets import GitConfiguration, configuration_of_user
from sandboxd.host.git.git_directory_cleanup import bytes_of, signature_of
from sandboxd.host.git.git_index import gitlinks
from sandboxd.host.git.pending_cleanups import CouldWrite
from sandboxd.host.git.repositories import configured_worktrees, depends_on_process, obeyed_by, physical, pointers_of
from sandboxd.host.git.unfinished_cleanups import PART_S
from sandboxd.host.resolve import OF_A_PROCESS, NullNameRecorder
from sandboxd.host.watch.directory_index import Budget, Deadline, Directory, DirectoryIndex, Holds, Rest
from sandboxd.plan.host_facts import Neutralised, ResolvedPath, Territory

MOST_DIRECTORIES = 200_000
"""Limit below one place."""
MOST_SECONDS = 5.0
"""Processor time of one pass."""
SECONDS_BEFORE = 1.0
"""For the pass before the first command of a place; the rest is judged by times."""
SECONDS_FOR_POINTERS = 2.0
"""For pointers to repositories, after an incomplete walk."""
LARGEST_INDEX = 128 << 20
_TOLD = frozenset({".git", "HEAD", "commondir", "config", "config.worktree", "hooks", "objects", "refs"})
"""Names that the helper tells of (guard.c); others are directories that were moved."""
LEAST_SECONDS = 0.05
FEW = 64
"""Directories of a place that are looked at on the event loop."""


class _Unchanged(IntEnum):
    """The extent that no command has changed, from nothing to all directories above."""

    NOTHING = 0
    ENTRY = 1
    PATH = 2


class CleanupPass:
    """One pass, in a thread."""

    def __init__(
        self,
        memory: CleanupMemory,
        territory: Territory,
        could_write: CouldWrite,
        since: int,
        told: tuple[str, ...] = (),
    ) -> None:
        """`told` are names that commands have made; they are looked at where the limits end the walk."""
        self._told = told
        self._memory = memory
        self._territory = territory
        self._could_write = could_write
        self._command_since = since
        self._since = min(since, memory.busy.started)
        self._known = frozenset(territory.known)
        self._opened: dict[str, int] = {}
        self._moved: list[str] = []
        self._failed: Exception | None = None
        self._done: set[tuple[str, str]] = set()
        self._changes = True
        self._index: DirectoryIndex | None = None
        self._moved_from: frozenset[str] | None = None
        self._until = Deadline.after(0.0)
        self.rests: dict[str, Rest] = {}
        """The unsearched rest of each place."""

    @cached_property
    def _user_configuration(self) -> GitConfiguration:
        """Read the configuration of the user, for the first git directory whose targets are to be looked at."""
        try:
            return configuration_of_user(os.path.expanduser("~"), NullNameRecorder())
        except PolicyError as error:
            self._failed = error
            return GitConfiguration()

    def has_nothing_to_do(self) -> bool:
        """Return whether few directories are to be looked at, and none has changed, so that no thread is needed."""
        excluded = frozenset(self._territory.excluded)
        for place in self._territory.places:
            index, lock = self._memory.index_of(place)
            if not lock.acquire(blocking=False):
                return False
            try:
                if not index.is_unchanged(excluded, FEW, self._has_nothing_to_clean):
                    return False
            finally:
                lock.release()
        return True

    def _has_nothing_to_clean(self, path: str, directory: Directory) -> bool:
        holds = directory.holds
        if holds & Holds.LINK and self._could_write(path):
            return False
        pointed = not holds & Holds.DOT_GIT or os.path.join(path, ".git") in self._known
        return pointed and (not holds & Holds.HEAD or path in self._known)

    def run(self) -> Neutralised:
        try:
            incomplete = self._walk(self._territory.places, MOST_SECONDS)
            if incomplete:
                self._until = Deadline.after(SECONDS_FOR_POINTERS)
                self._look_at_told()
                self._until = Deadline.after(SECONDS_FOR_POINTERS)
                self._follow()
        finally:
            git_directory_cleanup.close_again(self._opened)
        unseen = f"{incomplete}; the rest is searched in the background" if incomplete else ""
        return Neutralised(tuple(dict.fromkeys(self._moved)), self._failed, unseen)

    def go_on(self, rests: dict[str, Rest]) -> Neutralised:
        """Search a part of an earlier pass's rest, and take it out of `rests`."""
        excluded, until, unseen = frozenset(self._territory.excluded), Deadline.after(PART_S), ""
        try:
            for place, rest in list(rests.items()):
                index, lock = self._memory.index_of(place)
                with lock:
                    self._index = index
                    for path, directory in index.go_on(rest, excluded, Budget(until, MOST_DIRECTORIES, self._open_up)):
                        self._visit(path, directory)
                    self._failed, unseen = self._failed or index.failed, unseen or index.unseen
                if not rest:
                    del rests[place]
        finally:
            git_directory_cleanup.close_again(self._opened)
        return Neutralised(tuple(dict.fromkeys(self._moved)), self._failed, unseen)

    def remember(self, places: list[str]) -> None:
        """Change nothing, and admit what no command has left."""
        self._changes = False
        self._walk(places, SECONDS_BEFORE)

    def _walk(self, places: tuple[str, ...] | list[str], seconds: float) -> str:
        """Search the places; return why something was not seen, else empty."""
        excluded = frozenset(self._territory.excluded)
        end = Deadline.after(seconds)
        # an equal share of time each, so that a large place leaves some for the others; then the remainder
        unfinished = []
        for number, place in enumerate(places):
            if self._walk_one(place, excluded, end.share(len(places) - number, LEAST_SECONDS)):
                unfinished.append(place)
        why = [self._walk_one(place, excluded, end, again=True) for place in unfinished]
        return next(filter(None, why), "")

    def _look_at_told(self) -> None:
        """Visit the directories of the names that commands have made, and all below those that were moved."""
        excluded, budget = frozenset(self._territory.excluded), Budget(self._until, MOST_DIRECTORIES, self._open_up)
        for place in self._territory.places:
            told = [os.path.split(path) for path in self._told if path.startswith(f"{place}/")]
            index, lock = self._memory.index_of(place)
            with lock:
                self._index = index
                for above in dict.fromkeys(above for above, _ in told):
                    if not self._until.is_over() and (directory := index.at(above, budget)) is not None:
                        self._visit(above, directory)
                moved = deque((f"{above}/", iter((name,))) for above, name in told if name not in _TOLD)
                for path, directory in index.go_on(moved, excluded, budget):
                    self._visit(path, directory)
                self._failed = self._failed or index.failed

    def _walk_one(self, place: str, excluded: frozenset[str], until: Deadline, *, again: bool = False) -> str:
        index, lock = self._memory.index_of(place)
        with lock:
            self._index = index
            for path, directory in index.look(excluded, Budget(until, MOST_DIRECTORIES, self._open_up), again=again):
                self._visit(path, directory)
            self._failed = self._failed or index.failed
            if index.unseen:
                self.rests[place] = index.rest
            else:
                self.rests.pop(place, None)
            index.rest = deque()
            return index.unseen

    def _open_up(self, path: str) -> bool:
        """Reopen a directory that a command, not a person, has closed; upper ones first."""
        closed = [path]
        while not os.access(above := os.path.dirname(closed[-1]), os.X_OK):
            closed.append(above)
        return all([self._open_one(one) for one in reversed(closed)])

    def _open_one(self, path: str) -> bool:
        if not self._changes or path in self._opened or not self._could_write(path):
            return False
        try:
            if os.lstat(path).st_ctime_ns < self._command_since:
                return False
        except OSError:
            return False
        mode = git_directory_cleanup.open_up(path)
        if mode is not None:
            self._opened[path] = mode
        return mode is not None

    def _visit(self, path: str, directory: Directory) -> None:
        try:
            self._visit_one(path, directory.holds)
        except (OSError, ValueError) as error:  # a failure at one does not keep the others from being cleaned
            self._failed = error

    def _visit_one(self, path: str, holds: Holds) -> None:
        if holds & Holds.DOT_GIT:
            self._judge_pointer(path)
        whole = bool(holds & Holds.COMMONDIR) or Holds.OBJECTS | Holds.REFS in holds
        if holds & Holds.HEAD and (whole or os.path.basename(path).lower() == ".git"):
            self._judge(path)
        if holds & Holds.LINK:
            self._clean_module_links(path)

    def _clean_module_links(self, directory: str) -> None:
        """Move aside links by which git would reach git directories of submodules."""
        if not self._changes or not self._could_write(directory):
            return
        for link in git_directory_cleanup.links_to_modules(directory):
            if not self._is_quiet_link(link):
                self._moved += git_directory_cleanup.move(*os.path.split(link))

    def _judge_pointer(self, work_tree: str) -> None:
        """Judge the targets of the `.git` of a directory."""
        entry = os.path.join(work_tree, ".git")
        try:
            state = os.lstat(entry)
        except OSError:
            return
        if stat.S_ISDIR(state.st_mode):
            self._judge(entry)  # also without a HEAD: `git init` would make a repository of it
            return
        fresh = not self._was_made_quietly(entry, _Unchanged.ENTRY)
        if fresh and self._changes and depends_on_process(work_tree):
            self._moved += git_directory_cleanup.move(work_tree, ".git")
            return
        for target in pointers_of(work_tree):
            whole = os.path.lexists(os.path.join(target, "HEAD"))
            came = not whole or self._is_from_checkout(git_directory_cleanup.common_of(target) or target)
            if came and fresh and self._changes:
                self._moved += git_directory_cleanup.move(work_tree, ".git")
                return
            if whole:
                self._judge(target, work_tree, fresh=fresh)

    def _is_from_checkout(self, git_dir: str) -> bool:
        """Return whether a checkout may have brought a git directory that runs something.

        It lies in a working tree, has another name than `.git`, which git never checks out, and no person's `.git`
        leads to it. One that a command has made is cleaned itself."""
        if ".git" in git_dir.split("/") or not git_directory_cleanup.runs_something(git_dir):
            return False
        above = os.path.dirname(git_dir)
        while not os.path.lexists(entry := os.path.join(above, ".git")):
            if above == "/":
                return False
            above = os.path.dirname(above)
        if self._was_made_quietly(entry, _Unchanged.ENTRY) and git_dir in pointers_of(above):
            return False
        unchanged = self._unchanged_at(git_dir)
        return git_dir in self._known or not all(
            self._is_planted(one, unchanged) for one in git_directory_cleanup.obeyed_items(git_dir)
        )

    def _judge(self, git_dir: str, work_tree: str = "", *, fresh: bool = False) -> None:
        """Clean one git directory; with `fresh`, its age proves nothing."""
        closed = git_dir in self._known or (self._changes and not self._could_write(git_dir))
        if (git_dir, work_tree) in self._done or (closed and not work_tree):
            return
        self._done.add((git_dir, work_tree))
        if not self._changes:
            self._remember(git_dir, work_tree, fresh=fresh)
            return
        if not closed and not os.access(git_dir, os.X_OK):
            self._open_up(git_dir)
        unchanged = _Unchanged.NOTHING if fresh else self._unchanged_at(git_dir)
        common = git_directory_cleanup.common_of(git_dir)
        common_is_new = bool(common) and self._is_planted(os.path.join(git_dir, "commondir"), unchanged)
        if not closed:
            self._clean(git_dir, unchanged)
        if common and common != git_dir and os.path.lexists(os.path.join(git_dir, "commondir")):
            self._judge(common, work_tree, fresh=fresh or common_is_new)
        # targets of a protected one may be relative to the working tree that leads to it
        self._clean_obeyed(git_dir, work_tree, unchanged)
        self._remember(git_dir, work_tree, fresh=fresh)

    def _clean(self, git_dir: str, unchanged: _Unchanged) -> None:
        moved, failed = git_directory_cleanup.make_harmless(git_dir, lambda path: self._is_planted(path, unchanged))
        self._moved += moved
        self._failed = failed or self._failed

    def _clean_obeyed(self, git_dir: str, work_tree: str, unchanged: _Unchanged) -> None:
        try:
            for config_target in obeyed_by(git_dir, self._user_configuration, work_tree):
                target = config_target.resolved
                if not self._could_write(target.real) or target.problem == OF_A_PROCESS:
                    self._clean_links(target)
                elif target.kind is not None:
                    extent = min(unchanged, self._unchanged_along(target))
                    self._moved += git_directory_cleanup.make_obeyed_harmless(
                        config_target, partial(self._is_planted, unchanged=extent)
                    )
        except (OSError, PolicyError) as error:
            self._failed = error

    def _clean_links(self, target: ResolvedPath) -> None:
        """Move a command's link aside when its target is out of the command's reach."""
        for link in target.links:
            if self._could_write(link.path) and not self._is_quiet_link(link.path):
                self._moved += git_directory_cleanup.move(*os.path.split(link.path))
                return

    def _unchanged_along(self, resolved: ResolvedPath) -> _Unchanged:
        """Return how much is unchanged on the path to the target of a configuration."""
        unchanged = self._unchanged_at(os.path.dirname(resolved.real))
        whole = unchanged is _Unchanged.PATH and all(self._is_quiet_link(link.path) for link in resolved.links)
        return unchanged if whole else _Unchanged.NOTHING

    def _is_quiet_link(self, path: str) -> bool:
        return self._unchanged_at(os.path.dirname(path)) is _Unchanged.PATH and self._was_made_quietly(path)

    def _is_planted(self, path: str, unchanged: _Unchanged) -> bool:
        signature = signature_of(path)
        if not signature or self._memory.is_admitted(path, signature):
            return False
        if self._index is None or not self._index.keeps_times:
            return True
        # an earlier daemon has cleaned up after its own commands
        return not all(
            (unchanged is _Unchanged.PATH and moment < self._since)
            or (unchanged and self._memory.busy.was_quiet(moment, path, self._other_sources(unchanged)))
            for moment in signature[2::5]
        )

    def _was_made_quietly(self, path: str, unchanged: _Unchanged = _Unchanged.PATH) -> bool:
        try:
            moment = os.lstat(path).st_ctime_ns
            return moment < self._since or self._memory.busy.was_quiet(moment, path, self._other_sources(unchanged))
        except OSError:
            return False

    def _remember(self, git_dir: str, work_tree: str, *, fresh: bool) -> None:
        """Admit what no command can have left, or what is harmless and beyond change."""
        unchanged = _Unchanged.NOTHING if fresh else self._unchanged_at(git_dir)
        extents = dict.fromkeys(git_directory_cleanup.obeyed_items(git_dir), unchanged)
        try:
            for target in obeyed_by(git_dir, self._user_configuration, work_tree):
                real, extent = target.resolved.real, min(unchanged, self._unchanged_along(target.resolved))
                extents.update(
                    dict.fromkeys(git_directory_cleanup.hooks_in(real) if target.directory else [real], extent)
                )
        except PolicyError as error:
            self._failed = error
        found = {path: signature_of(path) for path in extents}
        for path, signature in found.items():
            certain = self._failed is None and self._memory.busy.runs_alone(path, self._territory)
            if signature and (certain or not self._is_planted(path, extents[path])):
                self._memory.admit(path, signature)
        common = git_directory_cleanup.common_of(git_dir)
        if not self._changes and common and common != git_dir:
            self._judge(common, work_tree)

    def _unchanged_at(self, directory: str) -> _Unchanged:
        """Return how much at and above a directory is older than all running commands."""
        index = self._index
        if index is None or not index.keeps_times or not self._is_settled(directory):
            return _Unchanged.NOTHING
        lowest = directory
        while directory not in ("/", *self._territory.places):
            record = index.get(directory)
            seen_before = record is not None and record.first < index.number
            if not seen_before and not self._is_settled(directory):
                return _Unchanged.ENTRY if self._was_made_quietly(lowest, _Unchanged.ENTRY) else _Unchanged.NOTHING
            directory = os.path.dirname(directory)
        return _Unchanged.PATH

    def _other_sources(self, unchanged: _Unchanged) -> frozenset[str]:
        """Return the other places from which a command may have moved what is at a path."""
        if unchanged is _Unchanged.PATH:
            return frozenset()
        if self._moved_from is None:
            self._moved_from = self._memory.busy.connected(self._territory.places)
        return self._moved_from

    def _is_settled(self, directory: str) -> bool:
        return self._index is not None and self._index.is_on_device(directory) and self._was_made_quietly(directory)

    # after an incomplete walk

    def _follow(self) -> None:
        """Follow submodules, alternates and worktrees of the repositories that were seen."""
        todo = [*self._territory.known, *(path for path, _ in self._done)]
        followed: set[str] = set()
        for git_dir in todo:
            if git_dir in followed or self._until.is_over():
                continue
            followed.add(git_dir)
            for target in self._leads_from(git_dir):
                if self._until.is_over():
                    break
                self._judge_pointer(target)
                if os.path.lexists(os.path.join(target, "HEAD")):
                    self._judge(target, fresh=True)
                    todo.append(target)
                todo += pointers_of(target)

    def _leads_from(self, git_dir: str) -> Iterator[str]:
        for name in ("modules", "worktrees"):
            for directory, below, _ in os.walk(os.path.join(git_dir, name), followlinks=False):
                if self._until.is_over():
                    return
                yield directory
                below[:] = [one for one in below if one not in ("objects", "refs", "logs")]
        objects = os.path.join(git_directory_cleanup.common_of(git_dir) or git_dir, "objects")
        for line in bytes_of(os.path.join(objects, "info", "alternates"), git_directory_cleanup.LARGEST_ITEM).split(
            b"\n"
        ):
            yield os.path.dirname(physical(os.path.join(objects, os.fsdecode(line).partition("\0")[0])))
        indexes = ["index", *glob("sharedindex.*", root_dir=git_dir)]
        for name in indexes:
            for path in gitlinks(bytes_of(os.path.join(git_dir, name), LARGEST_INDEX), self._until.is_over):
                for work_tree in configured_worktrees(git_dir):
                    yield physical(os.path.join(work_tree, path))
