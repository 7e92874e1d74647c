"""The SOCKS5 proxy on a socket. What the handshake's bytes mean is in test_socks5.py."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from sandboxd.policy.decision import Reason
from sandboxd.proxy.limits import ProxyLimits
from support.ports import closed_port
from support.proxies import exchange, finish, running_proxies, scripted_origin
from support.waiting import wait_until_async

GREETING = b"\x05\x01\x00"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks first, as ssh and mail servers do, then sends back what it gets."""
    writer.write(b"banner\r\n")
    while data := await reader.read(65536):
        writer.write(data)


def request(name: bytes, port: int, command: int = 1) -> bytes:
    return bytes([5, command, 0, 3, len(name)]) + name + port.to_bytes(2, "big")


@pytest.mark.parametrize("login", [GREETING, b"\x05\x01\x02\x01\x04user\x04pass", b"\x05\x02\x00\x02"])
async def test_a_tunnel_in_which_the_server_speaks_first(login: bytes) -> None:
    """Git over ssh."""
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        answer = await exchange(
            await proxies.socks(), login + request(b"ok.test", origin.port) + b"SSH-2.0-x\r\n", half_close=True
        )
        assert answer.endswith(b"\x05\x00\x00\x01\0\0\0\0\0\0banner\r\nSSH-2.0-x\r\n")
        assert origin.connections == 1


@pytest.mark.parametrize(
    "target",
    [
        b"\x05\x01\x00\x01\x7f\x00\x00\x01", b"\x05\x01\x00\x03\x09127.0.0.1", b"\x05\x01\x00\x03\x0a2130706433",
        b"\x05\x01\x00\x04" + b"\0" * 10 + b"\xff\xff\x7f\x00\x00\x01",
    ],
)  # fmt: skip
async def test_addresses_need_a_rule_of_their_own(target: bytes) -> None:
    async with scripted_origin(echo) as origin:
        data = GREETING + target + origin.port.to_bytes(2, "big")
        async with running_proxies("*", "ok.test") as proxies:
            assert (await exchange(await proxies.socks(), data))[3] == 2
            assert origin.connections == 0
            assert [blocked.decision.reason for blocked in proxies.blocked] == [Reason.LOCAL_ADDRESS]
        async with running_proxies(f"127.0.0.1:{origin.port}") as proxies:
            answer = await exchange(await proxies.socks(), data + b"x", half_close=True)
            assert answer[3] == 0 and answer.endswith(b"banner\r\nx")


async def test_ipv6() -> None:
    async with running_proxies("[::1]") as proxies:
        port = closed_port()
        data = GREETING + b"\x05\x01\x00\x04" + b"\0" * 15 + b"\x01" + port.to_bytes(2, "big")
        assert (await exchange(await proxies.socks(), data))[3] in (3, 5), "dialled: refused, or no IPv6 here"


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (request(b"no.test", 443), 2),
        (request(b"a.no.test", 443), 2),
        (request(b"no.test", 443, command=2), 7),
        (request(b"ok.test", 443, command=3), 7),
        (request(b"no.test\0.ok.test", 443), 8),
        (request(b"ok.test\r\n", 443), 8),
        (request(b"", 443), 8),
        (request(b"x" * 255, 443), 8),
        (request(b"gone.test", 443), 4),
        (request(b"ok.test", 0), 1),
    ],
)
async def test_refusals_have_their_reply(data: bytes, reply: int) -> None:
    async with running_proxies("ok.test", "gone.test") as proxies:
        answer = await exchange(await proxies.socks(), GREETING + data)
        assert answer == b"\x05\x00" + bytes([5, reply, 0, 1]) + b"\0" * 6
        assert len(proxies.blocked) == (reply in (1, 2, 8))
        assert proxies.names.asked == (["gone.test"] if reply == 4 else [])


async def test_a_host_that_is_not_allowed_is_never_dialled() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        await exchange(await proxies.socks(), GREETING + request(b"no.test", origin.port))
        [blocked] = proxies.blocked
        assert (blocked.operation, blocked.host, blocked.port) == ("CONNECT", "no.test", origin.port)
        assert origin.connections == 0


async def test_one_decision_whatever_the_protocol() -> None:
    async with running_proxies("ok.test", denied=["no.test"]) as proxies:
        await proxies.ask_http(b"CONNECT no.test:443 HTTP/1.1\r\n\r\n")
        await exchange(await proxies.socks(), GREETING + request(b"NO.test.", 443))
        await proxies.ask_http(b"GET http://no.test:443/ HTTP/1.1\r\nConnection: close\r\n\r\n")
        first, second, third = proxies.blocked
        assert first == second
        assert (third.host, third.port, third.decision) == (first.host, first.port, first.decision)


async def test_faults_of_the_way_out() -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with running_proxies("ok.test") as proxies:
        assert (await exchange(await proxies.socks(), GREETING + request(b"ok.test", closed_port())))[3] == 5
    limits = ProxyLimits(connect_s=0.01, linger_s=0.1)
    async with running_proxies("ok.test", limits=limits, connector=hang) as proxies:  # type: ignore[arg-type]
        assert (await exchange(await proxies.socks(), GREETING + request(b"ok.test", 80)))[3] == 6


async def test_other_protocols_are_turned_away() -> None:
    async with running_proxies("ok.test") as proxies:
        assert await exchange(await proxies.socks(), b"\x04\x01\x00\x50\x7f\0\0\x01\0") == b"\x00\x5b" + b"\0" * 6
        assert b"SOCKS5" in await exchange(await proxies.socks(), b"GET http://ok.test/ HTTP/1.1\r\n\r\n")
        assert await exchange(await proxies.socks(), b"\x16\x03\x01") == b""


async def test_a_handshake_that_does_not_come_to_an_end() -> None:
    async with running_proxies("ok.test", limits=ProxyLimits(head_s=0.02, linger_s=0.1)) as proxies:
        assert await exchange(await proxies.socks(), GREETING + b"\x05\x01") == b"\x05\x00"
        assert await exchange(await proxies.socks(), b"") == b""
        await wait_until_async(lambda: proxies.server.connections == 0)


@pytest.mark.parametrize("piece", [1, 3, 1000])
async def test_a_handshake_in_pieces(piece: int) -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.socks()
        data = GREETING + request(b"ok.test", origin.port) + b"hello"
        for place in range(0, len(data), piece):
            writer.write(data[place : place + piece])
            await writer.drain()
        assert await reader.readexactly(12) == b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0"
        assert await reader.readuntil(b"hello") == b"banner\r\nhello"
        await finish(writer)


async def test_nothing_is_lost_when_the_origin_closes_at_once() -> None:
    data = random.Random(1).randbytes(1_000_000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        for half_close in (True, False) * 5:
            wire = await proxies.socks_tunnel(b"ok.test", origin.port)
            answer = await exchange(wire, b"", half_close=half_close)
            assert hashlib.sha256(answer).digest() == hashlib.sha256(data).digest()
