"""What a process that asks may take: a client that floods the daemon keeps no other waiting. Counted in turns."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxd.rpc.call import MethodCall, Route
from sandboxd.rpc.peer import MethodAccess
from sandboxd.rpc.room import MOST_HELD
from sandboxd.rpc.shares import (
    BUDGET,
    CREDIT,
    LIVE_S,
    MOST_CREDIT,
    MOST_SAVED,
    PACE,
    TICK_S,
    ClientShare,
    ClientTurns,
    Workers,
    heavy,
)
from support.rpc import Door, RawClient, open_door
from support.waiting import wait_until_async


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


class Work:
    def __init__(self) -> None:
        self.done = 0

    async def work(self, call: MethodCall, params: Nothing) -> Nothing:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.001:
            pass
        self.done += 1
        return params

    async def ask(self, call: MethodCall, params: Nothing) -> Nothing:
        return params


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
async def door(tmp_path: Path, work: Work) -> AsyncIterator[Door]:
    methods = {"work": Route(Nothing, work.work, MethodAccess.ASK), "ask": Route(Nothing, work.ask, MethodAccess.ASK)}
    async with open_door(tmp_path / "socket", methods) as door:
        yield door


REQUEST = b'{"jsonrpc": "2.0", "id": 1, "method": "work"}'


@pytest.mark.parametrize(
    "flood", [REQUEST + b"\n", b"[" + b",".join([REQUEST] * 256) + b"]\n"], ids=["requests", "batches"]
)
async def test_a_client_that_floods_keeps_no_other_waiting(door: Door, work: Work, flood: bytes) -> None:
    async with AsyncExitStack() as stack:
        flooding = await stack.enter_async_context(RawClient.connected_from_a_child(door.path))
        other = await stack.enter_async_context(door.client())
        flooding.send_bytes(flood * (2000 * len(REQUEST) // len(flood)))
        await wait_until_async(lambda: work.done > 50, "the credit is used up")
        before = work.done
        for _ in range(10):
            await other.result("ask")
        assert work.done - before < 50, "some 64 would be done in one turn of the event loop otherwise"
        await wait_until_async(lambda: work.done > before, "it goes on all the same")


async def test_lines_that_are_none_cost_as_well(door: Door) -> None:
    async with AsyncExitStack() as stack:
        flooding = await stack.enter_async_context(RawClient.connected_from_a_child(door.path))
        other = await stack.enter_async_context(door.client())
        flooding.send_bytes(b"{\n" * 100_000)
        share = next(iter(door.connections._shares.values()))
        await wait_until_async(lambda: not share.has_some(), "it has used its share up")
        assert await other.result("ask") == {}


async def test_unfinished_lines_of_all_clients_have_a_bound(door: Door) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(door.client()) for _ in range(12)]
        for one in clients:
            one.send_bytes(b"x" * (3 << 20))
            await one.writer.drain()
        await wait_until_async(lambda: door.connections._room.held > MOST_HELD * 3 // 4, "lines are held")
        refused = 0
        for one in clients:
            one.send_bytes(b"\n")
            answer = await one.receive()
            refused += answer["error"]["data"]["slug"] == "too_many_requests"
            assert await one.result("ask") == {}
        assert refused >= 6
        await wait_until_async(lambda: door.connections._room.held == 0, "nothing is held any more")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_what_is_over_the_credit_is_owed_in_turns() -> None:
    turns = ClientTurns(Clock())
    share = ClientShare(turns)
    share.spend(CREDIT)
    assert share.has_some()
    share.spend(20 * BUDGET)
    await share.turn()
    assert turns.count >= 19


async def test_credit_comes_back() -> None:
    clock = Clock()
    share = ClientShare(ClientTurns(clock))
    share.spend(CREDIT)
    clock.now = 1.0
    share.spend(CREDIT)
    assert share.has_some()


async def test_credit_of_many_processes_has_a_bound() -> None:
    turns = ClientTurns(Clock())
    shares = [ClientShare(turns) for _ in range(100)]
    for share in shares:
        share.spend(CREDIT)
    assert sum(share.has_some() for share in shares) == MOST_CREDIT // CREDIT


@pytest.mark.parametrize("live", [False, True])
async def test_a_flood_has_a_part_of_the_time_while_a_command_starts(live: bool) -> None:
    clock = Clock()
    turns = ClientTurns(clock)
    share = ClientShare(turns)
    share.spend(CREDIT + MOST_SAVED)
    owed = 30 * PACE // 1000
    share.spend(owed)
    turns.hurry()
    if not live:
        clock.now += LIVE_S
        before = turns.count
        await share.turn()
        assert turns.count - before <= (owed + MOST_SAVED) // BUDGET + 2, "a turn of the event loop each, and no time"
        return
    began = clock.now
    turns.hurry()
    while not share.has_some():
        turns.hurry()
        clock.now += 0.001
        await asyncio.sleep(TICK_S)
    assert (clock.now - began) * 1000 >= 30


async def test_a_flood_has_a_part_of_the_time_while_others_ask() -> None:
    clock = Clock()
    turns = ClientTurns(clock)
    flooding, other = ClientShare(turns), ClientShare(turns)
    flooding.spend(CREDIT + MOST_SAVED + PACE // 10)
    began = clock.now
    while not flooding.has_some():
        other.spend(1)
        clock.now += 0.001
        await asyncio.sleep(TICK_S)
    assert clock.now - began >= 0.1


async def test_a_process_that_connects_again_owes_what_it_owed(door: Door, work: Work) -> None:
    async with door.client() as client:
        await client.result("ask")
        (share,) = map(weakref.ref, door.connections._shares.values())
    await wait_until_async(lambda: not len(door.connections), "it has gone")
    gc.collect()
    async with door.client() as again:
        await again.result("ask")
        assert list(door.connections._shares.values()) == [share()]


async def test_a_caller_has_one_thread_at_a_time() -> None:
    asyncio.get_running_loop().set_default_executor(Workers())
    turns = ClientTurns()
    flooding, other = ClientShare(turns), ClientShare(turns)
    go_on, at_work, most = threading.Event(), [0], [0]

    def held() -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.0001:
            pass
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        go_on.wait()
        at_work[0] -= 1

    floods = [asyncio.ensure_future(flooding.timed(asyncio.to_thread(held))) for _ in range(100)]
    await wait_until_async(lambda: at_work[0] == 1, "one is under way")
    assert await asyncio.ensure_future(other.timed(asyncio.to_thread(lambda: 7))) == 7
    go_on.set()
    await asyncio.gather(*floods)
    assert most[0] == 1
    assert flooding._credit.left + flooding._left < CREDIT - 5000, "what threads have cost is counted"


async def test_few_heavy_requests_of_a_caller_are_under_way() -> None:
    share, go_on, under_way = ClientShare(ClientTurns()), asyncio.Event(), []

    async def work() -> None:
        under_way.append(1)
        await go_on.wait()

    calls = [asyncio.ensure_future(share.timed(heavy(work()))) for _ in range(20)]
    await wait_until_async(lambda: len(under_way) == 4, "some are under way")
    for call in calls[10:]:
        call.cancel()
    await asyncio.gather(*calls[10:], return_exceptions=True)
    go_on.set()
    await asyncio.gather(*calls[:10])
    assert len(under_way) == 10
