"""A host that is a dictionary: answers the questions of a plan without a disk, for any system's paths."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from sandboxd.plan.host_facts import Facts, Found, GitDir, PathKind, ResolvedPath, Scan, Symlink, Worktree
from sandboxd.plan.host_queries import BARE_NAMES, HostQueries, ScanQuery
from support.pattern_walk import walk_pattern

DIRECTORY, FILE = "/", ""
"""What stands at a path: a directory, a file with this content, or a symlink (`-> target`)."""


class DictionaryHost:
    """`entries` maps absolute paths to what is there: DIRECTORY, a file's content, or `-> target`. Directories above an
    entry exist. A `FactSource`."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries: dict[str, str] = {"/": DIRECTORY}
        for path, content in entries.items():
            self.add(path, content)

    def add(self, path: str, content: str = DIRECTORY) -> None:
        above = posixpath.dirname(path)
        while above != "/":
            self._entries.setdefault(above, DIRECTORY)
            above = posixpath.dirname(above)
        self._entries[path] = content

    # FactSource

    async def answer(self, needs: HostQueries) -> Facts:
        return self.facts(needs)

    def remove_made(self, targets: Iterable[str], since: float) -> str:
        return ""

    def look_again(self, path: str) -> None:
        pass

    def unchanged(self, facts: Facts) -> bool:
        return False

    async def resolve(self, path: str) -> ResolvedPath:
        return self.where(path)

    async def resolve_all(self, paths: Iterable[str]) -> list[ResolvedPath]:
        return list(map(self.where, paths))

    def forget(self, facts: Facts) -> None:
        pass

    def facts(self, needs: HostQueries) -> Facts:
        return Facts(
            paths={path: self.where(path) for path in needs.paths},
            globs={pattern: tuple(self._matches(pattern)) for pattern in needs.globs},
            scans={need.root: self._scan(need, needs) for need in needs.scans},
        )

    def where(self, path: str) -> ResolvedPath:
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        at = "/"
        links: list[Symlink] = []
        while todo:
            name = todo.pop()
            if name == "..":
                at = posixpath.dirname(at)
                continue
            here = self._spelled(posixpath.join(at, name))
            content = self._entries.get(here)
            if content is None:
                return ResolvedPath(posixpath.normpath("/".join([here, *reversed(todo)])), None, at, tuple(links))
            if content.startswith("-> "):
                target = content[3:]
                links.append(Symlink(here, target))
                if len(links) > 40:
                    return ResolvedPath(here, None, at, tuple(links), "a loop of symlinks")
                todo += [part for part in reversed(target.split("/")) if part not in ("", ".")]
                at = "/" if target.startswith("/") else at
                continue
            if todo and content != DIRECTORY:
                return ResolvedPath(here, None, at, tuple(links), f"{here} is not a directory")
            at = here
        kind = PathKind.DIRECTORY if self._entries[at] == DIRECTORY else PathKind.FILE
        return ResolvedPath(at, kind, at, tuple(links))

    def _spelled(self, path: str) -> str:
        """An existing path as the disk spells it."""
        return path

    def _found(self, path: str) -> Found:
        resolved = self.where(path)
        is_link = self._entries[path].startswith("-> ")
        return Found(path, resolved.real if is_link else path, resolved.kind, links=resolved.links)

    def _matches(self, pattern: str) -> Iterator[Found]:
        for path, links in walk_pattern(pattern, self._entries, self.where).items():
            found = self._found(path)
            yield replace(found, links=(*links, *found.links))

    def _scan(self, need: ScanQuery, needs: HostQueries) -> Scan:
        root = self.where(need.root).real
        names: list[Found] = []
        entries: list[Found] = []
        git_dirs: list[GitDir] = []
        for directory, depth in self._directories(root, needs.skipped):
            if depth > need.depth:
                continue
            names += (self._found(path) for path in self._named(directory, needs.names))
            git = posixpath.join(directory, ".git")
            if git in self._entries:
                if self._entries[git] != DIRECTORY:
                    entries.append(self._found(git))
                if self.where(git).kind is PathKind.DIRECTORY:
                    git_dirs += self._git_dirs(self.where(git).real, needs.git_names)
            elif all(posixpath.join(directory, name) in self._entries for name in BARE_NAMES):
                git_dirs += self._git_dirs(directory, needs.git_names)
        worktree = self._worktree(root) if need.follow_worktree else None
        if worktree is not None:
            git_dirs += self._git_dirs(worktree.common, needs.git_names)
        return Scan(root, tuple(names), tuple(entries), tuple(git_dirs), worktree)

    def _directories(self, root: str, skipped: frozenset[str]) -> Iterator[tuple[str, int]]:
        prefix = root.rstrip("/") + "/"
        yield root, 0
        for path, content in sorted(self._entries.items()):
            below = path.removeprefix(prefix).split("/")
            inside = path.startswith(prefix) and content == DIRECTORY and path != root
            if inside and ".git" not in below and not skipped.intersection(below):
                yield path, len(below)

    def _named(self, directory: str, names: tuple[str, ...]) -> Iterator[str]:
        for path in sorted(self._entries):
            if any(
                glob_matches(tuple(name.split("/")), tuple(path.removeprefix(directory).strip("/").split("/")))
                for name in names
            ) and path.startswith(directory.rstrip("/") + "/"):
                yield path

    def _git_dirs(self, top: str, names: tuple[str, ...]) -> Iterator[GitDir]:
        yield GitDir(top, tuple((name, self.where(posixpath.join(top, name))) for name in names))
        for path in sorted(self._entries):
            if path.startswith(f"{top}/modules/") and posixpath.basename(path) == "HEAD":
                module = posixpath.dirname(path)
                yield GitDir(module, tuple((name, self.where(posixpath.join(module, name))) for name in names))

    def _worktree(self, root: str) -> Worktree | None:
        content = self._entries.get(posixpath.join(root, ".git"), "")
        if not content.startswith("gitdir: "):
            return None
        git_dir = self.where(posixpath.join(root, content.removeprefix("gitdir: "))).real
        return Worktree(root, git_dir, posixpath.dirname(posixpath.dirname(git_dir)))


def glob_matches(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Whether a pattern matches a path, both cut into components. `**` matches any number of them."""
    if not parts:
        return not names
    if parts[0] == "**":
        return glob_matches(parts[1:], names) or (bool(names) and glob_matches(parts, names[1:]))
    return bool(names) and fnmatchcase(names[0], parts[0]) and glob_matches(parts[1:], names[1:])
