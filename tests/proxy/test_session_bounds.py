"""Limits of bytes and of names: nothing above a limit leaves, by whichever way, and a yes allows as much again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from sandboxd.handover.record import read_record, write_record
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostPattern, parse_host
from sandboxd.policy.model import NetworkPolicy, UploadRule
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.session_bounds import BoundsRecord, Meter, SessionBounds
from sandboxd.proxy.streams.relay import SocketRelay
from support.proxies import SETTINGS, Proxies, Wire, finish, rules, running_proxies, scripted_origin
from support.waiting import wait_until_async


def limit(pattern: str, most: int) -> UploadRule:
    return UploadRule(HostPattern.parse(pattern), most, SETTINGS)


LIMITED = NetworkPolicy(uploads=(limit("ok.test", 100_000), limit("*", 150_000)))


async def connect(proxies: Proxies, port: int) -> Wire:
    return await proxies.tunnel(f"ok.test:{port}")


async def socks(proxies: Proxies, port: int) -> Wire:
    return await proxies.socks_tunnel(b"ok.test", port)


async def plain(proxies: Proxies, port: int) -> Wire:
    wire = await proxies.http()
    head = f"POST http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 10000000\r\n\r\n"
    wire[1].write(head.encode())
    return wire


def parent(port: int) -> dict[str, Any]:
    """A parent proxy, which alone knows names."""
    return {"parent": f"http://127.0.0.1:{port}", "pinned": ()}


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through a parent proxy"])
@pytest.mark.parametrize("enter", [connect, socks, plain])
async def test_not_more_than_the_limit_goes_out(
    enter: Callable[[Proxies, int], Awaitable[Wire]], through: bool
) -> None:
    received: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(received)
        if through and enter is not plain:  # what is said to the parent proxy itself does not count
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"CONNECT ok.test:")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        received.append(0)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                received[place] += len(data)

    async with (
        scripted_origin(count) as origin,
        running_proxies("ok.test", network=LIMITED, **(parent(origin.port) if through else {})) as proxies,
    ):
        reader, writer = await enter(proxies, origin.port)
        writer.write(b"x" * 200_000)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await finish(writer)
        await wait_until_async(lambda: sum(received) == 100_000 or enter is plain, "all that is allowed has come")
        assert sum(received) <= 100_000
        answer = await proxies.ask_http(f"CONNECT ok.test:{origin.port} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ") and b"uploadLimit" in answer
        assert {one.decision.reason for one in proxies.blocked} == {Reason.UPLOAD_LIMIT}
        assert proxies.blocked[0].decision.rule == "ok.test" and origin.connections == 1


@pytest.mark.parametrize("splice", [True, False])
@pytest.mark.parametrize("size", [1, 65_536, 100_000])
async def test_a_relay_sends_exactly_what_a_limit_allows(splice: bool, size: int) -> None:
    (client, left), (right, server) = socket.socketpair(), socket.socketpair()
    for sock in (client, left, right, server):
        sock.setblocking(False)
    bounds, told = SessionBounds(), list[Decision]()
    meter = Meter(bounds, parse_host("ok.test"), 443, told.append)
    meter.follow(NetworkPolicy(uploads=(limit("*", size),)))
    loop = asyncio.get_running_loop()
    relay = asyncio.create_task(SocketRelay(left, right, splice=splice, meter=meter).run(b"a", b""))
    sending = asyncio.create_task(loop.sock_sendall(client, b"x" * size))  # with the first byte, one too many
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := await loop.sock_recv(server, 65536):
            got += data
    await asyncio.gather(sending, relay, return_exceptions=True)
    assert len(got) == size and bounds.total == size and meter.left == 0
    assert [one.reason for one in told] == [Reason.UPLOAD_LIMIT]
    client.close()
    server.close()


class Resolver:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def resolve(self, host: str) -> list[object]:
        self.asked.append(host)
        return [ip_address("203.0.113.5")]


def gate_of(network: NetworkPolicy, answers: list[bool], resolver: Resolver, bounds: SessionBounds) -> Gate:
    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        yes = answers.pop(0)
        behavior = Behavior.ALLOW if yes else Behavior.DENY
        return Decision(behavior, Reason.GRANTED if yes else Reason.PROMPT_DENIED, decision.text)

    return Gate(lambda: network, ask if answers else None, resolver, bounds=bounds)  # type: ignore[arg-type]


async def test_new_names_of_a_domain_and_of_a_session() -> None:
    """Names that were looked up before, addresses and denied names do not count."""
    network = NetworkPolicy(allowed=rules("*"), denied=rules("no.test"), max_new_names=3)
    resolver, bounds = Resolver(), SessionBounds()
    gate = gate_of(network, [], resolver, bounds)
    for turn in (1, 2):
        for name in ("a", "b.a", "c"):
            assert (await gate.admit(parse_host(f"{name}.tunnel.example"), 443)).decision.allowed, turn
    await gate.admit(parse_host("9.9.9.9"), 443)
    await gate.admit(parse_host("no.test"), 443)
    refused = (await gate.admit(parse_host("d.tunnel.example"), 443)).decision
    assert (refused.behavior, refused.reason) == (Behavior.DENY, Reason.NAME_LIMIT) and "tunnel.example" in refused.text
    assert "d.tunnel.example" not in resolver.asked and bounds.names == 3
    for owner in range(21):  # of unrelated owners, below one suffix
        assert (await gate.admit(parse_host(f"x.owner{owner}.com"), 443)).decision.allowed
    assert (await gate.admit(parse_host("x.another.com"), 443)).decision.reason is Reason.NAME_LIMIT
    assert bounds.names == 24 == len(set(resolver.asked))
    again = SessionBounds()
    again.resume(read_record(BoundsRecord, *write_record(bounds.record)))
    resumed = gate_of(network, [], resolver, again)
    assert (await resumed.admit(parse_host("a.tunnel.example"), 443)).decision.allowed
    assert (await resumed.admit(parse_host("d.tunnel.example"), 443)).decision.reason is Reason.NAME_LIMIT


@pytest.mark.parametrize("strict", [False, True])
async def test_a_yes_allows_as_much_again(strict: bool) -> None:
    network = NetworkPolicy(
        allowed=rules("*.tunnel.example"), max_new_names=1, uploads=(limit("*", 10),), strict_allowlist=strict
    )
    bounds = SessionBounds()
    gate = gate_of(network, [True, False, True], Resolver(), bounds)
    host, other = parse_host("a.tunnel.example"), parse_host("b.tunnel.example")
    assert (await gate.admit(host, 443)).decision.allowed
    if strict:
        assert (await gate.admit(other, 443)).decision.reason is Reason.NAME_LIMIT
        return
    assert (await gate.admit(other, 443)).decision.allowed
    refused = (await gate.admit(parse_host("c.tunnel.example"), 443)).decision
    assert refused.reason is Reason.PROMPT_DENIED
    bounds.count(network.uploads, 10)
    assert gate.may_ask(host, 443) and (await gate.admit(host, 443)).decision.allowed
    assert bounds.left(network.uploads) == 10 and not gate.may_ask(host, 443)


async def test_a_new_limit_holds_for_open_connections() -> None:
    got: list[bytes] = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                got.append(data)
                writer.write(data)

    async with scripted_origin(read) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.tunnel(f"ok.test:{origin.port}")
        writer.write(b"abc")
        assert await reader.readexactly(3) == b"abc"
        proxies.policy = replace(proxies.policy, uploads=(limit("ok.test", 5),))
        assert proxies.server.recheck() == 0
        writer.write(b"1234567")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await finish(writer)
        await wait_until_async(lambda: b"".join(got) == b"abc12345", "all that is allowed has come")
