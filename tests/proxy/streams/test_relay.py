"""The relay: nothing lost, ends and resets passed on as what they are, back-pressure, few descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from sandboxd.handover.record import read_record, write_record
from sandboxd.proxy.fair_share import Share
from sandboxd.proxy.streams.pipes import MOST, SHARED, SIZE, Pipe, PipePool
from sandboxd.proxy.streams.relay import DirectionRecord, SocketRelay
from support.waiting import wait_until_async

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for sock in (one, other):
        sock.setblocking(False)
    return one, other


async def fill(sock: socket.socket) -> int:
    """Send until nothing more is taken for a while; return the bytes."""
    sent = full = 0
    while full < 3:
        try:
            sent += sock.send(bytes(1 << 20))
        except BlockingIOError:
            full += 1
        await asyncio.sleep(0.02)
    return sent


@dataclass(slots=True)
class Joined:
    """Client and origin, with a relay between them."""

    client: Wire
    origin: Wire
    task: asyncio.Task[None]
    pipes: PipePool


@contextlib.asynccontextmanager
async def joined(splice: bool, to_origin: bytes = b"", to_client: bytes = b"") -> AsyncIterator[Joined]:
    client, left = tcp_pair()
    right, origin = tcp_pair()
    pipes = PipePool()
    task = asyncio.create_task(SocketRelay(left, right, pipes=pipes, splice=splice).run(to_origin, to_client))
    wires = [await asyncio.open_connection(sock=sock) for sock in (client, origin)]
    try:
        yield Joined(wires[0], wires[1], task, pipes)
    finally:
        for _, writer in wires:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await asyncio.wait_for(task, 30)
        assert left.fileno() == right.fileno() == -1
        pipes.close()


@pytest.fixture(params=[True, False], ids=["splice", "copy"])
def splice(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_bytes_go_both_ways(splice: bool) -> None:
    async with joined(splice) as pair:
        for _ in range(3):
            pair.client[1].write(b"question")
            assert await pair.origin[0].readexactly(8) == b"question"
            pair.origin[1].write(b"answer")
            assert await pair.client[0].readexactly(6) == b"answer"


async def test_what_was_read_before_goes_first(splice: bool) -> None:
    async with joined(splice, b"early ", b"hello ") as pair:
        pair.client[1].write(b"late")
        pair.origin[1].write(b"world")
        assert await pair.origin[0].readexactly(10) == b"early late"
        assert await pair.client[0].readexactly(11) == b"hello world"


@pytest.mark.parametrize("size", [0, 1, 4095, 65536, 1_000_003, 8_000_000])
async def test_an_origin_that_closes_at_once_loses_nothing(splice: bool, size: int) -> None:
    data = random.Random(size).randbytes(size)
    async with joined(splice) as pair:
        pair.origin[1].write(data)
        pair.origin[1].close()
        received = await pair.client[0].read()
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
        assert not pair.task.done(), "the other direction is open until the client ends it"


async def test_a_half_close_ends_one_direction_only(splice: bool) -> None:
    async with joined(splice) as pair:
        pair.client[1].write(b"request")
        pair.client[1].write_eof()
        assert await pair.origin[0].read() == b"request"
        pair.origin[1].write(b"x" * 3_000_000)
        pair.origin[1].write_eof()
        assert len(await pair.client[0].read()) == 3_000_000
        await asyncio.wait_for(pair.task, 30)


@pytest.mark.parametrize("who", ["client", "origin"])
async def test_a_reset_arrives_as_a_reset_after_what_was_sent(splice: bool, who: str) -> None:
    async with joined(splice) as pair:
        broken, other = (pair.client, pair.origin) if who == "client" else (pair.origin, pair.client)
        broken[1].write(b"last words")
        assert await other[0].readexactly(10) == b"last words"
        reset(broken[1])
        with pytest.raises(ConnectionResetError):
            await other[0].read()
        await asyncio.wait_for(pair.task, 30)


async def test_an_early_answer_arrives_before_the_reset_of_an_upload(splice: bool) -> None:
    """The origin answers 413 and closes while the client is still sending: its kernel resets the connection."""
    async with joined(splice) as pair:
        pair.client[1].write(b"u" * 8_000_000)
        await pair.origin[0].readexactly(1000)
        pair.origin[1].write(b"413 too much")
        await pair.origin[1].drain()
        pair.origin[1].close()
        assert await pair.client[0].readexactly(12) == b"413 too much"
        pair.client[1].transport.abort()


async def test_a_slow_reader_stops_the_sender(splice: bool) -> None:
    async with joined(splice) as pair:
        pair.client[1].transport.pause_reading()  # type: ignore[attr-defined]
        sent = 0
        pair.origin[1].transport.set_write_buffer_limits(0)
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 30:
                pair.origin[1].write(b"x" * 65536)
                await asyncio.wait_for(pair.origin[1].drain(), 0.3)
                sent += 65536
        assert sent < 1 << 28, "the kernel's buffers and one pipe are all there is"
        before = memory_kb()
        pair.client[1].transport.resume_reading()  # type: ignore[attr-defined]
        pair.origin[1].write_eof()
        size = 0
        while piece := await pair.client[0].read(1 << 20):
            size += len(piece)
        assert size >= sent
        assert memory_kb() - before < 64 * 1024


async def test_a_big_transfer_both_ways_is_equal(splice: bool) -> None:
    data = random.Random(1).randbytes(1 << 20)

    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(24):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def digest(reader: asyncio.StreamReader) -> str:
        found = hashlib.sha256()
        while piece := await reader.read(50_000):
            found.update(piece)
        return found.hexdigest()

    async with joined(splice) as pair:
        *_, down, up = await asyncio.gather(
            send(pair.client[1]), send(pair.origin[1]), digest(pair.client[0]), digest(pair.origin[0])
        )
        assert down == up == hashlib.sha256(data * 24).hexdigest()


async def test_cancelling_resets_both_sides(splice: bool) -> None:
    client, left = tcp_pair()
    right, origin = tcp_pair()
    task = asyncio.create_task(SocketRelay(left, right, splice=splice).run())
    wires = [await asyncio.open_connection(sock=sock) for sock in (client, origin)]
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    for reader, writer in wires:
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_without_a_pipe_a_full_sink_holds_no_bytes() -> None:
    client, left = tcp_pair()
    right, origin = tcp_pair()
    relay = SocketRelay(left, right, splice=False)
    task = asyncio.create_task(relay.run())
    sent = await fill(client)
    state = relay.detach()
    await task
    assert state is not None and 0 < state[0].taken < sent and state[0].held == b""
    task = asyncio.create_task(SocketRelay(left, right).resume(*state))
    client.close()
    received = 0
    while data := await asyncio.get_running_loop().sock_recv(origin, 1 << 16):
        received += len(data)
    assert received == sent
    origin.close()
    await task


async def test_bytes_that_await_inspection_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.proxy.streams.relay.MOST_HELD", 1000)
    share = Share()
    verdicts: dict[int, bool] = {}

    def verdict(place: int, data: bytes) -> bool | None:
        return verdicts.get(place)

    def is_held(size: int) -> bool:
        return share.held == size

    wires, tasks = [], []
    for place in range(3):
        client, left = tcp_pair()
        right, origin = tcp_pair()
        relay = SocketRelay(left, right, share=share)
        tasks.append(asyncio.create_task(relay.run(b"x", inspect=partial(verdict, place))))
        wires.append((client, origin))
        client.send(bytes(400))
        await wait_until_async(partial(is_held, 401 * min(place + 1, 2)))
    await asyncio.wait_for(tasks[2], 20)
    with pytest.raises(ConnectionResetError):
        wires[2][0].recv(1)
    verdicts[0] = True
    wires[0][0].send(b"y")
    await wait_until_async(lambda: share.held == 401)
    assert len(await asyncio.get_running_loop().sock_recv(wires[0][1], 1000)) == 402
    for pair in wires:
        for sock in pair:
            sock.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert share.held == 0


async def test_bytes_in_a_pipe_are_handed_over_in_it() -> None:
    client, left = tcp_pair()
    right, origin = tcp_pair()
    before = descriptors()
    relay = SocketRelay(left, right)
    task = asyncio.create_task(relay.run())
    sent = await fill(client)
    state = relay.detach()
    await task
    assert state is not None and state[0].held == b"" and len(state[0].pipe) == 2 and state[0].piped > 0
    body, numbers = write_record(state[0])
    assert len(str(body)) < 1000
    again = read_record(DirectionRecord, body, numbers)
    task = asyncio.create_task(SocketRelay(left, right).resume(again, state[1]))
    client.close()
    received = 0
    while data := await asyncio.get_running_loop().sock_recv(origin, 1 << 16):
        received += len(data)
    assert received == sent
    origin.close()
    await task
    SHARED.close()
    assert descriptors() <= before


async def test_an_idle_tunnel_holds_no_pipe() -> None:
    async with joined(True) as pair:
        pair.client[1].write(b"x")
        await pair.origin[0].readexactly(1)
        before = descriptors()
        async with joined(True) as other:
            other.client[1].write(b"x")
            await other.origin[0].readexactly(1)
            await wait_until_async(lambda: descriptors() - before <= 4 + 2, "two pairs of sockets, one idle pipe")


async def test_without_descriptors_for_a_pipe_bytes_still_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with joined(True) as pair:
        monkeypatch.setattr("sandboxd.proxy.streams.pipes.os.pipe2", _no_descriptor)
        pair.client[1].write(b"x" * 500_000)
        pair.client[1].write_eof()
        assert len(await pair.origin[0].read()) == 500_000


# pipes


def test_pipes_are_lent_as_long_as_there_are_some() -> None:
    pool = PipePool()
    lent = [pool.borrow() for _ in range(MOST)]
    try:
        with pytest.raises(OSError):
            pool.borrow()
        ends = pool.hand_over(lent.pop())
        lent.append(pool.resume(ends))
        pool.give_back(lent.pop())
        lent.append(pool.borrow())
        assert lent[-1].reader == ends[0], "an idle one is used again"
        os.write(lent[-1].writer, b"left over")
        pool.give_back(lent.pop(), empty=False)
        assert pool.borrow().size == SIZE
    finally:
        for pipe in lent:
            pool.give_back(pipe)
        pool.close()


def test_a_tiny_pipe_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    monkeypatch.setattr("sandboxd.proxy.streams.pipes.fcntl.fcntl", lambda *_: 4096)
    with pytest.raises(OSError):
        Pipe()
    assert descriptors() == before


def reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _no_descriptor(*_: object) -> tuple[int, int]:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize("splice", [True, False])
async def test_another_relay_goes_on_with_every_byte(splice: bool) -> None:
    """Both ways at once, with readers that are slow, and taken over again and again, also after one side has ended."""
    loop = asyncio.get_running_loop()
    client, left = tcp_pair()
    right, origin = tcp_pair()
    for sock in (client, left, right, origin):  # so that little is in the kernel
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    upload, download = random.Random(1).randbytes(3 << 20), random.Random(2).randbytes(2 << 20)

    async def send(sock: socket.socket, data: bytes) -> None:
        await loop.sock_sendall(sock, data)
        sock.shutdown(socket.SHUT_WR)

    async def receive(sock: socket.socket) -> bytes:
        received = b""
        while data := await loop.sock_recv(sock, 20_000):
            received += data
            await asyncio.sleep(0)
        return received

    relay = SocketRelay(left, right, splice=splice)
    task = asyncio.create_task(relay.run(b"first ", b"before "))
    ends = asyncio.gather(send(client, upload), send(origin, download), receive(client), receive(origin))
    taken_over = moved = 0
    while not ends.done():
        for _ in range(20):
            await asyncio.sleep(0)
        state = relay.detach()
        if state is None:
            break
        moved = sum(relay.moved)
        await task
        assert (left.fileno(), right.fileno()) != (-1, -1)
        taken_over += 1
        relay = SocketRelay(left, right, splice=splice)
        task = asyncio.create_task(relay.resume(*state))
    _, _, at_client, at_origin = await ends
    assert at_origin == b"first " + upload
    assert at_client == b"before " + download
    await task
    assert taken_over > 3 and 0 < moved <= sum(relay.moved) == len(upload) + len(download)
    for sock in (client, origin):
        sock.close()
