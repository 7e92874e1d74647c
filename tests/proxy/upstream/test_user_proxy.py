"""The user's proxy in place of the daemon's: it decides, and nothing takes its place when it is down."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest

from support.ports import closed_port
from support.proxies import finish, running_proxies, scripted_origin


def right(user: bytes, password: bytes) -> bool:
    return (user, password) == (b"me", b"secret")


LOGIN = b"Proxy-Authorization: Basic " + base64.b64encode(b"me:secret") + b"\r\n"


async def test_bytes_pass_unchanged_and_undecided() -> None:
    seen: list[bytes] = []

    async def own(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read())
        writer.write(b"what the own proxy says")

    async with scripted_origin(own) as origin, running_proxies() as proxies:
        proxies.policy = replace(proxies.policy, http_proxy_port=origin.port, socks_proxy_port=origin.port)
        for wire, request in (
            (await proxies.http(), b"GET http://never.listed.test/ HTTP/9\r\n\r\nanything"),
            (await proxies.socks(), b"\x04\x01whatever"),
        ):
            reader, writer = wire
            writer.write(request)
            writer.write_eof()
            assert await reader.read() == b"what the own proxy says"
            assert seen.pop() == request
            await finish(writer)
        assert proxies.blocked == [] and proxies.names.asked == []
        proxies.policy = replace(proxies.policy, http_proxy_port=None)
        answer = await proxies.ask_http(b"CONNECT never.listed.test:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 "), "the next connection is ours again"


@pytest.mark.parametrize("with_check", [False, True])
async def test_when_it_is_gone_so_is_the_way_out(with_check: bool) -> None:
    async with running_proxies("ok.test", check=right if with_check else None) as proxies:
        port = closed_port()
        proxies.policy = replace(proxies.policy, http_proxy_port=port, socks_proxy_port=port)
        answer = await proxies.ask_http(b"CONNECT ok.test:443 HTTP/1.1\r\n" + LOGIN + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 502 ") and b"own_proxy_unreachable" in answer and b"hint: " in answer
        reader, writer = await proxies.socks()
        if with_check:
            writer.write(b"\x05\x01\x02\x01\x02me\x06secret\x05\x01\x00\x03\x07ok.test\x01\xbb")
            assert (await reader.read())[:6] == b"\x05\x02\x01\x00\x05\x01"
        else:
            writer.write(b"\x05\x01\x00")
            assert await reader.read() == b"\x05\xff"
        await finish(writer)


async def test_a_reachable_listener_asks_for_the_password() -> None:
    """macOS"""
    seen: list[bytes] = []

    async def own(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(3)
        if first == b"\x05\x01\x00":
            writer.write(b"\x05\x00")
            seen.append(await reader.readexactly(5 + len("no.test") + 2))
            writer.write(b"\x05\x00\x00\x01\0\0\0\0\0\0")
        else:
            seen.append(first + await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"hello")

    async with scripted_origin(own) as origin, running_proxies(check=right) as proxies:
        proxies.policy = replace(proxies.policy, http_proxy_port=origin.port, socks_proxy_port=origin.port)
        request = b"GET http://no.test/ HTTP/1.1\r\nA: b\r\n"
        for login in (b"", LOGIN.replace(b"Basic", b"Basic x")):
            assert (await proxies.ask_http(request + login + b"\r\n")).startswith(b"HTTP/1.1 407 ")
        assert (await proxies.ask_http(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert (await proxies.ask_http(request + LOGIN + b"\r\n", half_close=True)) == b"hello"
        assert seen.pop() == request + b"\r\n"
        for password, answer in ((b"wrong!", b"\x05\x02\x01\x01"), (b"secret", b"\x05\x02\x01\x00\x05\x00\x00\x01")):
            reader, writer = await proxies.socks()
            writer.write(b"\x05\x01\x02\x01\x02me\x06" + password + b"\x05\x01\x00\x03\x07no.test\x00\x50")
            assert await reader.readexactly(len(answer)) == answer
            await finish(writer)
        assert seen == [b"\x05\x01\x00\x03\x07no.test\x00\x50"] and origin.connections == 2
