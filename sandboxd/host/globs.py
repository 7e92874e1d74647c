"""Path patterns, expanded to what exists. The cost follows what can match: a literal part is looked up, never listed,
and only `**` looks at whole trees.

`*` and `?` do not match a slash, and do match a leading dot: a rule that denies `*.pem` means hidden ones too. Symlinks
are matched as names and not walked through; what a matched link leads to is reported as its `real`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import translate

from sandboxd.errors import PolicyError
from sandboxd.host.changes import Changes, Interest
from sandboxd.host.resolve import Names, resolve
from sandboxd.host.scan import found_at
from sandboxd.plan.facts import Found, Link

MAX_MATCHES = 50_000
MAX_DIRECTORIES = 200_000
MAX_OF_ALL = 4
"""How often the patterns of one command may take these limits together: a project may have sent thousands of them, and
each directory is remembered for each pattern."""
_MAGIC = re.compile(r"[*?\[]")
_QUOTED = re.compile(r"\[([*?\[])\]")


@dataclass(slots=True)
class Effort:
    """What all patterns of one command have taken so far."""

    directories: int = 0
    matches: int = 0


class GlobScan:
    """The matches of one absolute pattern, with everything that could change them registered. `all_together` is shared
    by the patterns that are enforced together."""

    def __init__(
        self,
        pattern: str,
        apart: frozenset[str],
        changes: Changes,
        on_change: Callable[[], None],
        all_together: Effort | None = None,
    ) -> None:
        self._pattern = pattern
        self._apart = apart
        self._changes = changes
        self._on_change = on_change
        self._interests: list[Interest] = []
        self._directories = 0
        self._all = all_together if all_together is not None else Effort()
        self._found: dict[str, Found] = {}
        self._way: tuple[Link, ...] = ()
        """The symlinks in the literal beginning."""

    def expand(self, seen: Names) -> tuple[Found, ...]:
        """Raises `PolicyError` when there is more than can be enforced or looked at."""
        parts = [part for part in self._pattern.split("/") if part]
        literal: list[str] = []
        while parts and _literal(parts[0]) is not None:
            literal.append(_literal(parts.pop(0)) or "")
        top = resolve("/" + "/".join(literal), seen)
        if top.kind is None:
            return ()
        self._way = top.links
        self._walk(top.real, tuple(parts), seen)
        return tuple(self._found[path] for path in sorted(self._found))

    def close(self) -> None:
        for interest in self._interests:
            self._changes.cancel(interest)

    def _walk(self, top: str, parts: tuple[str, ...], seen: Names) -> None:
        todo = [(top, parts)]
        done: set[tuple[str, tuple[str, ...]]] = set()
        while todo:
            here = todo.pop()
            if here in done:
                continue
            done.add(here)
            path, rest = here
            if not rest:
                self._match(path, seen)
                continue
            todo += self._step(path, rest, seen)

    def _step(self, path: str, rest: tuple[str, ...], seen: Names) -> Iterator[tuple[str, tuple[str, ...]]]:
        if path in self._apart:
            return
        part, after = rest[0], rest[1:]
        name = _literal(part)
        if name is not None:
            seen.visit(path, name)
            below = _join(path, name)
            if (os.path.isdir(below) and not os.path.islink(below)) or (not after and os.path.lexists(below)):
                yield below, after
            return
        deep = part == "**"
        pattern = None if deep else re.compile(translate(part))
        if deep:
            yield path, after
        for entry in self._entries(path, pattern):
            is_directory = entry.is_dir(follow_symlinks=False)
            if deep:
                if is_directory:
                    yield entry.path, rest
            elif is_directory or not after:
                yield entry.path, after

    def _entries(self, path: str, pattern: re.Pattern[str] | None) -> list[os.DirEntry[str]]:
        """The entries that match, all directories for None. Registered before they are listed."""
        self._directories += 1
        self._all.directories += 1
        alone = self._directories > MAX_DIRECTORIES
        if alone or self._all.directories > MAX_OF_ALL * MAX_DIRECTORIES:
            raise PolicyError(
                "glob_too_large",
                f"{self._pattern} would search more than {MAX_DIRECTORIES:,} directories"
                if alone
                else f"the patterns up to {self._pattern} together would search more than "
                f"{MAX_OF_ALL * MAX_DIRECTORIES:,} directories",
                hint="start the pattern in a smaller directory" if alone else "start them in smaller directories",
                data={"pattern": self._pattern},
            )
        try:
            self._interests.append(self._changes.register(path, _matters(pattern), lambda _: self._on_change()))
            with os.scandir(path) as entries:
                if pattern is None:
                    return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
                return [entry for entry in entries if pattern.match(entry.name)]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return []
            if error.errno in (errno.EACCES, errno.EPERM) and not _is_ours(path):
                return []
            raise PolicyError(
                "glob_unreadable",
                f"{self._pattern} cannot be enforced: {path}: {error.strerror}",
                hint="make the directory readable, or name it in the rule without a pattern",
                data={"pattern": self._pattern, "path": path},
            ) from error

    def _match(self, path: str, seen: Names) -> None:
        with contextlib.suppress(FileNotFoundError):
            found = found_at(path, seen)
            self._found[path] = replace(found, links=(*self._way, *found.links)) if self._way else found
            self._all.matches += 1
        alone = len(self._found) > MAX_MATCHES
        if alone or self._all.matches > MAX_OF_ALL * MAX_MATCHES:
            raise PolicyError(
                "glob_too_many",
                f"{self._pattern} matches more than {MAX_MATCHES:,} paths"
                if alone
                else f"the patterns up to {self._pattern} together match more than {MAX_OF_ALL * MAX_MATCHES:,} paths",
                hint="name a directory above them instead",
                data={"pattern": self._pattern},
            )


def _matters(pattern: re.Pattern[str] | None) -> Callable[[str, bool], bool]:
    if pattern is None:
        return lambda _, is_directory: is_directory
    matches = pattern.match
    return lambda name, _: matches(name) is not None


def _literal(part: str) -> str | None:
    """A component that only stands for itself: without magic, or with quoted magic (`[*]`)."""
    unquoted = _QUOTED.sub(lambda match: "\0" + match[1], part)
    if _MAGIC.search(re.sub("\0.", "", unquoted)):
        return None
    return unquoted.replace("\0", "")


def _is_ours(path: str) -> bool:
    """Whether the user could open the directory up: then what it holds must not be missed."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_uid == os.geteuid()
    return True


def _join(directory: str, name: str) -> str:
    return directory + name if directory == "/" else f"{directory}/{name}"
