"""The HTTP proxy on a socket: CONNECT, plain requests, refusals, and requests that try to be two things at once."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.proxy.limits import ProxyLimits
from support.ports import closed_port
from support.proxies import (
    ScriptedOrigin,
    Talk,
    exchange,
    finish,
    running_proxies,
    scripted_origin,
)
from support.waiting import wait_until_async

HEAD_END = b"\r\n\r\n"
CLOSE = b"Connection: close\r\n"


def answering(answer: bytes, *, heads: list[bytes] | None = None, close: bool = True) -> Talk:
    """An origin that reads heads and answers each with these bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(HEAD_END)
            except asyncio.IncompleteReadError:
                return
            if heads is not None:
                heads.append(head)
            writer.write(answer)
            if close:
                await writer.drain()
                return

    return talk


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


def get(origin: ScriptedOrigin, host: str = "ok.test", *headers: bytes, method: str = "GET", path: str = "/") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return f"{method} http://{host}:{origin.port}{path} HTTP/1.1\r\nHost: {host}\r\n".encode() + lines + b"\r\n"


def once(origin: ScriptedOrigin, host: str = "ok.test", *headers: bytes, method: str = "GET", path: str = "/") -> bytes:
    """The last request of its connection."""
    return get(origin, host, *headers, b"Connection: close", method=method, path=path)


# refusals


@pytest.mark.parametrize("method", ["CONNECT", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "X-OWN"])
async def test_a_host_that_is_not_allowed_is_never_dialled(method: str) -> None:
    async with scripted_origin(answering(OK)) as origin, running_proxies("ok.test") as proxies:
        target = f"no.test:{origin.port}" if method == "CONNECT" else f"http://no.test:{origin.port}/x?secret"
        answer = await proxies.ask_http(f"{method} {target} HTTP/1.1\r\nHost: ok.test\r\n".encode() + CLOSE + b"\r\n")
        head, _, body = answer.partition(HEAD_END)
        assert head.startswith(b"HTTP/1.1 403 ")
        assert b"X-Sandboxd-Decision: denied; rule=none; reason=hostNotListed" in head
        assert (b"no.test:%d" % origin.port in body) == (method != "HEAD")
        assert method == "HEAD" or b"sandboxd allow domain no.test" in body
        assert origin.connections == 0
        [blocked] = proxies.blocked
        assert (blocked.operation, blocked.host, blocked.port) == (method, "no.test", origin.port)
        assert blocked.decision.reason is Reason.HOST_NOT_LISTED


async def test_an_empty_list_allows_nothing() -> None:
    async with scripted_origin(answering(OK)) as origin, running_proxies() as proxies:
        for name in ("ok.test", "127.0.0.1", "localhost"):
            assert (await proxies.ask_http(once(origin, name))).startswith(b"HTTP/1.1 403 ")
        assert origin.connections == 0 and len(proxies.blocked) == 3


