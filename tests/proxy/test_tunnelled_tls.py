"""As far as they concern a proxy that opens no TLS: what is in a tunnel arrives untouched,
certificates are between client and origin, and secrets of a request go to its host or nowhere."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import socket
import ssl
from pathlib import Path

import pytest

from sandboxd.proxy.limits import ProxyLimits
from support.proxies import Proxies, running_proxies, scripted_origin

TLS = Path(__file__).with_name("tls")
END = b"\r\n\r\n"
FRAMES = {
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
    "gRPC trailers": b"\0\0\x12\1\5\0\0\0\1grpc-status: 0",
    "trailers": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n",
    "WebSocket": b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x85\1\2\3\4ignup",
    "another host": b"GET http://no.test/ HTTP/1.1\r\nHost: no.test\r\nAuthorization: PLACEHOLDER\r\n\r\n",
    "a large upload": random.Random(1).randbytes(2_000_000),
}


async def test_tls_passes_from_end_to_end() -> None:
    """The protocol that was agreed on, every frame of it, and a reply that comes after a silence."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    polled = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        await polled.wait()  # a long poll: nothing moves until something happens
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as server,
        # An idle connection of the proxy ends after this time; a tunnel does not.
        running_proxies("ok.test", limits=ProxyLimits(idle_s=0.05, linger_s=0.1)) as proxies,
    ):
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
        trusting.set_alpn_protocols(["h2"])
        reader, writer = await secured(proxies, port, trusting)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.write(b"poll")
        assert await reader.readexactly(4) == b"poll"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        polled.set()
        for name, data in FRAMES.items():
            sending = asyncio.create_task(send(writer, data))
            answer = await reader.readexactly(len(data))
            await sending
            assert hashlib.sha256(answer).digest() == hashlib.sha256(data).digest(), name
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):  # no certificate authority stands between them
            await secured(proxies, port, ssl.create_default_context())
        assert proxies.blocked == []


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def secured(
    proxies: Proxies, port: int, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """TLS inside a tunnel."""

    def connect() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", proxies.http_port))
        sock.sendall(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % port)
        head = b""
        while not head.endswith(END):
            head += sock.recv(1)
        assert head.startswith(b"HTTP/1.1 200 ")
        return sock

    return await asyncio.open_connection(sock=await asyncio.to_thread(connect), ssl=context, server_hostname="ok.test")


async def test_secrets_go_to_the_host_of_the_request_or_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """As they were sent to a host that is allowed; of one that is not, neither the record, the answer nor the
    log has them. What is for the proxy stays with it."""
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(END))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    lines = b"Host: ok.test\r\nAuthorization: Bearer S3CRET\r\nCookie: k=S3CRET\r\nX-Key: PLACEHOLDER\r\n"
    ours = b"Proxy-Authorization: Basic TWINE\r\nConnection: close" + END
    caplog.set_level(logging.DEBUG)
    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        said = b""
        for authority in (b"no.test", b"u:S3CRET@no.test", b"u:S3CRET@ok.test"):
            request = b"GET http://%b:%d/S3CRET?token=S3CRET HTTP/1.1\r\n" % (authority, origin.port)
            said += await proxies.ask_http(request + lines + ours)
        assert origin.connections == 0 and said.count(b"HTTP/1.1 40") == 3
        request = b"GET http://ok.test:%d/a?token=S3CRET HTTP/1.1\r\n" % origin.port
        assert (await proxies.ask_http(request + lines + ours)).startswith(b"HTTP/1.1 200 ")
        [head] = heads
        assert head.startswith(b"GET /a?token=S3CRET HTTP/1.1\r\n")
        assert all(line in head for line in lines.splitlines()[1:]) and b"TWINE" not in head
        assert len(proxies.blocked) == 3
        for text in (repr(proxies.blocked), said.decode(), caplog.text):
            assert "S3CRET" not in text and "TWINE" not in text and "PLACEHOLDER" not in text
