"""TLS records without content that a peer may send, made up: letters are content, dots are none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from sandboxd.proxy.fair_share import Share
from sandboxd.proxy.streams.stream import MOST_EMPTY, READ_SIZE, Stream


class Records:
    """One end of TLS that notes what it has been given at a time."""

    def __init__(self) -> None:
        self.ended = False
        self.protocol = None
        self.asks = False
        self.sizes: list[int] = []

    def shake_hands(self, data: bytes = b"") -> bool:
        return True

    def receive(self, data: bytes) -> bytes:
        self.sizes.append(len(data))
        return data.replace(b".", b"")

    def send(self, content: bytes) -> bytes:
        return content

    def end(self) -> bytes:
        return b""

    def take_output(self) -> bytes:
        return b""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with ours, theirs:
        yield ours, theirs


async def received(pair: tuple[socket.socket, socket.socket], text: bytes, records: Records, share: Share) -> bytes:
    """Return the content of this text, which the peer sends."""
    loop = asyncio.get_running_loop()
    stream = Stream(pair[0], loop, share)
    await stream.start_tls(records)
    sending = asyncio.ensure_future(loop.sock_sendall(pair[1], text))
    content = b""
    try:
        while len(content) < len(text.replace(b".", b"")) or not content:
            content += await stream.receive()
    finally:
        sending.cancel()
        await asyncio.wait([sending])
    return content


async def test_records_without_content_end_the_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    records = Records()
    with pytest.raises(ConnectionResetError, match="without content"):
        await received(pair, b"a" + b"." * 8 * MOST_EMPTY + b"b", records, Share())
    assert sum(records.sizes) <= 2 * MOST_EMPTY + READ_SIZE and max(records.sizes[2:]) <= 4096


async def test_some_between_content_are_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    text = (b"a" + b"." * 40) * 20_000
    assert await received(pair, text, Records(), Share()) == b"a" * 20_000


async def test_a_client_that_is_watched_meanwhile(pair: tuple[socket.socket, socket.socket]) -> None:
    """Nothing is waited for, so nothing else bounds what it sends."""
    stream = Stream(pair[0], asyncio.get_running_loop(), Share())
    await stream.start_tls(Records())
    taken = 0
    with pytest.raises(ConnectionResetError, match="without content"):
        for _ in range(100):
            pair[1].send(b"." * 4096)
            with pytest.raises(BlockingIOError):
                stream.receive_now(8192)
            taken += 4096
    assert MOST_EMPTY - 4096 <= taken <= MOST_EMPTY
