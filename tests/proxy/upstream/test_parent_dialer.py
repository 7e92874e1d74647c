"""Parent proxies on sockets: the policy first, then through the proxy or not at all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandboxd.policy.hosts.parent_proxies import parse_parent
from sandboxd.proxy.limits import ProxyLimits
from support.ports import closed_port
from support.proxies import (
    Proxies,
    ScriptedOrigin,
    Talk,
    finish,
    rules,
    running_proxies,
    scripted_origin,
)
from support.waiting import wait_until_async

FAR = "far.test"
"""A name that is pinned nowhere: only the parent proxy knows it."""
SECRET = "hunter2"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Parent:
    """A proxy that plays the internet: every name is the echo behind it. `asked` are the heads and targets it got."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 fine\r\n\r\n", *, dribble: bool = False) -> None:
        self.asked: list[bytes] = []
        self._answer = answer
        self._dribble = dribble

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            self.asked.append(head)
            if head.startswith(b"CONNECT "):
                break
            writer.write(self._answer if self._answer.startswith(b"HTTP/1.1 4") else OK)
        pieces = [self._answer[at : at + 1] for at in range(len(self._answer))] if self._dribble else [self._answer]
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        await echo(reader, writer)

    async def socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.readexactly(2)
        methods = await reader.readexactly(greeting[1])
        if 2 in methods:
            writer.write(b"\x05\x02")
            _, length = await reader.readexactly(2)
            user = await reader.readexactly(length)
            password = await reader.readexactly((await reader.readexactly(1))[0])
            self.asked.append(user + b":" + password)
            writer.write(b"\x01\x00" if password == SECRET.encode() else b"\x01\x01")
        else:
            writer.write(b"\x05\x00")
        head = await reader.readexactly(4)
        size = {1: 4, 4: 16}.get(head[3]) or (await reader.readexactly(1))[0]
        self.asked.append(await reader.readexactly(size) + b":%d" % int.from_bytes(await reader.readexactly(2), "big"))
        writer.write(self._answer)
        await echo(reader, writer)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"banner:")
    while data := await reader.read(65536):
        writer.write(data)


SOCKS_OK = b"\x05\x00\x00\x03\x04name\x00\x50"


@contextlib.asynccontextmanager
async def through(talk: Talk, scheme: str = "http", login: str = "") -> AsyncIterator[tuple[Proxies, ScriptedOrigin]]:
    async with scripted_origin(talk) as origin:
        parent = f"{scheme}://{login}127.0.0.1:{origin.port}"
        async with running_proxies(FAR, "ok.test", parent=parent) as proxies:
            yield proxies, origin


