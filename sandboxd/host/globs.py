"""The expansion of path patterns to existing paths.

The cost follows the possible matches: a literal part is looked up, never listed, and only `**` walks whole trees. `*`
and `?` do not match a slash, and do match a leading dot: a rule that denies `*.pem` means hidden files too.

Symlinks are as in a shell: a part that matches a link continues in its target, and `**` passes through none. The
targets of links are unbounded (a link to `/` is enough), and what lies in the tree itself is found without them. Links
that lead out of the tree are reported."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import re
import stat
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache
from itertools import count

from sandboxd.errors import PolicyError
from sandboxd.host.placeholders.placeholder import is_absent
from sandboxd.host.resolve import NameRecorder, reject_closed, resolve
from sandboxd.host.scan import found_at
from sandboxd.host.watch.directory_changes import Changes, Interest
from sandboxd.paths import is_below
from sandboxd.plan.host_facts import Found, PathKind, Symlink
from sandboxd.plan.host_queries import literal_name, split_pattern
from sandboxd_client.records import dataclass

MAX_MATCHES = 50_000
MAX_DIRECTORIES = 200_000
MAX_OF_ALL = 4
"""Factor of these limits for all patterns of a command, which may be thousands."""


@dataclass(frozen=True, slots=True)
class _PartialMatch:
    """A partial match: the canonical path so far, the parts to match, the links used."""

    path: str
    rest: tuple[str, ...]
    links: tuple[Symlink, ...]


@dataclass(slots=True)
class Effort:
    """The work that all patterns of one command have taken so far."""

    directories: int = 0
    matches: int = 0


class GlobScan:
    """The matches of one absolute pattern; `all_together` counts for all patterns."""

    def __init__(
        self,
        pattern: str,
        excluded: frozenset[str],
        changes: Changes,
        on_change: Callable[[], None],
        all_together: Effort | None = None,
    ) -> None:
        self.pattern = pattern
        self._excluded = excluded
        self._changes = changes
        self._on_change = on_change
        self._interests: list[Interest] = []
        self.slow: list[Interest] = []
        self._directories = 0
        self._all = all_together if all_together is not None else Effort()
        self._found: dict[str, Found] = {}
        self._unfollowed: list[_PartialMatch] = []
        """Links to directories that `**` has not passed through."""

    def expand(self, seen: NameRecorder) -> tuple[Found, ...]:
        """Return the matches. Raises `PolicyError` when they exceed a limit."""
        beginning, parts = split_pattern(self.pattern)
        top = resolve(beginning, seen)
        if top.kind is not None:
            self._walk(_PartialMatch(top.real, parts, top.links), seen)
        elif top.is_closed:
            self._report_closed(top.existing, top.links, seen)
        return tuple(self._found[path] for path in sorted(self._found))

    def unfollowed(self) -> tuple[Symlink, ...]:
        """Return the links out of the tree that `**` did not enter, after `expand`."""
        return tuple(Symlink(way.path, os.path.realpath(way.path)) for way in self._unfollowed)

    def close(self) -> None:
        for interest in (*self._interests, *self.slow):
            self._changes.cancel(interest)

    def _note_change(self, _: str) -> None:
        self._on_change()

    def _walk(self, start: _PartialMatch, seen: NameRecorder) -> None:
        """Find matches, those through fewer links first.

        A path that is reached without a link must not count as reached through one: a rule that opens does not follow
        every link."""
        done: set[tuple[str, tuple[str, ...]]] = set()
        later: list[tuple[int, list[str], int, _PartialMatch]] = []
        turns = count()
        todo = [start]
        while todo:
            way = todo.pop()
            if (way.path, way.rest) not in done:
                done.add((way.path, way.rest))
                if not way.rest:
                    self._match(way, seen)
                for step in self._step(way, seen):
                    if step.links == way.links:
                        todo.append(step)
                    else:
                        names = [link.path for link in step.links]
                        heapq.heappush(later, (len(names), names, next(turns), step))
            if not todo and later:
                todo.append(heapq.heappop(later)[-1])
        self._unfollowed = [way for way in self._unfollowed if self._leads_out(way, done)]

    def _step(self, way: _PartialMatch, seen: NameRecorder) -> Iterator[_PartialMatch]:
        if not way.rest or way.path in self._excluded:
            return
        part, after = way.rest[0], way.rest[1:]
        name = literal_name(part)
        if name is not None:
            seen.visit(way.path, name)
            below = _join(way.path, name)
            if is_absent(below):  # placeholders too: they end with their commands
                return
            with self._searching(way.path, way.links, seen):
                is_link = stat.S_ISLNK(os.lstat(below).st_mode)
                yield from self._enter(replace(way, path=below, rest=after), is_link, seen)
            return
        if part != "**":
            for entry in self._entries(way, re.compile(translate(part)), seen):
                yield from self._enter(replace(way, path=entry.path, rest=after), entry.is_symlink(), seen)
            return
        yield replace(way, rest=after)
        for entry in self._entries(way, None, seen):
            if not entry.is_symlink():
                yield replace(way, path=entry.path)
            else:
                self._unfollowed.append(replace(way, path=entry.path))

    def _enter(self, way: _PartialMatch, is_link: bool, seen: NameRecorder) -> Iterator[_PartialMatch]:
        """Report a match of the last part, or continue in a match of an earlier part."""
        if not is_link or not way.rest:
            yield way
            return
        led_to = resolve(way.path, seen)
        links = (*way.links, *led_to.links)
        if led_to.is_closed:
            self._report_closed(led_to.existing, links, seen)
        elif led_to.kind is PathKind.DIRECTORY and not self._is_excluded(led_to.real):
            yield replace(way, path=led_to.real, links=links)

    @contextlib.contextmanager
    def _searching(self, directory: str, links: tuple[Symlink, ...], seen: NameRecorder) -> Iterator[None]:
        """Look at a name in a directory that may be missing or closed at the moment."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError:
            if _is_ours(directory):
                self._report_closed(directory, links, seen)

    def _report_closed(self, directory: str, links: tuple[Symlink, ...], seen: NameRecorder) -> None:
        """Report an unsearchable directory: its owner, also as a command, can reopen it."""
        seen.access(directory)
        if os.access(directory, os.X_OK):  # before it was watched
            self._on_change()
        self._found.setdefault(directory, Found(directory, directory, None, links=links, closed=directory))

    def _leads_out(self, way: _PartialMatch, done: Container[tuple[str, tuple[str, ...]]]) -> bool:
        """Return whether a link leads to a directory that was not visited otherwise."""
        real = os.path.realpath(way.path)
        return (real, way.rest) not in done and not self._is_excluded(real)

    def _is_excluded(self, path: str) -> bool:
        return any(is_below(path, excluded) for excluded in self._excluded)

    def _entries(
        self, way: _PartialMatch, pattern: re.Pattern[str] | None, seen: NameRecorder
    ) -> list[os.DirEntry[str]]:
        """Register a directory, and return its matches; only directories if parts follow."""
        path = way.path
        self._directories += 1
        self._all.directories += 1
        alone = self._directories > MAX_DIRECTORIES
        if alone or self._all.directories > MAX_OF_ALL * MAX_DIRECTORIES:
            hint = "start the pattern in a smaller directory" if alone else "start them in smaller directories"
            if way.links:
                hint = f"{path} was reached through the symbolic link {way.links[-1].path}: remove that, or {hint}"
            raise PolicyError(
                "glob_too_large",
                f"{self.pattern} would search more than {MAX_DIRECTORIES:,} directories"
                if alone
                else f"the patterns up to {self.pattern} together would search more than "
                f"{MAX_OF_ALL * MAX_DIRECTORIES:,} directories",
                hint=hint,
                data={"pattern": self.pattern},
            )
        try:
            interest = self._changes.register(path, _matters(pattern), self._note_change)
            (self.slow if interest.slow else self._interests).append(interest)
            with os.scandir(path) as entries:
                if pattern is None:
                    return [entry for entry in entries if _leads_to_directory(entry)]
                fits = [entry for entry in entries if pattern.match(entry.name) and not is_absent(entry.path)]
                return fits if len(way.rest) == 1 else [entry for entry in fits if _leads_to_directory(entry)]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return []
            reject_closed(path, error)
            if error.errno in (errno.EACCES, errno.EPERM):
                if not _is_ours(path):
                    return []
                if not os.access(path, os.X_OK):
                    self._report_closed(path, way.links, seen)
                    return []
            raise PolicyError(
                "glob_unreadable",
                f"{self.pattern} cannot be enforced: {path}: {error.strerror}",
                hint="make the directory readable, or name it in the rule without a pattern",
                data={"pattern": self.pattern, "path": path},
            ) from error

    def _match(self, way: _PartialMatch, seen: NameRecorder) -> None:
        with self._searching(os.path.dirname(way.path), way.links, seen):
            found = found_at(way.path, seen)
            self._found[way.path] = replace(found, links=(*way.links, *found.links)) if way.links else found
            self._all.matches += 1
        alone = len(self._found) > MAX_MATCHES
        if alone or self._all.matches > MAX_OF_ALL * MAX_MATCHES:
            raise PolicyError(
                "glob_too_many",
                f"{self.pattern} matches more than {MAX_MATCHES:,} paths"
                if alone
                else f"the patterns up to {self.pattern} together match more than {MAX_OF_ALL * MAX_MATCHES:,} paths",
                hint="name a directory above them instead",
                data={"pattern": self.pattern},
            )


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except PermissionError:  # keep it: its use reports the error
        return True
    except OSError:  # a loop of links
        return False


@lru_cache(maxsize=256)
def _matters(pattern: re.Pattern[str] | None) -> Callable[[str, bool], bool]:
    if pattern is None:
        return lambda _, is_directory: is_directory
    matches = pattern.match
    return lambda name, _: matches(name) is not None


def _is_ours(path: str) -> bool:
    """Return whether the user could open the directory: then it must be read."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_uid == os.geteuid()
    return True


def _join(directory: str, name: str) -> str:
    return directory + name if directory == "/" else f"{directory}/{name}"
