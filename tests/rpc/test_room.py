"""What all connections of clients have together: calls, large requests, unread answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sandboxd.rpc.call import MethodCall, Route
from sandboxd.rpc.jsonrpc import MOST_VALUES, has_too_many_values
from sandboxd.rpc.peer import MethodAccess
from sandboxd.rpc.room import LARGE, MOST_CALLS_OF_ONE, MOST_LARGE, MOST_LARGE_OF_ONE, MOST_UNREAD
from support.rpc import Door, RawClient, open_door
from support.waiting import wait_until_async


@dataclass(frozen=True, slots=True)
class Word:
    word: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    size: int


class Work:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[str] = []

    async def wait(self, call: MethodCall, params: Word) -> Word:
        self.begun.append(params.word)
        await self.gate.wait()
        return Word()

    async def echo(self, call: MethodCall, params: Word) -> Word:
        return params

    async def grow(self, call: MethodCall, params: Size) -> Word:
        return Word("x" * params.size)

    def have_begun(self, number: int) -> bool:
        return len(self.begun) >= number


@pytest.fixture
async def work() -> Work:
    return Work()


@pytest.fixture
async def door(tmp_path: Path, work: Work) -> AsyncIterator[Door]:
    methods = {
        "wait": Route(Word, work.wait, MethodAccess.ASK),
        "echo": Route(Word, work.echo, MethodAccess.ASK),
        "grow": Route(Size, work.grow, MethodAccess.ASK),
    }
    async with open_door(tmp_path / "socket", methods) as door:
        yield door


async def test_calls_of_a_process_have_a_bound(door: Door, work: Work) -> None:
    count, each = 10, 60
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(RawClient.connected_from_a_child(door.path))
        clients = [await stack.enter_async_context(door.client()) for _ in range(count)]
        for client in clients:
            for _ in range(each):
                client.request("wait")
        await wait_until_async(partial(work.have_begun, MOST_CALLS_OF_ONE), "the bound is reached")
        assert await other.result("echo", {"word": "x"}), "other processes are not concerned"
        assert len(work.begun) == MOST_CALLS_OF_ONE
        work.gate.set()
        for client in clients:
            for _ in range(each):
                assert "result" in await client.receive()
        assert len(work.begun) == count * each


async def test_large_requests_of_a_process_wait_for_each_other(door: Door, work: Work) -> None:
    word = "x" * MOST_LARGE_OF_ONE
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(door.client()) for _ in range(8)]
        for client in clients:
            assert await client.result("echo")
            client.request("wait", {"word": word})
        (share,) = {one._share for one in door.connections.open}
        await wait_until_async(lambda: len(share.in_flight._waiting_large) == 7, "the others wait")
        async with door.client() as another:
            assert await another.result("echo", {"word": "x"}), "small ones pass"
        assert len(work.begun) == 1
        work.gate.set()
        for client in clients:
            assert "result" in await client.receive()


async def test_large_requests_of_all_processes_have_a_bound(door: Door, work: Work) -> None:
    word = "x" * (MOST_LARGE // 4)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(RawClient.connected_from_a_child(door.path)) for _ in range(5)]
        for number, client in enumerate(clients[:4], 1):
            client.request("wait", {"word": word[LARGE:]})
            await wait_until_async(partial(work.have_begun, number), "it is worked on")
        clients[4].request("echo", {"word": word[LARGE:]})
        assert (await clients[4].receive())["error"]["data"]["slug"] == "too_many_requests"
        assert await clients[4].result("echo", {"word": "x" * (LARGE // 2)}), "small ones pass"
        work.gate.set()
        for client in clients[:4]:
            assert "result" in await client.receive()
        assert await clients[4].result("echo", {"word": word[LARGE:]}), "and so does this one afterwards"


async def test_unread_answers_of_all_clients_have_a_bound(door: Door) -> None:
    size, count = 3 << 20, 2 * MOST_UNREAD // (3 << 20)
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(RawClient.connected_from_a_child(door.path))
        transport = cast(asyncio.Transport, good.writer.transport)
        transport.pause_reading()  # late by one answer, which is not the most
        good.request("grow", {"size": size})
        lazy = [await stack.enter_async_context(door.client()) for _ in range(count)]
        for client in lazy:
            client.reader._transport.pause_reading()
            client.request("grow", {"size": size})
        await wait_until_async(lambda: len(door.lost) >= count - MOST_UNREAD // size, "some are cut off")
        room = door.connections._room
        assert sum(one.unread for one in door.connections.open) <= MOST_UNREAD
        transport.resume_reading()
        assert len((await good.receive())["result"]["word"]) == size
        assert await good.result("echo", {"word": "x"})
    await wait_until_async(lambda: not room._readers and not room._unread, "nothing is unread any more")


async def test_connections_of_a_process_have_a_bound(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.rpc.shares.MOST_CONNECTIONS_OF_ONE", 10)
    async with AsyncExitStack() as stack:
        for _ in range(10):
            client = await stack.enter_async_context(door.client())
            assert await client.result("echo", {"word": "x"})
        async with door.client() as refused:
            assert (await refused.receive())["error"]["data"]["slug"] == "connections_too_many"
            assert await refused.receive() is None
        async with RawClient.connected_from_a_child(door.path) as other:
            assert await other.result("echo", {"word": "x"})
    await wait_until_async(lambda: not len(door.connections), "they have gone")
    async with door.client() as again:
        assert await again.result("echo", {"word": "x"})


@pytest.mark.parametrize(
    ("text", "too_many"),
    [
        ("[" + "{}," * MOST_VALUES + "1]", True),
        ('["' + "{," * MOST_VALUES + '"]', False),
        ('["' + '\\",{' * MOST_VALUES + '"]', False),
        ('"' + '\\"' * MOST_VALUES, False),
        ("[" + "1," * (MOST_VALUES - 1) + "1]", False),
        ('["a",' + "[]," * MOST_VALUES + '"b"]', True),
    ],
    ids=["objects", "in a text", "quoted in a text", "a text without end", "as many as there may be", "between texts"],
)
def test_values_of_a_message_have_a_bound(text: str, too_many: bool) -> None:
    assert has_too_many_values(text) is too_many


async def test_a_message_of_too_many_values_is_refused(door: Door) -> None:
    async with door.client() as client:
        client.send_bytes(b"[" + b"{}," * MOST_VALUES + b"{}]\n")
        assert (await client.receive())["error"]["data"]["slug"] == "parse_error"
        text = "{}," * (MOST_VALUES + 1)
        assert (await client.result("echo", {"word": text}))["word"] == text