async def test_a_denial_names_rule_and_file() -> None:
    async with running_proxies("*", denied=["*.no.test"]) as proxies:
        answer = await proxies.ask_http(b"CONNECT a.no.test:8443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"X-Sandboxd-Decision: denied; rule=*.no.test; reason=hostDenied\r\n" in answer
        assert b"/home/me/.claude/settings.json:3 (sandbox.network.deniedDomains)" in answer


async def test_denials_beat_the_star_and_each_other() -> None:
    """Deny wins."""
    async with running_proxies("ok.test", denied=["*"]) as proxies:
        assert (await proxies.ask_http(b"CONNECT ok.test:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")


async def test_ports_of_rules() -> None:
    async with scripted_origin(answering(OK)) as origin, running_proxies(f"ok.test:{origin.port}") as proxies:
        await finish((await proxies.tunnel(f"ok.test:{origin.port}"))[1])
        answer = await proxies.ask_http(b"CONNECT ok.test:22 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ") and origin.connections == 1


@pytest.mark.parametrize(
    "authority",
    [
        ".ok.test", "ok..test", "user@no.test", "ok.test@no.test", "[::1%25lo]", "[::1%lo]", "ok%2etest", "1.2.3.4.5",
        "ok.test\\", "ok\u3002test", "b\xfccher.test", "no.test\0.ok.test", "a" * 64, "ok.test:99999", "", "xn--",
    ],
)  # fmt: skip
@pytest.mark.parametrize("connect", [True, False])
async def test_hosts_that_can_be_read_in_two_ways(authority: str, connect: bool) -> None:
    """Nothing resolved, nothing dialled."""
    async with scripted_origin(answering(OK)) as origin, running_proxies("*") as proxies:
        line = f"CONNECT {authority}:{origin.port}" if connect else f"GET http://{authority}:{origin.port}/"
        answer = await proxies.ask_http(f"{line} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert origin.connections == 0 and proxies.names.asked == []
        assert all(blocked.decision.reason is Reason.HOST_INVALID for blocked in proxies.blocked)
        assert len(proxies.blocked) == (b"\0" not in line.encode())


@pytest.mark.parametrize(
    "spelling", ["OK.test.", "ok.TEST", "2130706433", "0x7f000001", "127.1", "0177.0.0.1", "[::ffff:127.0.0.1]"]
)
async def test_other_spellings_are_the_same_host(spelling: str) -> None:
    async with scripted_origin(answering(OK)) as origin, running_proxies("ok.test") as proxies:
        numeric = not spelling.lower().startswith("ok")
        answer = await proxies.ask_http(once(origin, spelling))
        assert answer.startswith(b"HTTP/1.1 403 " if numeric else b"HTTP/1.1 200 ")
    async with scripted_origin(answering(OK)) as origin, running_proxies("127.0.0.1") as proxies:
        answer = await proxies.ask_http(once(origin, spelling))
        assert answer.startswith(b"HTTP/1.1 200 " if numeric else b"HTTP/1.1 403 ")


async def test_forms_that_are_no_proxy_requests() -> None:
    async with scripted_origin(answering(OK)) as origin, running_proxies("ok.test") as proxies:
        for request, slug in (
            (b"GET / HTTP/1.1\r\nHost: ok.test:%d\r\n\r\n" % origin.port, b"origin_form"),
            (b"GET /x HTTP/1.1\r\nHost: no.test\r\n\r\n", b"origin_form"),
            (b"GET https://ok.test:%d/ HTTP/1.1\r\n\r\n" % origin.port, b"https_absolute_form"),
            (b"GET ftp://ok.test/ HTTP/1.1\r\n\r\n", b"bad_scheme"),
            (b"TRACE http://ok.test:%d/ HTTP/1.1\r\n\r\n" % origin.port, b"method_refused"),
            (b"GET http://ok.test:%d/\r\n" % origin.port, b"http_version"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"http_version"),
            (b"\x16\x03\x01\x00\x05hello", b"http_malformed"),
            (b"\x05\x01\x00", b"http_malformed"),
            (b"CONNECT ok.test:%d HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET " % origin.port, b"http_malformed"),
            (b"CONNECT ok.test:%d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % origin.port, b"http_malformed"),
        ):
            answer = await proxies.ask_http(request)
            assert b"X-Sandboxd-Error: " + slug + b"\r\n" in answer, (request, answer)
        assert origin.connections == 0 and proxies.blocked == []


# one request and its answer


async def test_a_request_is_passed_on_without_what_concerns_the_proxy() -> None:
    heads: list[bytes] = []
    async with scripted_origin(answering(OK, heads=heads)) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(
            b"GET http://ok.test:%d/a%%20b?c HTTP/1.1\r\nHost: no.test\r\nProxy-Authorization: Basic c2VjcmV0\r\n"
            b"Proxy-Connection: keep-alive\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 3\r\nTE: gzip\r\n"
            b"Accept: */*\r\nCookie: a=b\r\nCookie: c=d\r\n\r\n" % origin.port
        )
        assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        assert heads == [
            b"GET /a%%20b?c HTTP/1.1\r\nHost: ok.test:%d\r\nAccept: */*\r\nCookie: a=b\r\nCookie: c=d\r\n\r\n"
            % origin.port
        ]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"])
async def test_every_method(method: str) -> None:
    heads: list[bytes] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + (b"" if method == "HEAD" else b"hi")
    async with scripted_origin(answering(answer, heads=heads)) as origin, running_proxies("ok.test") as proxies:
        found = await proxies.ask_http(once(origin, "ok.test", method=method))
        assert found.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n") and found.endswith(answer[-2:])
        assert heads[0].startswith(method.encode() + b" / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "passed_on"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"),
        (
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: x\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 99\r\nConnection: close\r\n\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil close", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil close"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nold"),
        (b"HTTP/1.1 200 OK\n\nbare LF", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbare LF"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
            b"2;x=y\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            b"2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
        ),
        (
            b"HTTP/1.1 200 OK\r\nX-Sandboxd-Decision: denied; rule=evil\r\nKeep-Alive: 1\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK,
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
        ),
    ],
)
async def test_answers_are_written_anew(answer: bytes, passed_on: bytes) -> None:
    async with scripted_origin(answering(answer)) as origin, running_proxies("ok.test") as proxies:
        assert await proxies.ask_http(once(origin, "ok.test")) == passed_on


async def test_an_http_1_0_client_gets_no_chunks_or_interim_answers() -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    heads: list[bytes] = []
    async with scripted_origin(answering(answer, heads=heads)) as origin, running_proxies("ok.test") as proxies:
        request = b"GET http://ok.test:%d/ HTTP/1.0\r\nExpect: 100-continue\r\n\r\n" % origin.port
        assert await proxies.ask_http(request) == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi"
        assert b"HTTP/1.1\r\n" in heads[0] and b"Expect" not in heads[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"nonsense\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b\r\n", b"HTTP/2 200\r\n\r\n",
    ],
)  # fmt: skip
async def test_answers_that_are_none_become_502(answer: bytes) -> None:
    async with scripted_origin(answering(answer)) as origin, running_proxies("ok.test") as proxies:
        found = await proxies.ask_http(once(origin))
        assert found.startswith(b"HTTP/1.1 502 ") and found.count(HEAD_END) == 1
        assert b"X-Sandboxd-Error: " in found and b"X-Sandboxd-Decision" not in found


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nxyz\r\n",
    ],
)
async def test_an_answer_that_breaks_off_resets_the_client(answer: bytes) -> None:
    async with scripted_origin(answering(answer)) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        writer.write(get(origin))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await finish(writer)


