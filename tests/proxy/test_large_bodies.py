"""Bodies larger than any buffer, where TLS ends in the proxy: what a slow receiver does not take is not stored."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.model import NetworkPolicy
from sandboxd.proxy.tls.authority import Authority
from support.http2 import Message, Peer, http2_origin, secure
from support.proxies import finish, rules, running_proxies
from support.waiting import wait_until_async

TLS = Path(__file__).with_name("tls")
SERVER = TLS / "server.pem"
NETWORK = NetworkPolicy(tls_terminate=rules("ok.test"))
PIECE = bytes(1 << 16)
MEGABYTE = 1 << 20
SIZE = 96 * MEGABYTE
MOST_MEMORY = 24 * MEGABYTE
"""Of client, proxy and server together; the rest is in the kernel's buffers."""
MOST_HELD = MEGABYTE


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    return Authority([HostPattern.parse("ok.test")])


class Sent:
    """A sender's progress."""

    def __init__(self) -> None:
        self.size = 0
        self._changed = time.monotonic()

    def add(self, size: int) -> None:
        self.size, self._changed = self.size + size, time.monotonic()

    @property
    def has_stopped(self) -> bool:
        return self.size > 0 and time.monotonic() - self._changed > 0.3


def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) << 10


async def send(writer: asyncio.StreamWriter, sent: Sent, *, chunked: bool) -> None:
    for _ in range(SIZE // len(PIECE)):
        writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
        await writer.drain()
        sent.add(len(PIECE))
    writer.write(b"0\r\n\r\n" if chunked else b"")
    await writer.drain()


async def take(reader: asyncio.StreamReader) -> int:
    size = 0
    while size < SIZE and (data := await reader.read(len(PIECE))):
        size += len(data)
    return size


async def take_chunks(reader: asyncio.StreamReader) -> int:
    size = 0
    while length := int(await reader.readline(), 16):
        size += len(await reader.readexactly(length + 2)) - 2
    return size


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_slow_receiver_of_http1_slows_its_sender(authority: Authority, way: str) -> None:
    sent, may_read, received = Sent(), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if way == "up":
            await may_read.wait()
            received.set_result(await take(reader))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await send(writer, sent, chunked=True)
        await finish(writer)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(SERVER)
    async with (
        await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context) as server,
        running_proxies("ok.test", network=NETWORK, authority=authority) as proxies,
    ):
        host = f"ok.test:{server.sockets[0].getsockname()[1]}"
        reader, writer = await proxies.tunnel(host)
        await writer.start_tls(ssl.create_default_context(cadata=authority.certificate), server_hostname="ok.test")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = peak()
        length = SIZE if way == "up" else 0
        writer.write(f"POST /a HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n".encode())
        sending = asyncio.create_task(send(writer, sent, chunked=False) if way == "up" else asyncio.sleep(0))
        await wait_until_async(lambda: sent.has_stopped, "the sender waits")
        assert sent.size < SIZE / 2 and proxies.server.share.held < MOST_HELD
        may_read.set()
        if way == "down":
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            received.set_result(await take_chunks(reader))
        else:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await sending
        assert await received == SIZE and peak() - before < MOST_MEMORY
        await finish(writer)


async def test_a_slow_server_of_http2_slows_its_client(authority: Authority) -> None:
    """The other way is in test_http2.py."""
    size, sent = 16 * MEGABYTE, Sent()

    async def serve(peer: Peer, number: int, message: Message, event: object) -> None:
        peer.keeps = False
        if message.ended:
            peer.conn.send_headers(number, [(":status", "200")], end_stream=True)

    async with (
        http2_origin(serve, SERVER, takes=False) as origin,
        running_proxies("ok.test", network=NETWORK, authority=authority) as proxies,
    ):
        host = f"ok.test:{origin.port}"
        wire = await proxies.tunnel(host)
        context = secure(ssl.create_default_context(cadata=authority.certificate))
        await wire[1].start_tls(context, server_hostname="ok.test")
        client = Peer(wire)
        number = client.ask("POST", "/a", host, end=False)

        async def upload() -> None:
            for _ in range(size >> 14):
                await client.send(number, PIECE[: 1 << 14], end=False)
                sent.add(1 << 14)
            client.conn.end_stream(number)
            client.flush()

        sending = asyncio.create_task(upload())
        await wait_until_async(lambda: sent.has_stopped, "the client waits")
        assert sent.size < MEGABYTE and proxies.server.share.held < MOST_HELD
        server = origin.peers[0]
        server.takes = True
        server.conn.acknowledge_received_data(server.streams[1].size, 1)
        server.flush()
        assert (await client.answer(number)).status == "200"
        await sending
        assert server.streams[1].size == size and proxies.server.share.held == 0
        await client.close()
