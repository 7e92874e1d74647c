"""An HTTP client and server that we did not write, on both sides of the proxy: what they exchange directly they also
exchange through it, and a refusal reaches the client as one."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from support.proxies import running_proxies

BIG = bytes(range(256)) * 8192


async def echo(request: web.Request) -> web.Response:
    """The body back, with what the server saw of method, host and a header."""
    body = await request.read()
    seen = f"{request.method} {request.host} {request.headers.get('X-Mine', '')}"
    return web.Response(body=body, headers={"X-Seen": seen})


async def chat(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type == aiohttp.WSMsgType.BINARY:
            await socket.send_bytes(message.data[::-1])
        else:
            await socket.send_str(message.data.upper())
    return socket


async def drip(request: web.Request) -> web.StreamResponse:
    """Chunks of their own, each sent only after the client has had the time to see the one before."""
    response = web.StreamResponse()
    await response.prepare(request)
    for number in range(3):
        await response.write(b"%d\n" % number)
        await asyncio.sleep(0)
    await response.write_eof()
    return response


@contextlib.asynccontextmanager
async def origin() -> AsyncIterator[int]:
    application = web.Application(client_max_size=1 << 30)
    application.add_routes([web.route("*", "/echo", echo), web.get("/chat", chat), web.get("/drip", drip)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_every_method_and_a_big_body_on_one_connection() -> None:
    async with origin() as port, running_proxies("ok.test") as proxies, aiohttp.ClientSession() as client:
        proxy = f"http://127.0.0.1:{proxies.http_port}"
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            body = b"" if method == "GET" else BIG
            url = f"http://ok.test:{port}/echo"
            data = io.BytesIO(body)
            async with client.request(method, url, data=data, proxy=proxy, headers={"X-Mine": "1"}) as answer:
                assert answer.status == 200
                assert answer.headers["X-Seen"] == f"{method} ok.test:{port} 1"
                assert await answer.read() == body


async def test_chunks_in_both_directions() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield BIG[:5000]
            await asyncio.sleep(0)

    async with origin() as port, running_proxies("ok.test") as proxies, aiohttp.ClientSession() as client:
        proxy = f"http://127.0.0.1:{proxies.http_port}"
        async with client.post(f"http://ok.test:{port}/echo", data=pieces(), proxy=proxy) as answer:
            assert await answer.read() == BIG[:5000] * 50
        async with client.get(f"http://ok.test:{port}/drip", proxy=proxy) as answer:
            assert await answer.text() == "0\n1\n2\n"
        async with client.post(f"http://ok.test:{port}/echo", data=b"x", expect100=True, proxy=proxy) as answer:
            assert await answer.read() == b"x"


async def test_a_websocket() -> None:
    async with origin() as port, running_proxies("ok.test") as proxies, aiohttp.ClientSession() as client:
        proxy = f"http://127.0.0.1:{proxies.http_port}"
        async with client.ws_connect(f"ws://ok.test:{port}/chat", proxy=proxy) as chat_with:
            for number in range(20):
                await chat_with.send_str(f"message {number}")
                assert await chat_with.receive_str() == f"MESSAGE {number}"
            await chat_with.send_bytes(BIG)
            assert await chat_with.receive_bytes() == BIG[::-1]


async def test_fifty_at_once_each_get_their_own_answer() -> None:
    async with origin() as port, running_proxies("ok.test") as proxies, aiohttp.ClientSession() as client:

        async def one(number: int) -> bytes:
            url = f"http://ok.test:{port}/echo"
            proxy = f"http://127.0.0.1:{proxies.http_port}"
            async with client.post(url, data=b"%d" % number, proxy=proxy) as answer:
                return await answer.read()

        assert await asyncio.gather(*map(one, range(50))) == [b"%d" % number for number in range(50)]


async def test_a_refusal_is_a_403_and_nothing_is_asked() -> None:
    async with origin() as port, running_proxies("ok.test") as proxies, aiohttp.ClientSession() as client:
        proxy = f"http://127.0.0.1:{proxies.http_port}"
        async with client.get(f"http://no.test:{port}/echo", proxy=proxy) as answer:
            assert answer.status == 403
            assert answer.headers["X-Sandboxd-Decision"].startswith("denied")
            assert "no.test" in await answer.text()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(f"ws://no.test:{port}/chat", proxy=proxy)
        assert refused.value.status == 403
        async with client.get(f"http://ok.test:{port}/echo", proxy=proxy) as answer:
            assert answer.status == 200
