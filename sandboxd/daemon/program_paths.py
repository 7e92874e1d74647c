"""Lookup of programs, for commands that may run outside the sandbox."""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from sandboxd.policy.commands.exclusion import Lead, Resolve

MOST_ROUNDS = 16
MOST_STEPS = 256
MOST_ENTRIES = 128
DEFAULT_SEARCH = "/usr/bin:/bin"
"""PATH without usable directories; an empty one means the working directory."""
_Answer = TypeVar("_Answer")


class ProgramPaths:
    """Programs as the shell finds them from `cwd` with `search`, the caller's PATH.

    Commands can write the directories `closed`, and any other path for which `is_writable` says so. They could write
    the real paths of `earlier` at some time. A path through one of these, or through /proc or /dev, may be changed by a
    command."""

    def __init__(
        self,
        cwd: str | None,
        home: str,
        closed: Sequence[str],
        *,
        search: str = DEFAULT_SEARCH,
        is_writable: Callable[[str], Awaitable[bool]] | None = None,
        earlier: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._cwd = cwd
        self._home = home
        self._closed = closed
        self._entries = [entry for entry in search.split(":")[:MOST_ENTRIES] if "\0" not in entry]
        self._is_writable = is_writable
        self._earlier = earlier
        self._earlier_places: Collection[str] = ()
        self._closed_places: frozenset[str] | None = None
        self._known: dict[str, bool] = {}

    async def decide(self, decision: Callable[[Resolve], _Answer]) -> _Answer:
        """Repeat a decision until all names are known, `MOST_ROUNDS` times at most."""
        known: dict[str, Lead] = {}
        for _ in range(MOST_ROUNDS):
            asked: list[str] = []

            def resolve(path: str, asked: list[str] = asked) -> Lead:
                if path not in known:
                    asked.append(path)
                return known.get(path, _UNKNOWN)

            answer = decision(resolve)
            if not asked:
                return answer
            for path in dict.fromkeys(asked):
                known[path] = await (self._lead(path) if "/" in path else self._find(path))
        return decision(lambda path: known.get(path, _UNKNOWN))

    async def search_path(self) -> str:
        """Return PATH without entries that commands can change or that depend on `cwd`."""
        kept = [entry for entry in self._entries if entry.startswith("/") and not (await self._lead(entry)).why]
        return ":".join(kept) or DEFAULT_SEARCH

    async def _find(self, name: str) -> Lead:
        """Return the program that the shell would run; the name when none is found."""
        for entry in self._entries:
            directory = entry if entry.startswith("/") else posixpath.join(self._cwd or "/", entry)
            path = posixpath.join(directory, name)
            if await asyncio.to_thread(_is_program, path):
                if not entry.startswith("/"):
                    return Lead(path, f"{name} is {path}, by an entry of PATH that depends on the working directory")
                lead = await self._lead(path)
                return Lead(lead.real, lead.why and f"{name} is {path}, and {lead.why}")
        return Lead(name)

    async def _lead(self, path: str) -> Lead:
        if path.startswith("~/"):
            path = self._home + path[1:]
        elif not path.startswith("/"):
            if self._cwd is None:
                return Lead(None, f"the directory of {path} is not known")
            path = posixpath.join(self._cwd, path)
        real, steps = await asyncio.to_thread(_follow, path)
        if real is None:
            return Lead(None, f"{path} leads nowhere")
        if self._closed_places is None:
            self._closed_places = await asyncio.to_thread(_real_and_named, self._closed)
            self._earlier_places = await asyncio.to_thread(self._earlier)
        for step in steps:
            if step in ("/proc", "/dev"):
                return Lead(None, f"it leads through {step}")
            if step in self._closed_places or await self._may_change(step):
                return Lead(real, f"commands can write {step}")
        before = next((step for step in steps if step in self._earlier_places), None)
        return Lead(real, "" if before is None else f"commands could write {before} before")

    async def _may_change(self, path: str) -> bool:
        if self._is_writable is None:
            return False
        if path not in self._known:
            self._known[path] = await self._is_writable(path)
        return self._known[path]


_UNKNOWN = Lead(None, "too many programs have to be looked up")


def _real_and_named(paths: Sequence[str]) -> frozenset[str]:
    return frozenset((*paths, *map(os.path.realpath, paths)))


def _is_program(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def _follow(path: str) -> tuple[str | None, list[str]]:
    """Return the real path and each name on the way, as in path_resolution(7)."""
    real, rest = "/", path.split("/")[::-1]
    steps: list[str] = ["/"]
    for _ in range(MOST_STEPS):
        if not rest:
            return real, list(dict.fromkeys(steps))
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            real = posixpath.dirname(real)
            continue
        real = posixpath.join(real, name)
        steps.append(real)
        try:
            target = os.readlink(real)
        except (OSError, ValueError):
            continue
        rest += target.split("/")[::-1]
        real = "/" if target.startswith("/") else posixpath.dirname(real)
    return None, steps
