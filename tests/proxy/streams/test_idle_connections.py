"""Connections to origins that one client of the proxy leaves for the next one's plain requests."""

from __future__ import annotations

import asyncio

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.proxy.streams.idle_connections import MOST_IDLE
from support.proxies import Proxies, ScriptedOrigin, finish, running_proxies, scripted_origin
from support.waiting import wait_until_async

END = b"\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request; `/bye` ends the connection, `/more` says something that was not asked for."""
    while True:
        head = await reader.readuntil(END)
        size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or b"0")
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        if b"/more " in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        if b"/bye " in head:
            return


async def ask(
    proxies: Proxies, origin: ScriptedOrigin, line: str = "GET /", *headers: str, host: str = "ok.test"
) -> bytes:
    """The answer to one client, which ends its connection; the proxy has served it."""
    method, _, path = line.partition(" ")
    lines = "".join(f"{one}\r\n" for one in ("Connection: close", *headers))
    request = f"{method} http://{host}:{origin.port}{path} HTTP/1.1\r\n{lines}\r\n"
    answer = await proxies.ask_http(request.encode() + (b"x" if method == "POST" else b""))
    await wait_until_async(lambda: proxies.server.connections == 0, "the client is served")
    return answer.partition(b" ")[2][:3]


async def test_the_next_client_uses_the_connection_of_the_last() -> None:
    async with scripted_origin(serve) as origin, running_proxies("ok.test", "also.test") as proxies:
        for _ in range(5):
            assert await ask(proxies, origin) == b"200"
        assert origin.connections == 1
        assert await ask(proxies, origin, "POST /", "Content-Length: 1") == b"200"
        assert origin.connections == 2, "a request that cannot be repeated has a connection of its own"
        assert await ask(proxies, origin, host="also.test") == b"200"
        assert origin.connections == 3, "another host"


@pytest.mark.parametrize("scheme", ["NTLM", "negotiate"])
async def test_a_connection_with_a_login_is_left_to_no_one(scheme: str) -> None:
    async with scripted_origin(serve) as origin, running_proxies("ok.test") as proxies:
        await ask(proxies, origin, "GET /", f"Authorization: {scheme} TlRM")
        await ask(proxies, origin, "GET /", "Authorization: Basic dTpw")
        assert origin.connections == 2
        await ask(proxies, origin)
        assert origin.connections == 2, "a login of one request is none of its connection"


async def test_a_denied_one_is_closed_and_no_violation() -> None:
    async with scripted_origin(serve) as origin, running_proxies("ok.test", "also.test") as proxies:
        await ask(proxies, origin)
        await ask(proxies, origin, host="also.test")
        proxies.deny("ok.test")
        assert proxies.server.recheck() == 0 and proxies.blocked == []
        assert proxies.server.targets() == [f"also.test:{origin.port}"]
        assert await ask(proxies, origin) == b"403"
        assert await ask(proxies, origin, host="also.test") == b"200" and origin.connections == 2


async def test_a_yes_to_one_connection_is_for_that_one() -> None:
    asked: list[int] = []

    async def yes(host: object, port: int, decision: Decision) -> Decision:
        asked.append(port)
        return Decision(Behavior.ALLOW, Reason.GRANTED, "yes")

    async with scripted_origin(serve) as origin, running_proxies(ask=yes) as proxies:
        for _ in range(2):
            assert await ask(proxies, origin, host="ask.test") == b"200"
        assert len(asked) == origin.connections == 2


async def test_one_that_the_origin_ends_is_forgotten() -> None:
    async with scripted_origin(serve) as origin, running_proxies("ok.test") as proxies:
        assert await ask(proxies, origin, "GET /bye") == b"200"
        await wait_until_async(lambda: proxies.server.targets() == [], "it is closed")
        assert await ask(proxies, origin) == b"200" and origin.connections == 2


async def test_unasked_bytes_reach_no_other_client() -> None:
    """However they come: with the answer, or while the connection waits."""
    async with scripted_origin(serve) as origin, running_proxies("ok.test") as proxies:
        for number in range(1, 11):
            await ask(proxies, origin, "GET /more")
            assert await ask(proxies, origin, "GET /bye") == b"200" and origin.connections == 2 * number
            await wait_until_async(lambda: proxies.server.targets() == [], "both are closed")


async def test_none_is_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.proxy.streams.idle_connections.IDLE_S", 0.0)
    async with scripted_origin(serve) as origin, running_proxies("ok.test") as proxies:
        await ask(proxies, origin)
        await wait_until_async(lambda: proxies.server.targets() == [], "it is closed")
        await ask(proxies, origin)
        assert origin.connections == 2


async def test_few_are_kept() -> None:
    async with scripted_origin(serve) as origin, running_proxies("ok.test") as proxies:
        clients = [await proxies.http() for _ in range(MOST_IDLE + 4)]
        for reader, writer in clients:
            writer.write(b"GET http://ok.test:%d/ HTTP/1.1\r\n\r\n" % origin.port)
            await reader.readuntil(b"hi")
        assert origin.connections == len(proxies.server.targets()) == MOST_IDLE + 4
        for _, writer in clients:
            await finish(writer)
        await wait_until_async(lambda: len(proxies.server.targets()) == MOST_IDLE, "the others are closed")
        await proxies.server.aclose()
        assert proxies.server.targets() == []