async def speak(wire: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    reader, writer = wire
    writer.write(b"ping")
    answer = await reader.readexactly(len(b"banner:ping"))
    await finish(writer)
    return answer


@pytest.mark.parametrize("dribble", [False, True])
async def test_tunnels_go_through_an_http_proxy_by_name(dribble: bool) -> None:
    """What the far end says at once belongs to the tunnel, however the head comes."""
    parent = Parent(b"HTTP/1.0 100 Continue\r\n\r\nHTTP/1.0 200 fine\nX: y\n\n", dribble=dribble)
    async with through(parent.http) as (proxies, _):
        assert await speak(await proxies.tunnel(f"{FAR}:443")) == b"banner:ping"
        assert await speak(await proxies.socks_tunnel(FAR.encode(), 22)) == b"banner:ping"
        assert [head.split(b"\r\n")[0] for head in parent.asked] == [
            b"CONNECT far.test:443 HTTP/1.1",
            b"CONNECT far.test:22 HTTP/1.1",
        ]
        assert proxies.names.asked == [] and b"authorization" not in b"".join(parent.asked).lower()


async def test_plain_requests_are_forwarded_whole_with_the_login() -> None:
    parent = Parent()
    async with through(parent.http, login=f"me:{SECRET}@") as (proxies, _):
        reader, writer = await proxies.http()
        for path in (b"/a?b", b"/c"):  # over one connection to the proxy
            writer.write(
                b"GET http://far.test" + path + b" HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic own\r\n\r\n"
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ") and await reader.readexactly(2) == b"hi"
        await finish(writer)
        login = b"Proxy-Authorization: Basic " + base64.b64encode(b"me:" + SECRET.encode())
        for path, seen in zip((b"/a?b", b"/c"), parent.asked, strict=True):
            assert seen.startswith(b"GET http://far.test" + path + b" HTTP/1.1\r\nHost: far.test\r\n")
            assert login in seen and b"own" not in seen
        assert proxies.names.asked == []


async def test_an_upgrade_is_a_tunnel_through_the_proxy() -> None:
    parent = Parent(b"HTTP/1.1 200 fine\r\n\r\n")
    async with through(parent.http) as (proxies, _):
        reader, writer = await proxies.http()
        writer.write(b"GET http://far.test/ HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ") and await reader.readexactly(
            2
        ) == b"hi"
        writer.write(b"GET http://far.test/ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        await wait_until_async(lambda: len(parent.asked) == 2)
        await finish(writer)
        assert parent.asked[0].startswith(b"GET http://far.test/ ")
        assert parent.asked[1].startswith(b"CONNECT far.test:80 ")


@pytest.mark.parametrize("login", ["", f"me:{SECRET}@"])
async def test_tunnels_go_through_a_socks_proxy_by_name(login: str) -> None:
    parent = Parent(SOCKS_OK)
    async with through(parent.socks, "socks5h", login) as (proxies, _):
        assert await speak(await proxies.tunnel(f"{FAR}:443")) == b"banner:ping"
        expected = [b"me:" + SECRET.encode()] if login else []
        assert parent.asked == [*expected, b"far.test:443"] and proxies.names.asked == []


async def test_socks5_without_h_resolves_here_under_the_address_guard() -> None:
    parent = Parent(SOCKS_OK)
    async with through(parent.socks, "socks5") as (proxies, _):
        answer = await proxies.ask_http(b"CONNECT far.test:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 502 ") and b"dns_failed" in answer
        assert proxies.names.asked == [FAR] and parent.asked == []


@pytest.mark.parametrize("target", ["no.test:443", "127.0.0.1:9", "169.254.169.254:80", "localhost:1"])
async def test_the_policy_comes_first(target: str) -> None:
    parent = Parent()
    async with through(parent.http) as (proxies, origin):
        answer = await proxies.ask_http(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ") and origin.connections == 0
        proxies.policy = replace(proxies.policy, allowed=rules("*"), denied=rules("no.test"))
        answer = await proxies.ask_http(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ") and origin.connections == 0


async def test_what_is_never_sent_to_the_proxy() -> None:
    """Pins, NO_PROXY, `direct`, and addresses of this machine that a rule allows."""
    parent = Parent()
    async with scripted_origin(parent.http) as proxy, scripted_origin(echo) as near:
        environment = {"ALL_PROXY": f"127.0.0.1:{proxy.port}", "NO_PROXY": "exempt.test"}
        async with running_proxies("*", f"127.0.0.1:{near.port}", environment=environment) as proxies:
            assert await speak(await proxies.tunnel(f"ok.test:{near.port}")) == b"banner:ping"
            assert await speak(await proxies.tunnel(f"127.0.0.1:{near.port}")) == b"banner:ping"
            assert proxy.connections == 0 and proxies.names.asked == []
            answer = await proxies.ask_http(b"CONNECT a.exempt.test:443 HTTP/1.1\r\n\r\n")
            assert b"dns_failed" in answer and proxies.names.asked == ["a.exempt.test"] and proxy.connections == 0
            assert await speak(await proxies.tunnel(f"{FAR}:443")) == b"banner:ping"
            assert proxy.connections == 1
            proxies.policy = replace(proxies.policy, parent_proxy=parse_parent("direct"))
            assert b"dns_failed" in await proxies.ask_http(b"CONNECT far.test:443 HTTP/1.1\r\n\r\n")
            assert proxy.connections == 1


async def answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def saying(answer: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\x00" if answer.startswith((b"\x04", b"\x05")) else b"\n")
        writer.write(answer)

    return talk


@pytest.mark.parametrize(
    ("scheme", "talk", "status", "slug"),
    [
        ("http", saying(b"HTTP/1.1 407 login\r\nProxy-Authenticate: Basic\r\n\r\n"), 502, "upstream_auth"),
        ("http", saying(b"HTTP/1.1 502 no\r\n\r\n"), 502, "upstream_refused"),
        ("http", saying(b"HTTP/1.1 301 there\r\nLocation: http://no.test\r\n\r\n"), 502, "upstream_refused"),
        ("http", saying(b"HTTP?"), 502, "upstream_bad_answer"),
        ("http", saying(b""), 502, "upstream_refused"),
        ("http", answer_nothing, 504, "upstream_timeout"),
        ("socks5h", saying(b"\x05\xff"), 502, "upstream_auth"),
        ("socks5h", saying(b"\x05\x00\x05\x02\x00\x01"), 502, "upstream_refused"),
        ("socks5h", saying(b"\x04\x00"), 502, "upstream_bad_answer"),
        ("socks5h", saying(b"\x05\x00\x05\x00\x00\x09"), 502, "upstream_bad_answer"),
        ("socks5h", saying(b"\x05"), 502, "upstream_refused"),
    ],
)
async def test_a_proxy_that_fails_closes_the_way(
    scheme: str, talk: Talk, status: int, slug: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_origin(talk) as origin:
        parent = f"{scheme}://me:{SECRET}@127.0.0.1:{origin.port}"
        limits = ProxyLimits(linger_s=0.1, parent_s=0.2)
        async with running_proxies(FAR, parent=parent, limits=limits) as proxies:
            answer = await proxies.ask_http(b"CONNECT far.test:443 HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert f"X-Sandboxd-Error: {slug}".encode() in answer
            assert f"127.0.0.1:{origin.port} (parentProxy)".encode() in answer and b"\nhint: " in answer
            reader, writer = await proxies.socks()
            writer.write(b"\x05\x01\x00\x05\x01\x00\x03\x08far.test\x01\xbb")
            assert (await reader.readexactly(4))[3:] == b"\x01"
            await finish(writer)
            assert origin.connections == 2 and proxies.names.asked == []
            assert SECRET not in answer.decode() + caplog.text and proxies.blocked == []


async def test_a_proxy_that_is_down_or_unusable_is_not_bypassed() -> None:
    for parent, environment, slug in (
        (f"http://me:{SECRET}@127.0.0.1:{closed_port()}", {}, "upstream_unreachable"),
        (f"http://me:{SECRET}@nowhere.test:1", {}, "upstream_unreachable"),
        ("", {"ALL_PROXY": f"https://me:{SECRET}@proxy.test:1"}, "upstream_unusable"),
    ):
        async with running_proxies(FAR, parent=parent, environment=environment) as proxies:
            for request in (b"CONNECT far.test:443 HTTP/1.1\r\n\r\n", b"GET http://far.test/ HTTP/1.1\r\n\r\n"):
                answer = await proxies.ask_http(request)
                assert answer.startswith(b"HTTP/1.1 502 ") and f"X-Sandboxd-Error: {slug}".encode() in answer
                assert b"hint: " in answer and SECRET.encode() not in answer
            assert FAR not in proxies.names.asked


async def test_a_login_that_the_proxy_wants_is_not_asked_of_the_client() -> None:
    parent = Parent(b"HTTP/1.1 407 login\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
    async with through(parent.http) as (proxies, _):
        answer = await proxies.ask_http(b"GET http://far.test/ HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 502 ") and b"upstream_auth" in answer
        assert b"Proxy-Authenticate" not in answer


async def test_a_denial_cuts_and_a_new_proxy_counts_next() -> None:
    parent = Parent()
    async with through(parent.http) as (proxies, first), scripted_origin(Parent().http) as second:
        tunnel = await proxies.tunnel(f"{FAR}:443")
        reader, writer = await proxies.http()
        request = b"GET http://far.test/ HTTP/1.1\r\n\r\n"
        for connections in ((2, 0), (2, 1)):
            writer.write(request)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n") and await reader.readexactly(2) == b"hi"
            assert (first.connections, second.connections) == connections
            proxies.policy = replace(proxies.policy, parent_proxy=parse_parent(f"http://127.0.0.1:{second.port}"))
        assert proxies.server.recheck() == 0
        proxies.deny(FAR)
        assert proxies.server.recheck() == 2
        assert proxies.blocked[0].host == FAR
        await finish(writer)
        await finish(tunnel[1])
