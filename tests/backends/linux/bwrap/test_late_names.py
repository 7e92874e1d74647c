"""Mounts of names that a person makes meanwhile: one after the other, and no more than a pace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from sandboxd.backends.linux.bwrap import late_names
from sandboxd.backends.linux.bwrap.late_names import LateNames


class World:
    """The names that appear, and the programs of mounts that are asked for."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[list[Any]]] = []
        self.told = 0
        self.there: tuple[str, ...] = ()
        self.closed: tuple[str, ...] = ()
        self.appeared: Callable[[tuple[str, ...]], None] = lambda names: None

    def ready(self) -> None: ...

    def expect(
        self, names: tuple[str, ...], appeared: Callable[[tuple[str, ...]], None], closed: tuple[str, ...]
    ) -> Callable[[], None]:
        self.appeared, self.closed = appeared, closed
        if self.there:
            appeared(self.there)
        return lambda: None

    def start(self, *_: object) -> asyncio.Future[list[Any]]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    def tell(self) -> None:
        self.told += 1

    async def make(self, name: str = "/w/.vscode") -> None:
        """Let a name appear, and its mount be made at once."""
        before = len(self.asked)
        self.appeared((name,))
        for one in self.asked[before:]:
            one.set_result([])
        await asyncio.sleep(0)

    def names(self) -> LateNames:
        return LateNames(("/w/.vscode", "/w/.idea"), self, self, self.tell, ("/w/.idea",))  # type: ignore[arg-type]


async def test_the_first_ones_are_awaited_one_by_one() -> None:
    world = World()
    world.there = ("/w/.vscode", "/w/.idea")
    first = world.names().begin(os.getpid())
    assert isinstance(first, asyncio.Future) and world.closed == ("/w/.idea",)
    for done in range(2):
        assert len(world.asked) == done + 1 and not first.done()
        world.asked[done].set_exception(OSError("it is gone"))
        await asyncio.sleep(0)
    assert first.done() and len(world.asked) == 2


async def test_a_flood_of_names_is_paced_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_names, "BURST", 5)
    monkeypatch.setattr(late_names, "PER_SECOND", 0.001)
    world = World()
    names = world.names()
    assert names.begin(os.getpid()) is None
    for _ in range(20):
        await world.make()
    assert len(world.asked) == 5 + 2 and world.told == 1
    monkeypatch.setattr(late_names, "PER_SECOND", 1e9)
    names._next()
    assert len(world.asked) == 8, "what waited is made when it may be"
    names.close()
