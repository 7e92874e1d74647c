"""Where the paths of programs lead, for commands that may run outside the sandbox."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable, Sequence
from typing import TypeVar

MOST_ROUNDS = 16
MOST_STEPS = 256
_Answer = TypeVar("_Answer")


class ProgramPaths:
    """Paths as seen from `cwd`. One that leads through a place of `writable`, which a command could change, or through
    /proc or /dev, leads nowhere."""

    def __init__(self, cwd: str | None, home: str, writable: Sequence[str]) -> None:
        self._cwd = cwd
        self._home = home
        self._writable = writable

    async def decide(self, decision: Callable[[Callable[[str], str | None]], _Answer]) -> _Answer:
        """Decide again until each path that the decision asks for is known, at most `MOST_ROUNDS` times."""
        known: dict[str, str | None] = {}
        for _ in range(MOST_ROUNDS):
            asked: list[str] = []

            def resolve(path: str, asked: list[str] = asked) -> str | None:
                if path not in known:
                    asked.append(path)
                return known.get(path)

            answer = decision(resolve)
            if not asked:
                return answer
            known.update(await asyncio.to_thread(self._resolve_all, asked))
        return decision(lambda path: None)

    def _resolve_all(self, paths: Sequence[str]) -> dict[str, str | None]:
        closed = {"/proc", "/dev", *self._writable, *map(os.path.realpath, self._writable)}
        return {path: self._resolve(path, closed) for path in paths}

    def _resolve(self, path: str, closed: set[str]) -> str | None:
        if path == "~" or path.startswith("~/"):
            path = self._home + path[1:]
        elif not path.startswith("/"):
            if self._cwd is None:
                return None
            path = posixpath.join(self._cwd, path)
        real, rest = "/", path.split("/")[::-1]
        for _ in range(MOST_STEPS):
            if not rest:
                return real
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                real = posixpath.dirname(real)
                continue
            real = posixpath.join(real, name)
            if real in closed:
                return None
            try:
                target = os.readlink(real)
            except OSError:
                continue
            rest += target.split("/")[::-1]
            real = "/" if target.startswith("/") else posixpath.dirname(real)
        return None
