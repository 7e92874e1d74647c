"""`checkServerName` in real tunnels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sandboxd.policy.decision import Reason
from support.greetings import client_hello
from support.proxies import Proxies, ScriptedOrigin, finish, running_proxies, scripted_origin
from support.waiting import wait_until_async


@asynccontextmanager
async def checked(mode: str) -> AsyncIterator[tuple[Proxies, ScriptedOrigin, bytearray]]:
    received = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        while data := await reader.read(65536):
            received.extend(data)

    async with scripted_origin(talk) as origin, running_proxies("ok.test", "also.test") as proxies:
        proxies.policy = replace(proxies.policy, check_server_name=mode)
        yield proxies, origin, received


@pytest.mark.parametrize("mode", ["off", "log", "enforce"])
@pytest.mark.parametrize(
    "data",
    [client_hello("ok.test"), client_hello("OK.test"), client_hello("also.test"), client_hello(None), b"SSH-2.0-x\r\n"],
)
async def test_what_passes_in_every_mode(mode: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with checked(mode) as (proxies, origin, received):
        for step in (len(data), 7):
            received.clear()
            reader, writer = await proxies.tunnel(f"ok.test:{origin.port}")
            assert await reader.readexactly(5) == b"hello", "the server may speak first"
            for place in range(0, len(data), step):
                writer.write(data[place : place + step])
                await writer.drain()
            writer.write(b"after")
            await wait_until_async(lambda: bytes(received) == data + b"after")
            await finish(writer)
        assert not caplog.records and proxies.blocked == []


@pytest.mark.parametrize("socks", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("data", [client_hello("no.test"), client_hello("no..test"), b"\x16\x03\x01\x00\x01\x02"])
async def test_enforced_a_byte_to_another_host_never_leaves(socks: bool, ahead: bool, data: bytes) -> None:
    async with checked("enforce") as (proxies, origin, received):
        if ahead:
            reader, writer = await proxies.http()
            writer.write(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % origin.port + data)
        else:
            wire = proxies.socks_tunnel(b"ok.test", origin.port) if socks else proxies.tunnel(f"ok.test:{origin.port}")
            reader, writer = await wire
            for place in range(len(data)):
                writer.write(data[place : place + 1])
                await asyncio.sleep(0)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await wait_until_async(lambda: proxies.server.connections == 0)
        assert received == b""
        [blocked] = proxies.blocked
        assert (blocked.operation, blocked.decision.reason) == ("TLS", Reason.SERVER_NAME)
        await finish(writer)


async def test_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    async with checked("log") as (proxies, origin, received):
        _, writer = await proxies.tunnel(f"ok.test:{origin.port}")
        data = client_hello("no.test")
        writer.write(data)
        await wait_until_async(lambda: bytes(received) == data)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "no.test" in caplog.text and proxies.blocked == []
        await finish(writer)


async def test_an_end_within_a_greeting_delivers_the_sent_bytes() -> None:
    async with checked("enforce") as (proxies, origin, received):
        _, writer = await proxies.tunnel(f"ok.test:{origin.port}")
        writer.write(client_hello("no.test")[:20])
        writer.write_eof()
        await wait_until_async(lambda: len(received) == 20)
        await finish(writer)


@pytest.mark.parametrize(("name", "is_typed"), [("no.test", True), ("no.test;id", False), ("$(id).test", False)])
async def test_a_hint_types_readable_server_names_only(name: str, is_typed: bool) -> None:
    async with checked("enforce") as (proxies, origin, _):
        _, writer = await proxies.tunnel(f"ok.test:{origin.port}")
        writer.write(client_hello(name))
        await wait_until_async(lambda: bool(proxies.blocked))
        (blocked,) = proxies.blocked
        assert blocked.decision is not None
        assert (f"sandboxd allow domain {name}" in blocked.decision.hint) is is_typed
        assert is_typed or name not in blocked.decision.hint
        await finish(writer)