# bodies of requests


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the framing headers, and the raw bytes of a chunked body or the body of a given length."""
    while True:
        try:
            head = await reader.readuntil(HEAD_END)
        except asyncio.IncompleteReadError:
            return
        lower = head.lower()
        if b"expect: 100-continue" in lower:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if b"transfer-encoding: chunked" in lower:
            body = await reader.readuntil(b"0\r\n\r\n")
        else:
            length = lower.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.parametrize("piece", [1, 7, 100_000])
async def test_bodies_of_requests(piece: int) -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        for headers, body, received in (
            (b"Content-Length: 5", b"hello", b"hello"),
            (b"Content-Length: 0", b"", b""),
            (b"Transfer-Encoding: chunked", b"5;x\r\nhello\r\n00\r\n\r\n", b"hello"),
        ):
            reader, writer = await proxies.http()
            data = once(origin, "ok.test", headers, method="POST") + body
            for place in range(0, len(data), piece):
                writer.write(data[place : place + piece])
                await writer.drain()
            answer = (await reader.read()).partition(HEAD_END)[2]
            assert (
                answer.replace(b"\r\n", b"").replace(b"5hello0", b"hello").replace(b"1h1e1l1l1o0", b"hello") == received
            )
            await finish(writer)


async def test_expect_100_continue_is_the_origins_to_answer() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        writer.write(get(origin, "ok.test", b"Content-Length: 5", b"Expect: 100-continue", method="PUT"))
        assert await reader.readuntil(HEAD_END) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
        await finish(writer)


@pytest.mark.parametrize("size", [70_000, 5_000_000])
async def test_a_large_upload_and_its_echo(size: int) -> None:
    data = random.Random(size).randbytes(size)
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        request = once(origin, "ok.test", b"Content-Length: %d" % size, method="POST")
        answer = await proxies.ask_http(request + data)
        assert hashlib.sha256(answer.partition(HEAD_END)[2]).digest() == hashlib.sha256(data).digest()


async def test_an_early_answer_to_an_upload_arrives() -> None:
    async with (
        scripted_origin(answering(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")) as origin,
        running_proxies("ok.test") as proxies,
    ):
        reader, writer = await proxies.http()
        writer.write(get(origin, "ok.test", b"Content-Length: 99999999", method="POST") + b"x" * 100_000)
        assert (await reader.readuntil(b"big")).startswith(b"HTTP/1.1 413 ")
        assert await reader.read() == b"", "the rest of the body could be taken for a request"
        await finish(writer)


async def test_a_refused_upload_reads_its_refusal() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        request = get(origin, "no.test", b"Content-Length: 3000000", method="POST")
        answer = await proxies.ask_http(request + b"x" * 3_000_000)
        assert answer.startswith(b"HTTP/1.1 403 ") and b"Connection: close" in answer


@pytest.mark.parametrize(
    "body", [b"x\r\nhello", b"5\r\nhelloX\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"0\r\nA : b\r\n\r\n"]
)
async def test_a_malformed_body_is_not_passed_on_as_a_whole(body: bytes) -> None:
    complete: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        complete.append(await reader.readuntil(b"0\r\n\r\n"))

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(once(origin, "ok.test", b"Transfer-Encoding: chunked", method="POST") + body)
        assert answer.startswith(b"HTTP/1.1 400 ")
    assert complete == []


async def test_a_client_that_leaves_in_mid_upload_ends_the_origin() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        _, writer = await proxies.http()
        writer.write(get(origin, "ok.test", b"Content-Length: 100", method="POST") + b"part")
        await wait_until_async(lambda: origin.connections)
        await finish(writer)
        await wait_until_async(lambda: origin.faults, "the origin sees the end")


# several requests on one connection


async def test_keep_alive_to_the_client_and_to_the_origin() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        for number in range(5):
            writer.write(get(origin, path=f"/{number}"))
            assert await reader.readuntil(HEAD_END) == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        assert origin.connections == 1
        await finish(writer)


async def test_a_second_request_in_one_write_is_decided_by_itself() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test", "also.test") as proxies:
        reader, writer = await proxies.http()
        writer.write(get(origin) + get(origin, "also.test") + get(origin, "no.test") + get(origin))
        statuses = []
        for _ in range(4):
            head = await reader.readuntil(HEAD_END)
            statuses.append(head[9:12])
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        assert statuses == [b"200", b"200", b"403", b"200"]
        assert origin.connections == 3, "one for each change of host"
        assert [blocked.host for blocked in proxies.blocked] == ["no.test"]
        await finish(writer)


@pytest.mark.parametrize(
    "headers",
    [
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5", b"Content-Length: 0"],
        [b"Content-Length: 5, 0"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding : chunked"],
        [b"Transfer-Encoding: chunked\x0b"],
        [b"X: y", b" Transfer-Encoding: chunked"],
        [b"Content-Length: +5"],
        [b"X: y\nTransfer-Encoding: chunked"],
        [b"Host: no.test"],
    ],
)
@pytest.mark.parametrize("piece", [1, 100_000])
async def test_a_request_with_two_readings_leads_nowhere(headers: list[bytes], piece: int) -> None:
    """What follows would be a second request in one of the readings. Neither is dialled."""
    async with scripted_origin(echo) as origin, running_proxies("*") as proxies:
        reader, writer = await proxies.http()
        data = get(origin, "ok.test", *headers, method="POST") + b"0\r\n\r\n" + get(origin, "no.test")
        for place in range(0, len(data), piece):
            writer.write(data[place : place + piece])
        answer = await reader.read()
        assert answer[9:12] in (b"400", b"501") and answer.count(b"HTTP/1.1 ") == 1
        assert origin.connections == 0
        await finish(writer)


async def test_bytes_after_a_body_are_only_the_next_request() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(HEAD_END))
        await reader.readexactly(5)
        writer.write(OK)
        assert await reader.read(1) == b"", "the second request must not arrive on the connection of the first"

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(
            get(origin, "ok.test", b"Content-Length: 5", method="POST")
            + b"hello"
            + once(origin, "no.test", method="POST")
        )
        assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 403 ") == 1
        assert origin.connections == 1


async def test_a_kept_connection_that_the_origin_closed_is_replaced() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD_END)
        writer.write(OK)
        await writer.drain()

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        for number in range(1, 4):
            writer.write(get(origin))
            await reader.readuntil(b"hi")
            assert origin.connections == number
        await finish(writer)


async def test_a_closed_kept_connection_is_replaced_once() -> None:
    seen = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        first = True
        while True:
            await reader.readuntil(HEAD_END)
            seen += 1
            if not first:
                return  # without an answer
            writer.write(OK)
            first = False

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        for _ in range(2):
            writer.write(get(origin))
            await reader.readuntil(b"hi")
        assert (origin.connections, seen) == (2, 3)
        await finish(writer)


async def test_unasked_bytes_of_an_origin_answer_no_other_request() -> None:
    async with (
        scripted_origin(answering(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", close=False)) as origin,
        running_proxies("ok.test", "also.test") as proxies,
    ):
        reader, writer = await proxies.http()
        for host in ("ok.test", "ok.test", "also.test"):
            writer.write(get(origin, host))
            assert (await reader.readuntil(b"hi")).count(b"HTTP/1.1") == 1
        assert origin.connections == 3
        await finish(writer)


async def test_many_short_requests() -> None:
    """200 one after the other, 100 at once."""
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        for _ in range(200):
            assert (await proxies.ask_http(once(origin, "ok.test"))).startswith(b"HTTP/1.1 200 ")
        answers = await asyncio.gather(*(proxies.ask_http(once(origin, "ok.test")) for _ in range(100)))
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        await wait_until_async(lambda: proxies.server.connections == 0)


# streams


async def test_server_sent_events_are_not_delayed() -> None:
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD_END)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            await go.wait()
            go.clear()
            writer.write(b"9\r\ndata: %d\n\n\r\n" % number)

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        writer.write(get(origin))
        assert b"text/event-stream" in await reader.readuntil(HEAD_END)
        for number in range(3):
            go.set()
            assert await reader.readexactly(14) == b"9\r\ndata: %d\n\n\r\n" % number
        await finish(writer)


async def test_an_upgrade_becomes_a_tunnel() -> None:

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(HEAD_END)
        assert b"Upgrade: websocket\r\n" in head and b"Connection: Upgrade\r\n" in head
        assert b"Sec-WebSocket-Key: k\r\n" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst")
        writer.write(b"echo " + await reader.readexactly(5))

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        upgrade = (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: k")
        writer.write(get(origin, "ok.test", *upgrade) + b"frame")
        assert (await reader.readuntil(HEAD_END)) == (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert await reader.readexactly(15) == b"firstecho frame"
        await finish(writer)


async def test_an_upgrade_that_the_origin_declines_is_an_answer() -> None:
    async with scripted_origin(answering(OK)) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(once(origin, "ok.test", b"Connection: upgrade, close", b"Upgrade: websocket"))
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"hi")


# CONNECT


@pytest.mark.parametrize("size", [0, 7_000, 65_536, 1_000_000, 5_000_000])
async def test_a_tunnel_loses_nothing_when_the_origin_closes_at_once(size: int) -> None:
    data = random.Random(size).randbytes(size)
    async with (
        scripted_origin(answering(b"HTTP/1.1 200 OK\r\n\r\n" + data)) as origin,
        running_proxies("ok.test") as proxies,
    ):
        for half_close in (False, True, False, True):
            wire = await proxies.tunnel(f"ok.test:{origin.port}")
            answer = await exchange(wire, b"GET / HTTP/1.1\r\n\r\n", half_close=half_close)
            assert hashlib.sha256(answer[19:]).digest() == hashlib.sha256(data).digest()


async def test_bytes_sent_ahead_of_the_answer_to_connect_arrive() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(
            b"CONNECT ok.test:%d HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello" % origin.port,
            half_close=True,
        )
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
        assert answer.endswith(b"hello")


async def test_what_is_inside_a_tunnel_is_nobodys_business() -> None:

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        data = b"\x16\x03\x01PRI * HTTP/2.0\r\n\r\nGET http://no.test/ HTTP/1.1\r\n\r\n\0\xff"
        wire = await proxies.tunnel(f"ok.test:{origin.port}")
        assert await exchange(wire, data, half_close=True) == data


async def test_host_of_connect_does_not_count() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(b"CONNECT no.test:%d HTTP/1.1\r\nHost: ok.test\r\n\r\n" % origin.port)
        assert answer.startswith(b"HTTP/1.1 403 ") and origin.connections == 0
        reader, writer = await proxies.http()
        writer.write(b"CONNECT ok.test:%d HTTP/1.1\r\nHost: no.test\r\n\r\n" % origin.port)
        assert (await reader.readuntil(HEAD_END)).startswith(b"HTTP/1.1 200 ")
        await finish(writer)


# faults of the way out


@pytest.mark.parametrize("method", ["GET", "CONNECT", "POST"])
async def test_faults_of_the_way_out_have_a_status_and_a_reason(method: str) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    def request(host: str, port: int) -> bytes:
        target = f"{host}:{port}" if method == "CONNECT" else f"http://{host}:{port}/"
        return f"{method} {target} HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()

    async with running_proxies("ok.test", "gone.test") as proxies:
        port = closed_port()
        refused = await proxies.ask_http(request("ok.test", port))
        assert refused.startswith(b"HTTP/1.1 502 ") and b"X-Sandboxd-Error: connection_refused" in refused
        assert b"ok.test:%d (127.0.0.1) refused the connection" % port in refused
        gone = await proxies.ask_http(request("gone.test", 80))
        assert gone.startswith(b"HTTP/1.1 502 ") and b"X-Sandboxd-Error: dns_failed" in gone
        assert proxies.blocked == [] and proxies.names.asked == ["gone.test"]
    limits = ProxyLimits(connect_s=0.01, linger_s=0.1)
    async with running_proxies("ok.test", limits=limits, connector=hang) as proxies:  # type: ignore[arg-type]
        silent = await proxies.ask_http(request("ok.test", 80))
        assert silent.startswith(b"HTTP/1.1 504 ") and b"X-Sandboxd-Error: connect_timeout" in silent


async def test_an_origin_that_never_answers() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    limits = ProxyLimits(response_s=0.02, linger_s=0.1)
    async with scripted_origin(silent) as origin, running_proxies("ok.test", limits=limits) as proxies:
        for headers, body in (([], b""), ([b"Content-Length: 2"], b"hi")):
            answer = await proxies.ask_http(once(origin, "ok.test", *headers, method="POST") + body)
            assert answer.startswith(b"HTTP/1.1 504 ") and b"X-Sandboxd-Error: response_timeout" in answer


# clients that dawdle or leave


async def test_a_head_that_does_not_come_to_an_end() -> None:
    async with running_proxies("ok.test", limits=ProxyLimits(head_s=0.02, linger_s=0.1)) as proxies:
        assert (await proxies.ask_http(b"GET http://ok.test/ HT")).startswith(b"HTTP/1.1 408 ")
        assert await proxies.ask_http(b"") == b"", "nothing was asked, nothing is answered"
        assert await proxies.ask_http(b"\r\n") == b""


async def test_a_head_that_is_too_large() -> None:
    async with running_proxies("ok.test") as proxies:
        request = b"GET http://ok.test/ HTTP/1.1\r\nCookie: " + b"x" * 70_000 + b"\r\n\r\n"
        assert (await proxies.ask_http(request)).startswith(b"HTTP/1.1 431 ")


async def test_an_idle_connection_ends() -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test", limits=ProxyLimits(idle_s=0.02, linger_s=0.1)) as proxies,
    ):
        answer = await proxies.ask_http(get(origin))
        assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def test_a_client_that_half_closes_still_gets_its_answer() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        answer = await proxies.ask_http(get(origin), half_close=True)
        assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def test_a_client_that_left_while_the_origin_thinks() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD_END)
        assert await reader.read() == b""
        gone.set()

    gone = asyncio.Event()
    limits = ProxyLimits(half_closed_s=0.02, linger_s=0.1)
    async with scripted_origin(silent) as origin, running_proxies("ok.test", limits=limits) as proxies:
        _, writer = await proxies.http()
        writer.write(get(origin))
        await wait_until_async(lambda: origin.connections)
        await finish(writer)
        await asyncio.wait_for(gone.wait(), 30)
        await wait_until_async(lambda: proxies.server.connections == 0)


# questions: the seam


def person(answer: Decision, asked: list[str]) -> Callable[[Host, int, Decision], Awaitable[Decision]]:
    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        asked.append(host.authority(port))
        await asyncio.sleep(0)
        return answer

    return ask


async def test_an_open_host_becomes_a_question() -> None:
    asked: list[str] = []
    yes = Decision(Behavior.ALLOW, Reason.GRANTED, "yes")
    no = Decision(Behavior.DENY, Reason.PROMPT_DENIED, "a person said no")
    async with scripted_origin(echo) as origin, running_proxies("ok.test", ask=person(yes, asked)) as proxies:
        await finish((await proxies.tunnel(f"ask.test:{origin.port}"))[1])
        assert (await proxies.ask_http(once(origin, "ask.test"))).startswith(b"HTTP/1.1 200 ")
        assert (await proxies.ask_http(once(origin, "ok.test"))).startswith(b"HTTP/1.1 200 ")
        assert asked == [f"ask.test:{origin.port}"] * 2
    async with scripted_origin(echo) as origin, running_proxies(ask=person(no, asked)) as proxies:
        answer = await proxies.ask_http(b"CONNECT ask.test:%d HTTP/1.1\r\n\r\n" % origin.port)
        assert answer.startswith(b"HTTP/1.1 403 ") and b"reason=promptDenied" in answer
        assert origin.connections == 0 and len(proxies.blocked) == 1


WAITING = {
    "plain": b"GET http://ask.test:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n",
    "connect": b"CONNECT ask.test:%d HTTP/1.1\r\n\r\n",
    "socks": b"\x05\x01\x00\x05\x01\x00\x03\x08ask.test",
}


def asking_for(kind: str, port: int) -> bytes:
    return WAITING[kind] + port.to_bytes(2, "big") if kind == "socks" else WAITING[kind] % port


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("half_closed_s", [0.01, 1000.0])
async def test_a_question_ends_with_the_client_that_waits(kind: str, half_closed_s: float) -> None:
    """Who is gone answers the first byte of an answer with a reset, so there is no wait for the limit."""
    asked, dropped = asyncio.Event(), asyncio.Event()

    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()
        raise AssertionError

    limits = ProxyLimits(half_closed_s=half_closed_s)
    async with scripted_origin(echo) as origin, running_proxies(ask=ask, limits=limits) as proxies:
        reader, writer = await (proxies.socks() if kind == "socks" else proxies.http())
        writer.write(asking_for(kind, origin.port))
        if kind == "socks":
            assert await reader.readexactly(2) == b"\x05\x00"
        await asyncio.wait_for(asked.wait(), 30)
        await finish(writer)
        await asyncio.wait_for(dropped.wait(), 30)
        assert origin.connections == 0
        await wait_until_async(lambda: proxies.server.connections == 0)


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_half_closed_client_gets_the_whole_answer(kind: str, allowed: bool) -> None:
    reached = asyncio.Event()
    verdict = Decision(Behavior.ALLOW if allowed else Behavior.DENY, Reason.GRANTED, "so it is")

    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        await asyncio.wait_for(reached.wait(), 30)
        return verdict

    async with scripted_origin(answering(OK)) as origin, running_proxies(ask=ask) as proxies:
        reader, writer = await (proxies.socks() if kind == "socks" else proxies.http())
        writer.write(asking_for(kind, origin.port) + (get(origin) if kind != "plain" else b""))
        writer.write_eof()
        first = await reader.readexactly(3 if kind == "socks" else 1)  # SOCKS: method, and a byte of the reply
        reached.set()
        answer = first + await reader.read()
        await finish(writer)
    if kind == "socks":
        reply = b"\x05\x00\x05" + (b"\x00" if allowed else b"\x02") + b"\x00\x01\0\0\0\0\0\0"
        assert answer == reply + (OK if allowed else b"")
    elif allowed:
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"200 ") == (2 if kind == "connect" else 1)
        assert answer.endswith(b"\r\n\r\nhi")
    else:
        assert answer.startswith(b"HTTP/1.1 403 Forbidden by sandboxd: so it is\r\n")
