"""Published ports on real sockets: the network inside is played by loopback itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest

from sandboxd.errors import CallerError, HostError, LaunchError
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.hosts.publication import Publication
from sandboxd.proxy.fair_share import Turns
from sandboxd.runtime.servers import published_ports
from sandboxd.runtime.servers.published_ports import PublishedPorts
from support.inside import FakeInside
from support.ports import closed_port, free_port
from support.proxies import Wire, exchange, finish, scripted_origin
from support.waiting import wait_until_async

V4, V6 = ip_address("127.0.0.1"), ip_address("::1")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def published(*wanted: Publication) -> AsyncIterator[PublishedPorts]:
    ports = PublishedPorts(wanted, "test")
    try:
        yield ports
    finally:
        ports.close()


async def connect(ports: PublishedPorts, place: int = 0) -> Wire:
    one = ports.publications[place]
    return await asyncio.open_connection(str(one.address), one.port)


async def is_closed(wire: Wire) -> bool:
    try:
        return await wire[0].read() == b""
    except ConnectionResetError:
        return True
    finally:
        await finish(wire[1])


async def is_hung_up_on(ports: PublishedPorts) -> bool:
    try:
        return await is_closed(await connect(ports))
    except ConnectionError:
        return True


async def test_connections_reach_the_server_inside_in_both_directions() -> None:
    async with scripted_origin(echo) as origin, published(Publication(V4, 0, origin.port)) as ports:
        ports.serve(FakeInside())
        (one,) = ports.publications
        assert one.port > 0 and one.inner == origin.port
        sent = bytes(range(256)) * 4096
        reader, writer = await connect(ports)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent
        await finish(writer)
        wires = [await connect(ports) for _ in range(50)]
        assert [await exchange(wire, b"%d" % n, half_close=True) for n, wire in enumerate(wires)] == [
            b"%d" % n for n in range(50)
        ]


@pytest.mark.parametrize("address", [V4, V6])
async def test_a_server_on_either_loopback_address_is_found(address: IPAddress) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await echo(reader, writer)
        await finish(writer)

    server = await asyncio.start_server(serve, str(address), 0)
    async with server, published(Publication(V4, 0, server.sockets[0].getsockname()[1])) as ports:
        inside = FakeInside()
        ports.serve(inside)
        assert await exchange(await connect(ports), b"x", half_close=True) == b"x"
        assert inside.tried == ["127.0.0.1", "::1"][: address.version // 3]


async def test_connections_without_a_server_are_closed() -> None:
    async with published(Publication(V4, 0, closed_port())) as ports:
        assert await is_hung_up_on(ports), "there is no sandbox yet"
        inside = FakeInside()
        ports.serve(inside)
        assert await is_hung_up_on(ports), "nothing listens in it"
        assert inside.tried == ["127.0.0.1", "::1"]
        inside.fault = LaunchError("network_not_set_up", "the sandbox has ended", hint="")
        assert await is_hung_up_on(ports)


async def test_a_fault_ends_one_connection_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with published(Publication(V4, 0, 9)) as ports:
        inside = FakeInside(RuntimeError("boom"))
        ports.serve(inside)
        assert await is_hung_up_on(ports)
        await wait_until_async(lambda: "boom" in caplog.text)
        assert await is_hung_up_on(ports)


async def test_with_the_command_the_listener_and_what_is_open_are_gone() -> None:
    async with scripted_origin(echo) as origin, published(Publication(V4, 0, origin.port)) as ports:
        ports.serve(FakeInside())
        reader, writer = await connect(ports)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        port = ports.publications[0].port
        ports.close()
        assert await is_closed((reader, writer))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        ports.close()
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_a_taken_port_is_an_error_and_releases_the_others() -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostError) as raised:
            PublishedPorts([Publication(V4, free, 1), Publication(V4, port, 80)])
        assert raised.value.slug == "port_taken"
        assert f"127.0.0.1:{port}" in raised.value.message and "0:80" in raised.value.hint
    with socket.create_server(("127.0.0.1", free)):
        pass


async def test_the_same_port_twice_and_too_many() -> None:
    free = free_port()
    with pytest.raises(HostError, match="cannot be published"):
        PublishedPorts([Publication(V4, free, 1), Publication(V4, free, 2)])
    with pytest.raises(CallerError, match="more than 64"):
        PublishedPorts([Publication(V4, 0, 1)] * 65)


async def test_an_address_that_is_not_there() -> None:
    with pytest.raises(HostError) as raised:
        PublishedPorts([Publication(ip_address("203.0.113.1"), 0, 1)])
    assert raised.value.slug == "port_unusable"


async def test_a_flood_on_one_port_leaves_the_others_room_and_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_ports, "CONNECTIONS", 30)
    async with scripted_origin(echo) as origin:
        async with published(*[Publication(V4, 0, origin.port)] * 2) as ports:
            turns = Turns(100)
            ports.serve(FakeInside(), turns)
            flooding = [await connect(ports, 0) for _ in range(20)]
            assert all([await is_hung_up_on(ports) for _ in range(10)]), "two thirds are the most of one port"
            floods = [asyncio.ensure_future(flood(wire)) for wire in flooding]
            reader, writer = await connect(ports, 1)
            await wait_until_async(lambda: turns.count > 500, "the flood goes on")
            before = turns.count
            for _ in range(10):
                writer.write(b"y")
                assert await reader.read(1) == b"y"
            assert turns.count - before < 400
            for one in floods:
                one.cancel()
            writer.close()


async def flood(wire: Wire) -> None:
    reader, writer = wire
    try:
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()
            await reader.read(65536)
    finally:
        writer.close()
