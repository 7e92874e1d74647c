"""Looks at the servers of a session's commands: paid for by the command that causes them, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from ipaddress import IPv4Address
from typing import Any

from sandboxd.backends.base import SessionServer
from sandboxd.proxy.fair_share import Share, Turns
from sandboxd.runtime.servers.session_loopback import SessionLoopback
from support.inside import FakeInside
from support.waiting import wait_until_async


class Inside(FakeInside):
    """Listens at another port at each look, and tells when it was led to others."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = self.led = 0
        self.look_again: Callable[[], None] = lambda: None

    async def servers(self) -> frozenset[SessionServer]:
        self.looks += 1
        self.look_again()
        return frozenset({SessionServer(IPv4Address("127.0.0.1"), 1000 + self.looks)})

    async def lead_out(self, servers: frozenset[SessionServer]) -> None:
        self.led += 1


def spawned(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def test_looks_and_leading_wait_for_turns_of_the_server() -> None:
    turns = Turns(budget=1)
    share = Share(turns)  # a step takes ten turns at least
    loopback, others = SessionLoopback(spawned), [Inside() for _ in range(20)]
    for number, one in enumerate(others):
        loopback.join(f"other-{number}", one, Share)
    loopback.join("server", Inside(), lambda: share)
    loopback.changed("server")
    await wait_until_async(lambda: all(one.led for one in others))
    assert turns.count > 100


async def test_a_server_that_changes_for_ever_holds_up_no_start() -> None:
    loopback, server, new = SessionLoopback(spawned), Inside(), Inside()
    loopback.join("server", server, Share)
    server.look_again = lambda: loopback.changed("server")
    loopback.changed("server")
    await wait_until_async(lambda: server.looks > 0)
    joining = loopback.join("new", new, Share)
    assert joining is not None
    await joining
    assert server.looks <= 4
    assert new.led
