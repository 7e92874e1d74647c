"""Requests for a server of the sandbox itself that come to the proxies all the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandboxd.errors import LaunchError
from sandboxd.policy.model import PortRange
from support.inside import FakeInside
from support.ports import closed_port
from support.proxies import exchange, finish, running_proxies, scripted_origin

OWN = ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1", "desk.test", "Desk.TEST"]


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (line := await reader.readline()).strip():
        if line.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ninside")


@pytest.mark.parametrize("host", OWN)
async def test_they_reach_it_whatever_the_rules(host: str) -> None:
    async with scripted_origin(greet) as origin, running_proxies(denied=["*"]) as proxies:
        proxies.server.reach(FakeInside(), lambda: "desk.test")
        authority = f"{host}:{origin.port}".encode()
        request = b"GET http://%b/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % authority
        assert (await proxies.ask_http(request)).endswith(b"inside")
        wire = await proxies.tunnel(authority.decode())
        assert (await exchange(wire, b"GET / HTTP/1.1\r\n\r\n", half_close=True)).endswith(b"inside")
        if host[0].isalpha():
            wire = await proxies.socks_tunnel(host.encode(), origin.port)
            assert (await exchange(wire, b"GET / HTTP/1.1\r\n\r\n", half_close=True)).endswith(b"inside")
        assert proxies.blocked == [] and proxies.names.asked == []
        assert proxies.server.recheck() == 0, "policy has nothing to say about it"


@pytest.mark.parametrize("host", ["ok.test", "no.test", "10.0.0.1", "0.0.0.0", "localhost.no.test", "xlocalhost"])
async def test_nothing_else_does(host: str) -> None:
    async with running_proxies(denied=["*"]) as proxies:
        inside = FakeInside()
        proxies.server.reach(inside)
        answer = await proxies.ask_http(b"CONNECT %b:80 HTTP/1.1\r\n\r\n" % host.encode())
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert inside.tried == []


async def test_where_nothing_listens_inside_the_rules_decide() -> None:
    async with scripted_origin(greet) as origin, running_proxies(f"127.0.0.1:{origin.port}") as proxies:
        closed = closed_port()
        proxies.server.reach(FakeInside(closed_to={closed, origin.port}))
        answer = await proxies.ask_http(b"CONNECT localhost:%d HTTP/1.1\r\n\r\n" % closed)
        assert answer.startswith(b"HTTP/1.1 403 ") and b"localAddress" in answer
        wire = await proxies.tunnel(f"127.0.0.1:{origin.port}")  # the host's, which a rule names
        assert (await exchange(wire, b"GET / HTTP/1.1\r\n\r\n", half_close=True)).endswith(b"inside")
        proxies.server.reach(FakeInside(LaunchError("network_not_set_up", "the sandbox has ended", hint="")))
        answer = await proxies.ask_http(b"CONNECT localhost:%d HTTP/1.1\r\n\r\n" % closed)
        assert answer.startswith(b"HTTP/1.1 403 ")


async def test_a_port_of_the_host_is_checked_before_the_connect() -> None:
    """The connection would be captured, and come back to us."""
    async with scripted_origin(greet) as origin, running_proxies() as proxies:
        proxies.policy = replace(proxies.policy, allow_local_ports=(PortRange(origin.port, origin.port),))
        inside = FakeInside(closed_to={origin.port})
        proxies.server.reach(inside)
        await proxies.ask_http(b"CONNECT localhost:%d HTTP/1.1\r\n\r\n" % origin.port)
        assert inside.tried == []
        inside.closed_to.clear()
        await finish((await proxies.tunnel(f"localhost:{origin.port}"))[1])
        assert inside.tried == ["127.0.0.1"]


async def test_our_own_ports_are_no_servers() -> None:
    async with running_proxies() as proxies:
        inside = FakeInside()
        proxies.server.reach(inside)
        for port in (proxies.http_port, proxies.socks_port):
            answer = await proxies.ask_http(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
            assert answer.startswith(b"HTTP/1.1 403 ")
        assert inside.tried == []
