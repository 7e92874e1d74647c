"""One command's connections give way to everything else, whatever is sent over them. Turns of the loop are counted, no
clock is read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from sandboxd.app.commands import put_commands_first
from sandboxd.proxy.acceptor import Acceptor
from sandboxd.proxy.dns.dns_server import DatagramServer
from sandboxd.proxy.fair_share import BUDGET, CONNECTION, CREDIT, LEAST, LESS, LONGEST_PAUSE_S, STEP, Share, Turns
from sandboxd.proxy.limits import ProxyLimits, Room, SessionRoom
from sandboxd.runtime.events import Disconnected, Events, RunStarted
from support.proxies import Proxies, Wire, finish, running_proxies, scripted_origin
from support.waiting import wait_until_async


@dataclass(slots=True)
class Observed:
    """`turns` of the loop so far, and the most that a share has spent from one to the next."""

    turns: int = 0
    spent: int = 0
    most: int = 0


@contextlib.asynccontextmanager
async def observed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Observed]:
    """Something else that has a turn in every turn of the loop, and sees what was done since the one before."""
    seen = Observed()
    loop = asyncio.get_running_loop()
    spend = Share.spend

    def counted(self: Share, cost: int = STEP, size: int = 0) -> None:
        seen.spent += cost
        spend(self, cost, size)

    def tick() -> None:
        seen.turns += 1
        seen.most = max(seen.most, seen.spent)
        seen.spent = 0
        if watching:
            loop.call_soon(tick)

    watching = [True]
    monkeypatch.setattr(Share, "spend", counted)
    loop.call_soon(tick)
    try:
        yield seen
    finally:
        watching.clear()


async def test_connections_do_less_while_a_command_is_launched() -> None:
    now = [0.0]
    turns = Turns(100, clock=lambda: now[0])
    share = Share(turns)
    had: list[int] = []
    turns.hurry(0.02)
    for time in (0.001, 0.019, 0.02, 0.021):
        now[0] = time
        share.spend(turns.share)  # all of it, so that the next turn is waited for
        await share.turn()
        had.append(turns.share)
    assert had == [100 // LESS] * 2 + [100, 100]


async def _wait_a_turn(share: Share, went_on: list[Share]) -> None:
    await share.turn()
    went_on.append(share)


@pytest.mark.parametrize("spent", [CREDIT // 2, CREDIT + BUDGET])
async def test_a_command_that_did_much_waits_while_another_starts(spent: int) -> None:
    now = [0.0]
    turns = Turns(clock=lambda: now[0])
    share, other = Share(turns, most_owed=0), Share(turns)
    share.spend(spent)
    went_on: list[Share] = []
    turns.hurry(0.02)
    waiting = asyncio.ensure_future(_wait_a_turn(share, went_on))
    for _ in range(100):
        other.spend(CREDIT // 200)
        await other.turn()
    assert went_on == [share] * (spent < CREDIT)
    now[0] = 0.03
    await waiting


async def test_a_waiting_command_takes_no_turns() -> None:
    now = [0.0]
    turns = Turns(clock=lambda: now[0])
    share = Share(turns, most_owed=0)
    share.spend(2 * CREDIT)
    turns.hurry(0.02)
    waiting = asyncio.ensure_future(share.turn())
    for _ in range(100):
        await asyncio.sleep(0)
    assert turns.count <= 2
    now[0] = 0.03
    await waiting


async def test_a_command_that_did_much_is_light_again_later() -> None:
    now = [0.0]
    turns = Turns(clock=lambda: now[0])
    share = Share(turns)
    for _ in range(100):
        share.spend(CREDIT)
    assert share.is_heavy(now[0])
    now[0] = 1.1
    assert not share.is_heavy(now[0])


def test_launches_one_after_the_other_leave_time_for_connections() -> None:
    now = [1.0]
    turns = Turns(clock=lambda: now[0])
    pausing = []
    for _ in range(10_000):
        turns.hurry(0.02)
        pausing.append(turns.is_pausing)
        now[0] += 0.0005
    assert 0.7 < sum(pausing) / len(pausing) <= 0.82
    pauses = "".join("x" if one else " " for one in pausing).split()
    assert max(map(len, pauses)) <= LONGEST_PAUSE_S / 0.0005 + 1


def test_a_launch_and_an_end_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried: list[float] = []
    monkeypatch.setattr(Turns, "hurry", lambda turns, seconds: hurried.append(seconds))
    events = Events()
    put_commands_first(events, Turns())
    events.tell(Disconnected("session", "command", 1, 1))
    assert hurried == []
    events.tell(RunStarted("wrap", "command", "session", 1))
    assert len(hurried) == 1


async def test_a_share_is_used_up_and_there_again_in_the_next_turn() -> None:
    share = Share(Turns(100))
    share.spend(99)
    assert share.has_some()
    await share.turn()
    share.spend(1)
    assert not share.has_some()
    await share.turn()
    assert share.has_some()


async def test_2_5_megabytes_of_a_tunnel_use_up_a_turn() -> None:
    share = Share(Turns())
    share.spend(STEP, 2 << 20)
    assert share.has_some()
    share.spend(STEP, 512 << 10)
    assert not share.has_some()


async def test_waiting_connections_continue_in_order_within_the_share() -> None:
    turns = Turns(100)
    share = Share(turns)
    order: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        await share.turn()
        order.append((number, turns.count))
        share.spend(60)

    share.spend(100)
    await asyncio.gather(*(work(number) for number in range(6)))
    assert [number for number, _ in order] == list(range(6))
    used = [turn for _, turn in order]
    assert max(used.count(turn) for turn in used) <= 2


async def test_two_commands_share_a_turn_for_any_connection_count() -> None:
    turns = Turns(1000)
    greedy, modest = Share(turns), Share(turns)
    done = {greedy: 0, modest: 0}

    async def work(share: Share) -> None:
        while done[modest] < 50:
            await share.turn()
            share.spend(100)
            done[share] += 1

    await asyncio.gather(*(work(greedy) for _ in range(200)), work(modest))
    assert done[greedy] <= 10 * done[modest]


async def test_what_was_spent_beyond_the_share_is_owed() -> None:
    turns = Turns(100)
    share = Share(turns)
    share.spend(500)
    before = turns.count
    await share.turn()
    assert turns.count - before >= 4


async def test_a_share_is_never_less_than_a_step() -> None:
    turns = Turns(100)
    shares = [Share(turns) for _ in range(50)]
    for share in shares:
        share.spend(100)
    await asyncio.gather(*(share.turn() for share in shares))
    assert turns.share >= LEAST


async def test_a_wait_that_is_cancelled_keeps_nobody_from_going_on() -> None:
    share = Share(Turns(100))
    share.spend(1000)
    first, second = (asyncio.ensure_future(share.turn()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second


REQUEST = b"GET http://ok.test:%d/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"
CHUNK = b"1\r\nx\r\n"


async def test_interim_answers_have_an_end() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 2000)
            await writer.drain()

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(REQUEST % origin.port)
        assert answer.count(b"HTTP/1.1 100") == ProxyLimits().interim_answers == 32
        assert b"HTTP/1.1 502 " in answer
        assert b"interim answers" in answer


async def test_as_many_interim_answers_as_may_be() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 32)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi")
        await writer.drain()

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(REQUEST % origin.port)
        assert answer.count(b"HTTP/1.1 103") == 32
        assert answer.endswith(b"hi")


async def _download(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Endless chunks of one byte."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(CHUNK * 10000)
        await writer.drain()


@pytest.mark.parametrize("connections", [1, 20])
async def test_chunks_of_one_byte_from_an_origin(monkeypatch: pytest.MonkeyPatch, connections: int) -> None:
    async with (
        scripted_origin(_download) as origin,
        running_proxies("ok.test") as proxies,
        observed(monkeypatch) as seen,
    ):
        wires = [await proxies.http() for _ in range(connections)]
        for _, writer in wires:
            writer.write(REQUEST % origin.port)
        for reader, _ in wires:
            await reader.readexactly(20000)
        assert seen.most <= 3 * BUDGET + connections * STEP + CONNECTION
        assert seen.turns > 20 * connections
        for _, writer in wires:
            await finish(writer)


async def test_chunks_of_one_byte_to_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    got = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            got.extend(data)

    async with (
        scripted_origin(talk) as origin,
        running_proxies("ok.test") as proxies,
        observed(monkeypatch) as seen,
    ):
        _, writer = await proxies.http()
        writer.write(b"POST http://ok.test:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % origin.port)
        writer.write(CHUNK * 20000)
        await wait_until_async(lambda: got.count(b"x") >= 20000)
        assert seen.most <= 3 * BUDGET
        await finish(writer)


async def test_requests_that_are_refused_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_proxies("ok.test") as proxies, observed(monkeypatch) as seen:
        _, writer = await proxies.http()
        writer.write(b"GET http://no.test/ HTTP/1.1\r\nHost: no.test\r\n\r\n" * 500)
        await wait_until_async(lambda: len(proxies.blocked) == 500)
        assert seen.most <= 3 * BUDGET
        await finish(writer)


async def test_many_tunnels_with_bytes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async with (
        scripted_origin(talk) as origin,
        running_proxies("ok.test") as proxies,
    ):
        wires = [await proxies.tunnel(f"ok.test:{origin.port}") for _ in range(150)]
        async with observed(monkeypatch) as seen:
            for byte in b"abc":
                for _, writer in wires:
                    writer.write(bytes([byte]))
                for reader, _ in wires:
                    assert await reader.readexactly(1) == bytes([byte])
            assert seen.most <= 3 * BUDGET
        for _, writer in wires:
            await finish(writer)


async def test_connections_are_accepted_a_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_proxies("ok.test") as proxies, observed(monkeypatch) as seen:
        clients = [socket.create_connection(("127.0.0.1", proxies.http_port)) for _ in range(60)]
        await wait_until_async(lambda: proxies.server.connections == 60)
        assert seen.most <= BUDGET + CONNECTION + STEP
        for client in clients:
            client.close()


async def test_what_waits_to_be_accepted_does_not_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    turns = Turns(clock=lambda: now[0])
    woken: list[Acceptor] = []
    readable = Acceptor._readable

    def counted(acceptor: Acceptor) -> None:
        woken.append(acceptor)
        readable(acceptor)

    monkeypatch.setattr(Acceptor, "_readable", counted)
    async with running_proxies("ok.test", room=SessionRoom(Room(1024, turns))) as proxies:
        proxies.server.share.spend(2 * CREDIT)
        turns.hurry(LONGEST_PAUSE_S)
        with socket.create_connection(("127.0.0.1", proxies.http_port)):
            await wait_until_async(lambda: proxies.server.share.waiting == 1)
            before = turns.count
            for _ in range(100):
                await asyncio.sleep(0)
            assert (len(woken), turns.count - before) == (1, 0)
            assert proxies.server.connections == 0
            now[0] = 1.0
            await wait_until_async(lambda: proxies.server.connections == 1)


async def test_questions_wait_unread_while_another_command_starts() -> None:
    now = [0.0]
    turns = Turns(clock=lambda: now[0])
    share = Share(turns)
    asker, server = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    server.bind(("127.0.0.1", 0))
    asked: list[bytes] = []
    datagrams = DatagramServer(server, asked.append, share=share)
    share.spend(2 * CREDIT)
    turns.hurry(LONGEST_PAUSE_S)
    asker.sendto(b"question", server.getsockname())
    await wait_until_async(lambda: share.waiting == 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert asked == []
    assert turns.count <= 2
    now[0] = 1.0
    await wait_until_async(lambda: asked == [b"question"])
    datagrams.close()
    asker.close()


async def _with_heads(proxies: Proxies, count: int, size: int) -> list[Wire]:
    wires = []
    for _ in range(count):
        reader, writer = await proxies.http()
        writer.write(b"GET http://ok.test/ HTTP/1.1\r\nA: " + b"a" * size)
        wires.append((reader, writer))
    return wires


async def test_unfinished_heads_are_bounded_together() -> None:
    limits = ProxyLimits(linger_s=0.2, held_bytes=200_000)
    async with running_proxies("ok.test", limits=limits) as proxies:
        share = proxies.server.share
        wires = await _with_heads(proxies, 3, 50_000)
        await wait_until_async(lambda: share.held >= 150_000)
        more = await _with_heads(proxies, 6, 50_000)
        heads = [await reader.readline() for reader, _ in more[1:]]
        assert sum(head.startswith(b"HTTP/1.1 503 ") for head in heads) >= 4
        assert share.held <= 200_000 + 9 * 8192
        for _, writer in wires + more:
            await finish(writer)
        await wait_until_async(lambda: share.held == 0)
        assert (await proxies.ask_http(b"GET http://no.test/ HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 403 ")


async def test_unfinished_heads_of_answers_are_bounded_together() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nA: " + b"a" * 50_000)
        await writer.drain()
        await reader.read()

    limits = ProxyLimits(linger_s=0.2, half_closed_s=0.2, held_bytes=120_000)
    async with scripted_origin(talk) as origin, running_proxies("ok.test", limits=limits) as proxies:
        wires = [await proxies.http() for _ in range(3)]
        for _, writer in wires:
            writer.write(REQUEST % origin.port)
        done, waiting = await asyncio.wait(
            [asyncio.ensure_future(reader.readline()) for reader, _ in wires], return_when=asyncio.FIRST_COMPLETED
        )
        assert next(iter(done)).result().startswith(b"HTTP/1.1 502 ")
        for _, writer in wires:
            await finish(writer)
        await asyncio.wait(waiting)
        await wait_until_async(lambda: proxies.server.share.held == 0)


async def test_commands_of_a_daemon_share_its_turns() -> None:
    room = Room(1024)
    async with running_proxies(room=SessionRoom(room)) as one, running_proxies(room=SessionRoom(room)) as other:
        one.server.share.spend(BUDGET)
        other.server.share.spend(BUDGET)
        await one.server.share.turn()
        assert room.turns.share == BUDGET // 2


async def test_trailers_of_an_origin_do_not_speak_for_the_proxy() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early\r\nX-Sandboxd-Other: 1\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-SANDBOXD-Decision: allowed\r\nX-Sandboxd: kept\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n")
        writer.write(b"x-Sandboxd-Decision: denied\r\nX-Sandboxd-: 1\r\nX-Sum: 7\r\n\r\n")
        await writer.drain()

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(
            b"GET http://ok.test:%d/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n\r\n" % origin.port
        )
        assert b"x-sandboxd-" not in answer.lower()
        assert b"X-Sum: 7" in answer
        assert b"X-Sandboxd: kept" in answer
