"""A connection over the real socket: pipelining, odd bytes, clients that go away, bounds on what one may cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import select
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandboxd.rpc.call import MethodCall, Route
from sandboxd.rpc.connection import MOST_IN_FLIGHT, MOST_SIZE_IN_FLIGHT, MOST_UNTAKEN
from sandboxd.rpc.jsonrpc import MOST_IN_BATCH
from sandboxd.rpc.peer import Identity, MethodAccess
from sandboxd_client.wire.framing import MAX_LINE
from support.rpc import Door, RawClient, open_door
from support.waiting import wait_until_async


@dataclass(frozen=True, slots=True)
class Word:
    word: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    size: int


class Playground:
    """Methods that a test holds by the hand."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.running: list[str] = []
        self.cancelled: list[str] = []
        self.served = 0
        self.clients: list[Any] = []

    async def echo(self, call: MethodCall, params: Word) -> Word:
        self.served += 1
        return params

    async def wait(self, call: MethodCall, params: Word) -> Word:
        """Waits until the test opens the gate of that name."""
        self.running.append(params.word)
        try:
            await self.gates.setdefault(params.word, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(params.word)
            raise
        return params

    def has_begun(self, count: int) -> bool:
        return len(self.running) >= count

    async def broken(self, call: MethodCall, params: Word) -> Word:
        return Word("\udcff")

    async def grow(self, call: MethodCall, params: Size) -> Word:
        self.served += 1
        return Word("x" * params.size)

    async def subscribe(self, call: MethodCall, params: Word) -> Word:
        self.clients.append(call.client)
        return params

    async def tell_when_cancelled(self, call: MethodCall, params: Word) -> Word:
        """Waits for ever; a cancellation is reported."""
        self.running.append(params.word)
        try:
            await asyncio.Event().wait()
            return params
        finally:
            for client in self.clients:
                client.notify("cancelled", {})
            for _ in range(5):  # closed connections are noticed meanwhile
                await asyncio.sleep(0)

    def methods(self) -> dict[str, Route]:
        return {
            "tell_when_cancelled": Route(Word, self.tell_when_cancelled, MethodAccess.ASK),
            "echo": Route(Word, self.echo, MethodAccess.ASK),
            "wait": Route(Word, self.wait, MethodAccess.ASK),
            "broken": Route(Word, self.broken, MethodAccess.ASK),
            "grow": Route(Size, self.grow, MethodAccess.ASK),
            "subscribe": Route(Word, self.subscribe, MethodAccess.ASK),
        }


@pytest.fixture
def playground() -> Playground:
    return Playground()


@pytest.fixture
async def door(tmp_path: Path, playground: Playground) -> AsyncIterator[Door]:
    async with open_door(tmp_path / "door.sock", playground.methods()) as opened:
        yield opened


Connect = Callable[[], AbstractAsyncContextManager[RawClient]]


async def test_a_request_and_its_answer(door: Door) -> None:
    async with door.client() as client:
        assert await client.result("echo", {"word": "hé\u2028llo \U0001f600"}) == {"word": "hé\u2028llo \U0001f600"}


async def test_answers_come_as_they_finish(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        slow = client.request("wait", {"word": "a"})
        quick = client.request("echo", {"word": "b"})
        assert (await client.receive())["id"] == quick
        playground.gates["a"].set()
        assert (await client.receive())["id"] == slow


async def test_many_requests_in_one_write(door: Door) -> None:
    async with door.client() as client:
        lines = [{"jsonrpc": "2.0", "id": i, "method": "echo", "params": {"word": str(i)}} for i in range(1000)]
        client.send_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        answers = {}
        for _ in lines:
            answer = await client.receive()
            answers[answer["id"]] = answer["result"]["word"]
        assert answers == {i: str(i) for i in range(1000)}


async def test_one_byte_at_a_time(door: Door) -> None:
    async with door.client() as client:
        text = '{"jsonrpc":"2.0","id":1,"method":"echo","params":{"word":"é"}}\r\n\n \n{"jsonrpc"}\n'
        for byte in text.encode():
            client.send_bytes(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.receive())["result"] == {"word": "é"}
        assert (await client.receive())["error"]["code"] == -32700


@pytest.mark.parametrize(
    ("line", "code", "slug"),
    [
        (b"{", -32700, "parse_error"),
        (b'{"jsonrpc": "2.0", "method": "echo", "id": 1', -32700, "parse_error"),
        (b"nonsense", -32700, "parse_error"),
        (b"[1,]", -32700, "parse_error"),
        (b"{'a': 1}", -32700, "parse_error"),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "echo"}', -32700, "parse_error"),
        (b"\xef\xbb\xbf{}", -32700, "parse_error"),
        (b"[" * 100_000, -32700, "parse_error"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, -32700, "parse_error"),
        (b"[" * 64 + b"]" * 64, -32600, None),
        (b"9" * 5000, -32700, "parse_error"),
        (b'{"a": "\x01"}', -32700, "parse_error"),
        (b'"\xff"', -32700, "not_utf8"),
        (b'"\xed\xa0\x80"', -32700, "not_utf8"),
        (b"\xff\xfe{\0}\0", -32700, "not_utf8"),
        (b"[]", -32600, "invalid_request"),
        (b"null", -32600, "invalid_request"),
        (b"{}", -32600, "invalid_request"),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_a_bad_line_is_answered_and_the_next_one_served(
    door: Door, line: bytes, code: int, slug: str | None
) -> None:
    async with door.client() as client:
        client.send_bytes(line + b"\n")
        answer = await client.receive()
        if slug is None:  # a batch with one call that is none
            (answer,), slug = answer, "invalid_request"
        assert answer["id"] is None
        assert answer["error"]["code"] == code
        assert answer["error"]["data"]["slug"] == slug
        assert answer["error"]["data"]["hint"]
        assert await client.result("echo", {"word": "still here"})


async def test_a_line_of_four_mebibytes_and_one_more_byte(door: Door) -> None:
    frame = '{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"word":"%s"}}'
    async with door.client() as client:
        fitting = frame % ("x" * (MAX_LINE - len(frame) + 2))
        assert len(fitting) == MAX_LINE
        client.send_bytes(fitting.encode() + b"\n")
        assert len((await client.receive())["result"]["word"]) > MAX_LINE - 100
        client.send_bytes(fitting.encode() + b" \n")
        answer = await client.receive()
        assert answer["error"]["code"] == -32600
        assert answer["error"]["data"]["slug"] == "line_too_long"
        assert await client.result("echo", {"word": "still here"})


async def test_an_endless_line_is_refused_before_it_ends(door: Door) -> None:
    async with door.client() as client:
        for _ in range(5):
            client.send_bytes(b"x" * (1 << 20))
            await client.writer.drain()
        assert (await client.receive())["error"]["data"]["slug"] == "line_too_long"
        client.send_bytes(b"the end of it\n")
        assert await client.result("echo", {"word": "still here"})


async def test_an_answer_that_is_too_long_is_an_error(door: Door) -> None:
    async with door.client() as client:
        error = await client.error("grow", {"size": MAX_LINE})
        assert error["data"]["slug"] == "response_too_long"
        assert await client.result("echo", {"word": "still here"})


async def test_an_answer_that_has_no_utf8_is_an_error(door: Door) -> None:
    async with door.client() as client:
        error = await client.error("broken", {"word": ""})
        assert error["data"]["slug"] == "internal_error"
        assert await client.result("echo", {"word": "still here"})


async def test_an_id_that_has_no_utf8_is_no_id(door: Door) -> None:
    async with door.client() as client:
        client.send({"jsonrpc": "2.0", "id": "\ud800", "method": "echo", "params": {"word": "a"}})
        answer = await client.receive()
        assert (answer["error"]["data"]["slug"], answer["id"]) == ("invalid_request", None)
        assert await client.result("echo", {"word": "still here"})


async def test_batches(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        client.send(
            [
                {"jsonrpc": "2.0", "id": 1, "method": "wait", "params": {"word": "a"}},
                {"jsonrpc": "2.0", "method": "echo"},
                {"jsonrpc": "2.0", "id": 2, "method": "echo", "params": {"word": "b"}},
                {"jsonrpc": "2.0", "id": 3, "method": "echo", "params": {"wrd": "b"}},
                5,
            ]
        )
        assert await client.result("echo", {"word": "not behind the batch"})
        playground.gates["a"].set()
        answers = await client.receive()
        assert [answer["id"] for answer in answers] == [1, 2, 3, None]
        assert answers[1]["result"] == {"word": "b"}
        client.send([{"jsonrpc": "2.0", "method": "echo"}] * MOST_IN_BATCH)
        assert await client.result("echo", {"word": "a batch of notifications has no answer"})


async def test_notifications_and_answers_to_nothing_are_not_answered(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        client.send({"jsonrpc": "2.0", "method": "echo", "params": {"word": "x"}})
        client.send({"jsonrpc": "2.0", "method": "echo", "params": {"wrong": "x"}})
        client.send({"jsonrpc": "2.0", "id": 99, "result": {}})
        client.send({"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "x"}})
        number = client.request("echo", {"word": "y"})
        assert (await client.receive())["id"] == number
        assert playground.served == 2


async def test_a_client_that_goes_away_takes_its_calls_along(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        client.request("wait", {"word": "a"})
        client.request("wait", {"word": "b"})
        await wait_until_async(lambda: len(playground.running) == 2, "both calls run")
    await wait_until_async(lambda: door.lost, "the daemon hears of it")
    assert sorted(playground.cancelled) == ["a", "b"]
    assert len(door.connections) == 0


async def test_the_end_is_told_after_the_last_call(tmp_path: Path) -> None:
    """A session that is opened while its client goes away must be known when the connection's sessions are ended."""
    order: list[str] = []
    entered = asyncio.Event()

    async def stubborn(call: MethodCall, params: Word) -> Word:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            order.append("session opened")
            raise
        return params

    async def lost(connection: Any) -> None:
        order.append("sessions ended")

    async with open_door(tmp_path / "s", {"open": Route(Word, stubborn, MethodAccess.RUN)}, on_lost=lost) as door:
        async with door.client() as client:
            client.request("open", {})
            await entered.wait()
        await wait_until_async(lambda: door.lost, "the connection is lost")
    assert order == ["session opened", "sessions ended"]


@pytest.mark.parametrize("cut", [0, 1, 20, 63])
async def test_a_client_that_leaves_in_mid_line(door: Door, playground: Playground, cut: int) -> None:
    async with door.client() as client:
        client.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"word":"x"}}\n'[:cut])
    await wait_until_async(lambda: door.lost, "the connection is lost")
    assert playground.served == (1 if cut == 63 else 0)


async def test_a_client_that_closes_its_sending_half_gets_its_answers(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        client.request("wait", {"word": "a"})
        client.request("echo", {"word": "b"})
        client.writer.write_eof()
        assert (await client.receive())["result"] == {"word": "b"}
        assert not playground.cancelled
        playground.gates["a"].set()
        assert (await client.receive())["result"] == {"word": "a"}
        assert await client.receive() is None
    await wait_until_async(lambda: door.lost, "the connection is lost")


async def test_a_last_line_without_an_end_is_not_run(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        client.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"word":"x"}}')
        client.writer.write_eof()
        assert (await client.receive())["error"]["data"]["slug"] == "parse_error"
        assert await client.receive() is None
        assert playground.served == 0


async def test_no_more_than_so_many_calls_at_once(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        for i in range(MOST_IN_FLIGHT * 2):
            client.request("wait", {"word": f"w{i}"})
        last = client.request("echo", {"word": "last"})
        await wait_until_async(lambda: len(playground.running) >= MOST_IN_FLIGHT, "the bound is reached")
        async with door.client() as other:  # others are not concerned
            assert await other.result("echo", {"word": "x"})
        assert len(playground.running) == MOST_IN_FLIGHT
        done = 0
        while done < MOST_IN_FLIGHT * 2:
            for name in playground.running[done:]:
                playground.gates[name].set()
                done += 1
            assert len(playground.running) - done <= MOST_IN_FLIGHT
            await asyncio.sleep(0)
        answers = [await client.receive() for _ in range(MOST_IN_FLIGHT * 2 + 1)]
        assert last in [answer["id"] for answer in answers]


async def test_large_requests_are_worked_on_one_by_one(door: Door, playground: Playground) -> None:
    words = [letter * MOST_SIZE_IN_FLIGHT for letter in "abcd"]
    async with door.client() as client:
        for word in words:
            client.request("wait", {"word": word})
        for count, word in enumerate(words, 1):
            await wait_until_async(partial(playground.has_begun, count), "the next one runs")
            async with door.client() as other:
                assert await other.result("echo", {"word": "x"})
            assert playground.running == words[:count]
            playground.gates[word].set()
            assert (await client.receive())["result"]["word"] == word


async def test_a_client_that_does_not_read_is_not_served_further(door: Door, playground: Playground) -> None:
    """And neither is it cut off, nor does another client wait for it."""
    asked, size = 600, 100_000
    async with door.client() as lazy:
        lazy.reader._transport.pause_reading()
        for _ in range(asked):
            lazy.request("grow", {"size": size})
        async with door.client() as other:
            for _ in range(50):
                assert await other.result("echo", {"word": "x"})
        served = playground.served - 50
        assert served < asked / 2
        lazy.reader._transport.resume_reading()
        for _ in range(asked):
            assert len((await lazy.receive())["result"]["word"]) == size


async def test_notifications_reach_the_client(door: Door, playground: Playground) -> None:
    async with door.client() as client:
        await client.result("subscribe", {"word": "x"})
        playground.clients[0].notify("news", {"n": 1})
        assert await client.receive() == {"jsonrpc": "2.0", "method": "news", "params": {"n": 1}}


async def test_a_subscriber_that_does_not_read_is_cut_off(door: Door, playground: Playground) -> None:
    async with door.client() as lazy, door.client() as good:
        await lazy.result("subscribe", {"word": "x"})
        await good.result("subscribe", {"word": "x"})
        lazy.reader._transport.pause_reading()
        text = "x" * 100_000
        for _ in range(2 * MOST_UNTAKEN // len(text) + 10):
            for client in playground.clients:
                client.notify("news", {"text": text})
            assert (await good.receive())["params"]["text"] == text
        await wait_until_async(lambda: door.lost, "the lazy one is cut off")
        assert door.lost == playground.clients[:1]
        assert await good.result("echo", {"word": "still here"})


async def test_a_late_subscriber_costs_a_bounded_amount(door: Door, playground: Playground) -> None:
    text, late, many = "x" * 100_000, 20, 300
    async with door.client() as client:
        await client.result("subscribe", {"word": "x"})
        tracemalloc.start()
        try:
            for number in range(many):
                playground.clients[0].notify("news", {"number": number, "text": text})
                if number >= late:
                    assert (await client.receive())["params"]["number"] == number - late
            assert tracemalloc.get_traced_memory()[0] < 4 * late * len(text)
        finally:
            tracemalloc.stop()
        for number in range(many - late, many):
            assert (await client.receive())["params"]["number"] == number


async def test_two_hundred_clients_at_once(door: Door) -> None:
    async def one(number: int) -> None:
        async with door.client() as client:
            for i in range(5):
                assert await client.result("echo", {"word": f"{number}-{i}"}) == {"word": f"{number}-{i}"}

    await asyncio.gather(*(one(number) for number in range(200)))
    await wait_until_async(lambda: len(door.lost) == 200, "all have gone")


async def test_the_end_waits_for_calls_and_hangs_up_last(tmp_path: Path, playground: Playground) -> None:
    context = open_door(tmp_path / "s", playground.methods())
    door = await context.__aenter__()
    async with door.client() as client:
        slow = client.request("wait", {"word": "a"})
        await wait_until_async(lambda: playground.running, "the call runs")
        leaving = asyncio.ensure_future(context.__aexit__(None, None, None))
        await wait_until_async(lambda: not Path(door.path).exists(), "the socket is gone")
        late = client.request("echo", {"word": "late"})
        answer = await client.receive()
        assert (answer["id"], answer["error"]["data"]["slug"]) == (late, "stopping")
        playground.gates["a"].set()
        assert (await client.receive())["id"] == slow
        await leaving
        assert await client.receive() is None


async def test_calls_that_do_not_end_are_cancelled(
    tmp_path: Path, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxd.rpc.server.GRACE_S", 0.01)
    context = open_door(tmp_path / "s", playground.methods())
    door = await context.__aenter__()
    async with door.client() as client:
        slow = client.request("wait", {"word": "a"})
        await wait_until_async(lambda: playground.running, "the call runs")
        await context.__aexit__(None, None, None)
        answer = await client.receive()
        assert (answer["id"], answer["error"]["data"]["slug"]) == (slow, "stopping")
        assert await client.receive() is None
    assert playground.cancelled == ["a"]


async def test_a_caller_that_is_refused_gets_one_error_and_the_end(
    tmp_path: Path, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Identity.own()
    monkeypatch.setattr(Identity, "own", classmethod(lambda cls: Identity(own.uid + 1, own.namespaces)))
    async with open_door(tmp_path / "s", playground.methods()) as door, door.client() as client:
        client.request("echo", {"word": "x"})
        answer = await client.receive()
        assert answer["id"] is None
        assert answer["error"]["data"]["slug"] == "peer_other_user"
        with pytest.raises((ConnectionError, AssertionError)):
            await client.call("echo", {"word": "x"})
        assert playground.served == 0
        assert not door.lost  # it was never admitted
        assert [r["reason"] for r in door.log.records if r["event"] == "caller refused"] == ["peer_other_user"]


async def test_a_fault_in_one_connection_ends_only_that_one(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door.client() as good, door.client() as bad:
        await good.result("echo", {"word": "x"})

        async def fail(*_: Any) -> Awaitable[None]:
            raise RuntimeError("a bug of ours")

        with monkeypatch.context() as patch:
            patch.setattr("sandboxd.rpc.dispatch.Dispatcher.respond", fail)
            bad.request("echo", {"word": "x"})
            assert await bad.receive() is None
        assert await good.result("echo", {"word": "still here"})
        assert any(record["event"] == "connection failed" for record in door.log.records)


async def test_a_blocking_client_of_a_few_lines(door: Door) -> None:
    """The protocol from the bytes up, without the client library."""

    def ask() -> Any:
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(door.path)
            plain.sendall(b'{"jsonrpc":"2.0","id":7,"method":"echo","params":{"word":"hi"}}\n')
            return json.loads(plain.makefile().readline())

    assert await asyncio.to_thread(ask) == {"jsonrpc": "2.0", "id": 7, "result": {"word": "hi"}}


async def test_without_descriptors_new_connections_wait(door: Door) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(8)]
        async with door.client() as old:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, hard))
            hogs: list[int] = []
            try:
                with contextlib.suppress(OSError):
                    while True:
                        hogs.append(os.dup(0))
                os.close(hogs.pop())  # one would do to accept, and not to see who it is
                for one in waiting:
                    one.setblocking(False)
                    one.connect(door.path)
                    one.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"word":"x"}}\n')
                await wait_until_async(lambda: "clients wait" in door.log.text, "it is noticed")
                for _ in range(3):
                    assert await old.result("echo", {"word": "still here"})
            finally:
                for hog in hogs:
                    os.close(hog)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for one in waiting:
                assert b'"word":"x"' in await loop.sock_recv(one, 1000)
    assert door.log.text.count("clients wait") == 1


async def test_who_goes_while_connections_are_handed_over_goes_along(door: Door, playground: Playground) -> None:
    """The next daemon sees that they are gone, and ends what was theirs. One that is lost is no obstacle."""
    async with contextlib.AsyncExitStack() as clients:
        everybody = [await clients.enter_async_context(door.client()) for _ in range(22)]
        waiting, leaving = everybody[::21], everybody[1:21]
        for client in leaving:
            await client.result("subscribe", {"word": "tell me"})
        for client in waiting:
            client.request("tell_when_cancelled", {"word": "w"})
        await wait_until_async(lambda: playground.running == ["w", "w"])
        door.connections.pause()
        for client in leaving:
            await client.close()
        handed = await door.connections.hand_over()
        try:
            assert len({record.socket for _, record in handed}) == len(everybody)
            assert sum("tell_when_cancelled" in text for _, record in handed for text in record.waiting) == 2
            assert door.lost == []
            for _, record in handed:
                poll = select.poll()
                poll.register(record.socket, 0)
                assert bool(poll.poll(0)) is not bool(record.waiting), "its end is seen on the descriptor"
        finally:
            for _, record in handed:
                os.close(record.socket)


async def test_connections_without_room_are_cut_before_a_hand_over(door: Door) -> None:
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(5):
            await clients.enter_async_context(door.client())
        await wait_until_async(lambda: len(door.connections) == 5)
        assert (door.connections.shed(5), door.connections.shed(2)) == (0, 3)
        await wait_until_async(lambda: len(door.lost) == 3 and len(door.connections) == 2)
