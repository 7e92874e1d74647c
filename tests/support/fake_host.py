"""A host written down: a dict of paths, and the facts that follow from it. No file system is touched.

    host = FakeHost({"/home/u/work/": "", "/home/u/work/.git/config": "", "/lib": "-> usr/lib"})

A path with a trailing slash is a directory, a value that starts with `->` a symlink; directories on the way come by
themselves, `socket` is one. `changed()` makes all facts stale.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from sandboxd.plan.host_facts import Facts, Found, GitDir, PathKind, ResolvedPath, Scan, Symlink
from sandboxd.plan.host_queries import HostQueries, ScanQuery
from sandboxd.plan.request import Place
from support.pattern_walk import walk_pattern

BASICS = {
    "/usr/bin/bash": "", "/usr/bin/dash": "", "/usr/bin/sh": "-> dash", "/bin": "-> usr/bin", "/tmp/": "",
    "/dev/null": "", "/home/u/work/": "", "/run/user/1000/sandboxd/": "", "/var/tmp/sandboxd-1000/d-1/s/": "",
    "/var/tmp/sandboxd-1000/d-1/denied": "",
}  # fmt: skip


def place(**changes: object) -> Place:
    values: dict[str, object] = {
        "cwd": "/home/u/work", "project_root": "/home/u/work", "session_tmp": "/var/tmp/sandboxd-1000/d-1/s",
        "temporary_base": "/var/tmp/sandboxd-1000", "home": "/home/u", "uid": 1000,
        "runtime_dir": "/run/user/1000/sandboxd", "mask_file": "/var/tmp/sandboxd-1000/d-1/denied",
    }  # fmt: skip
    return Place(**{**values, **changes})  # type: ignore[arg-type]


class FakeHost:
    """A `FactSource`. `asked` counts how often it had to look."""

    def __init__(self, tree: Mapping[str, str], *, basics: bool = True) -> None:
        self.entries: dict[str, str] = {"/": "dir"}
        self.asked = 0
        self._generation = 0
        for path, value in {**(BASICS if basics else {}), **tree}.items():
            self.put(path, value)

    def put(self, path: str, value: str = "") -> None:
        clean = path.rstrip("/")
        above = posixpath.dirname(clean)
        while above not in self.entries:
            self.entries[above] = "dir"
            above = posixpath.dirname(above)
        self.entries[clean] = "dir" if path.endswith("/") else value or "file"

    def changed(self) -> None:
        self._generation += 1

    def facts(self, needs: HostQueries) -> Facts:
        self.asked += 1
        paths = {path: self.look(path) for path in needs.paths}
        return Facts(
            paths,
            {pattern: self._expand(pattern) for pattern in needs.globs},
            {
                need.root: self._scan(need, paths[need.root].real, needs)
                for need in needs.scans
                if paths[need.root].kind is PathKind.DIRECTORY
            },
            stamp=self._generation,
        )

    async def answer(self, needs: HostQueries) -> Facts:
        return self.facts(needs)

    async def resolve(self, path: str) -> ResolvedPath:
        return self.look(path)

    async def resolve_all(self, paths: Iterable[str]) -> list[ResolvedPath]:
        return list(map(self.look, paths))

    def remove_made(self, targets: Iterable[str], since: float) -> str:
        return ""

    def look_again(self, path: str) -> None:
        pass

    def unchanged(self, facts: Facts) -> bool:
        return facts.stamp == self._generation

    def forget(self, facts: Facts) -> None:
        return

    def look(self, path: str) -> ResolvedPath:
        at, links = "/", list[Symlink]()
        todo = [part for part in path.split("/") if part]
        while todo:
            here = posixpath.join(at, todo.pop(0))
            value = self.entries.get(here)
            if value is None:
                return ResolvedPath(posixpath.join(here, *todo), None, at, tuple(links))
            if value.startswith("->"):
                target = value.removeprefix("->").strip()
                links.append(Symlink(here, target))
                if len(links) > 40:
                    return ResolvedPath(here, None, at, tuple(links), "a loop of symlinks")
                todo = [part for part in posixpath.normpath(posixpath.join(at, target)).split("/") if part] + todo
                at = "/"
                continue
            at = here
        return ResolvedPath(at, self._kind(at), at, tuple(links))

    def _kind(self, path: str) -> PathKind:
        if self.entries[path] == "dir":
            return PathKind.DIRECTORY
        if self.entries[path] == "socket":
            return PathKind.OTHER
        return PathKind.DEVICE if path.startswith("/dev/") else PathKind.FILE

    def _found(self, path: str) -> Found:
        resolved = self.look(path)
        return Found(path, resolved.real, resolved.kind, links=resolved.links)

    def _expand(self, pattern: str) -> tuple[Found, ...]:
        return tuple(
            replace(found, links=(*links, *found.links))
            for path, links in walk_pattern(pattern, self.entries, self.look).items()
            for found in (self._found(path),)
        )

    def _scan(self, need: ScanQuery, root: str, needs: HostQueries) -> Scan:
        names, entries, git_dirs = [], [], []
        for path, value in sorted(self.entries.items()):
            below = path.removeprefix(root.rstrip("/") + "/")
            if below == path or needs.skipped & set(below.split("/")):
                continue
            if posixpath.basename(path) == ".git":
                if value != "dir":
                    entries.append(self._found(path))
                if self.look(path).kind is PathKind.DIRECTORY:
                    asked = tuple((name, self.look(posixpath.join(path, name))) for name in needs.git_names)
                    git_dirs.append(GitDir(self.look(path).real, asked))
            for name in needs.names:
                ends = posixpath.join(*path.split("/")[-1 - name.count("/") :])
                if fnmatchcase(ends, name) and below.count("/") - name.count("/") <= need.depth:
                    names.append(self._found(path))
        return Scan(root, tuple(names), tuple(entries), tuple(git_dirs))
