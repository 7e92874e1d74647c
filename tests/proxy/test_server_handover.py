"""The proxies of a command between two daemons: what ends in the same moment is no obstacle, and costs nothing else
(docs/restarts.md)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxd.handover.record import NO_DESCRIPTOR
from sandboxd.proxy.dial import Dialer, PinnedResolver
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.server import ProxyRecord, ProxyServer, RequestRecord
from support.proxies import NoNames, Proxies, Wire, finish, running_proxies, scripted_origin
from support.waiting import wait_until_async

TURNS = range(12)
"""Of the event loop between the end of a connection and the hand-over: in one of them the proxy has closed its socket,
and its task has not been noticed to be over."""


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
    writer.close()


class Failing(socket.socket):
    """A socket of which the kernel says something worse than that an asker has gone."""

    def recvmsg(self, *arguments: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


async def idle_http(proxies: Proxies, port: int) -> Wire:
    return await proxies.http()


async def second_request(proxies: Proxies, port: int) -> Wire:
    reader, writer = await proxies.http()
    writer.write(b"GET http://no.test/ HTTP/1.1\r\nHost: no.test\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def greeted_socks(proxies: Proxies, port: int) -> Wire:
    reader, writer = await proxies.socks()
    writer.write(b"\x05\x01\x00")
    assert await reader.readexactly(2) == b"\x05\x00"
    return reader, writer


async def tunnel(proxies: Proxies, port: int) -> Wire:
    return await proxies.tunnel(f"ok.test:{port}")


def successor(proxies: Proxies) -> ProxyServer:
    resolver = PinnedResolver({"ok.test": ("127.0.0.1",)}, NoNames())
    gate = Gate(lambda: proxies.policy, None, resolver, resolver.pins)
    return ProxyServer(gate, Dialer(), proxies.blocked.add, "after")


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("begin", [idle_http, second_request, greeted_socks, tunnel])
async def test_a_client_that_goes_at_that_moment_is_not_handed_over(
    begin: Callable[[Proxies, int], Awaitable[Wire]], turns: int
) -> None:
    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        staying = await proxies.tunnel(f"ok.test:{origin.port}")
        _, writer = await begin(proxies, origin.port)
        writer.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        record, _ = await proxies.server.hand_over()
        assert all(one.socket >= 0 for one in record.requests) and all(one.socket >= 0 for one in record.listeners)
        after = successor(proxies)
        after.resume(record)
        try:
            staying[1].write(b"still there\n")
            assert await staying[0].readline() == b"STILL THERE\n"
            again = await proxies.tunnel(f"ok.test:{origin.port}")
            await finish(again[1])
        finally:
            await finish(staying[1])
            await after.aclose()


async def test_a_tunnel_that_had_ended_is_not_counted_as_cut() -> None:
    seen = set()
    for turns in range(40):
        async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
            reader, writer = await proxies.tunnel(f"ok.test:{origin.port}")
            writer.write(b"the end\n")
            writer.write_eof()
            for _ in range(turns):
                await asyncio.sleep(0)
            record, cut = await proxies.server.hand_over()
            after = successor(proxies)
            after.resume(record)
            assert (await reader.read(), cut) == (b"THE END\n", 0)
            seen.add(len(record.tunnels))
            await finish(writer)
            await after.aclose()
    assert seen == {0, 1}, "in some of them it went along, in some it was over"


async def test_what_had_failed_is_left_out() -> None:
    """A listener and a name service that are broken are closed, and stay so; the rest goes on."""
    async with running_proxies("ok.test") as proxies:
        name_service = Failing(socket.AF_INET, socket.SOCK_DGRAM)
        name_service.bind(("127.0.0.1", 0))
        proxies.server.serve_names([name_service], [])
        name_service.sendto(b"?", name_service.getsockname())
        await wait_until_async(lambda: name_service.fileno() < 0)
        broken = socket.create_server(("127.0.0.1", 0))
        proxies.server.serve(broken, None)
        broken.shutdown(socket.SHUT_RDWR)
        await wait_until_async(lambda: broken.fileno() < 0)
        kept = proxies.server.kept
        record, cut = await proxies.server.hand_over()
        for listeners in (record.listeners, kept.listeners):
            assert [one.protocol for one in listeners] == ["http", "socks"]
        assert (record.datagrams, kept.datagrams, cut) == ((), (), 0)
        after = successor(proxies)
        after.resume(record)
        assert (await proxies.ask_http(b"CONNECT no.test:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
        await after.aclose()


async def test_an_unresumable_connection_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A session with running commands hangs on it."""
    async with running_proxies("ok.test") as proxies:
        record, _ = await proxies.server.hand_over()
        after = successor(proxies)
        with caplog.at_level(logging.ERROR):
            after.resume(ProxyRecord(record.listeners, requests=(RequestRecord("http", NO_DESCRIPTOR),)))
        assert "cannot resume a connection" in caplog.text
        assert (await proxies.ask_http(b"CONNECT no.test:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
        await after.aclose()


async def test_connections_without_room_are_reset_first() -> None:
    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        wires = [await proxies.tunnel(f"ok.test:{origin.port}") for _ in range(5)]
        assert await proxies.server.shed(4) == 3
        record, cut = await proxies.server.hand_over()
        assert (len(record.tunnels), cut) == (2, 0)
        after = successor(proxies)
        after.resume(record)
        for place, (reader, writer) in enumerate(wires):
            if place < 2:
                writer.write(b"still there\n")
                assert await reader.readline() == b"STILL THERE\n"
            else:
                with pytest.raises(ConnectionResetError):
                    await reader.readline()
            await finish(writer)
        await after.aclose()
