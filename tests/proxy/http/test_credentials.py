"""A proxy with a password: clients with it get through, others get 407 or a refused handshake."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest

from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.model import HostRule, NetworkPolicy
from sandboxd.proxy.dial import Dialer, PinnedResolver, SystemResolver
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.http.credentials import is_authorized, parse_basic
from sandboxd.proxy.server import ProxyServer
from sandboxd.settings.origins import BUILT_IN
from support.origin import Origin
from support.proxies import Blocked


def basic(user: bytes, password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(user + b":" + password)


RIGHT = basic(b"sandboxd", b"secret")


def check(user: bytes, password: bytes) -> bool:
    return (user, password) == (b"sandboxd", b"secret")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (RIGHT, (b"sandboxd", b"secret")),
        (b"basic   " + base64.b64encode(b"a:b:c"), (b"a", b"b:c")),
        (basic(b"", b""), (b"", b"")),
        (b"Bearer x", None),
        (b"Basic", None),
        (b"Basic " + base64.b64encode(b"nocolon"), None),
        (b"Basic not*base64", None),
        (b"Basic YQ==YQ==", None),
    ],
)
def test_basic_fields(value: bytes, expected: tuple[bytes, bytes] | None) -> None:
    assert parse_basic(value) == expected


def test_exactly_one_field_counts() -> None:
    field = (b"Proxy-Authorization", RIGHT)
    assert is_authorized((field,), check)
    assert not is_authorized((), check)
    assert not is_authorized((field, field), check)
    assert not is_authorized(((b"Authorization", RIGHT),), check)


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[int, int, Blocked]]:
    """Ports of an HTTP and a SOCKS proxy that allow `ok.test`."""
    blocked = Blocked()
    resolver = PinnedResolver({"ok.test": ["127.0.0.1"]}, SystemResolver())
    network = NetworkPolicy(allowed=(HostRule(HostPattern.parse("ok.test"), BUILT_IN),))
    server = ProxyServer(Gate(lambda: network, None, resolver, resolver.pins), Dialer(), blocked.add)
    http, socks = listener(), listener()
    server.serve(http, socks, check)
    try:
        yield http.getsockname()[1], socks.getsockname()[1], blocked
    finally:
        await server.aclose()


def listener() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    made.setblocking(False)
    return made


async def exchange(port: int, *portions: bytes) -> bytes:
    """Sends each portion after an answer to the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        answer = b""
        for portion in portions[:-1]:
            writer.write(portion)
            answer += await reader.read(4096)
        writer.write(portions[-1])
        writer.write_eof()
        return answer + await reader.read()


@pytest.fixture
def wrong() -> Iterator[list[bytes]]:
    yield [b"", b"Proxy-Authorization: " + basic(b"sandboxd", b"other") + b"\r\n", b"Proxy-Authorization: Basic ?\r\n"]


async def test_http_without_the_password(origin: Origin, wrong: list[bytes]) -> None:
    async with proxy() as (http, _, blocked):
        for field in wrong:
            for line in (f"GET http://ok.test:{origin.port}/ HTTP/1.1", f"CONNECT ok.test:{origin.port} HTTP/1.1"):
                answer = await exchange(http, line.encode() + b"\r\nHost: ok.test\r\n" + field + b"\r\n")
                assert answer.startswith(b"HTTP/1.1 407 ")
                assert b'Proxy-Authenticate: Basic realm="sandboxd"' in answer
                assert b"secret" not in answer
        assert not origin.connections and not blocked


async def test_http_with_the_password(origin: Origin) -> None:
    async with proxy() as (http, _, _):
        head = f"GET http://ok.test:{origin.port}/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n".encode()
        answer = await exchange(http, head + b"Proxy-Authorization: " + RIGHT + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(origin.body)
        refused = await exchange(
            http, b"CONNECT no.test:443 HTTP/1.1\r\nHost: no.test\r\nProxy-Authorization: " + RIGHT + b"\r\n\r\n"
        )
        assert refused.startswith(b"HTTP/1.1 403 ")


def socks_request(port: int) -> bytes:
    return b"\x05\x01\x00\x03\x07ok.test" + port.to_bytes(2, "big")


async def test_socks(origin: Origin) -> None:
    async with proxy() as (_, socks, _):
        assert await exchange(socks, b"\x05\x01\x00" + socks_request(origin.port)) == b"\x05\xff"
        wrong = await exchange(socks, b"\x05\x02\x00\x02", b"\x01\x08sandboxd\x05other" + socks_request(origin.port))
        assert wrong == b"\x05\x02\x01\x01"
        assert not origin.connections
        right = await exchange(
            socks,
            b"\x05\x01\x02",
            b"\x01\x08sandboxd\x06secret",
            socks_request(origin.port),
            b"GET / HTTP/1.0\r\nHost: ok.test\r\n\r\n",
        )
        assert right.startswith(b"\x05\x02\x01\x00\x05\x00") and right.endswith(origin.body)
