"""The server of one command's proxies: limits, faults that stay where they are, policy changes, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.model import NetworkPolicy
from sandboxd.proxy.dial import Dialer
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.limits import ProxyLimits, Room, SessionRoom
from sandboxd.proxy.server import ProxyServer
from support.proxies import NoNames, Wire, finish, rules, running_proxies, scripted_origin
from support.waiting import wait_until_async


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


async def is_open(wire: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    reader, writer = wire
    writer.write(b"x")
    try:
        return await reader.readexactly(1) == b"x"
    except (ConnectionResetError, asyncio.IncompleteReadError):
        return False


# policy changes


async def test_a_new_denial_cuts_open_tunnels_and_only_those() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test", "also.test") as proxies:
        tunnels = [
            await proxies.tunnel(f"ok.test:{origin.port}"),
            await proxies.socks_tunnel(b"ok.test", origin.port),
            await proxies.tunnel(f"also.test:{origin.port}"),
        ]
        assert proxies.server.recheck() == 0
        assert [await is_open(wire) for wire in tunnels] == [True, True, True]
        proxies.deny("ok.test")
        assert proxies.server.recheck() == 2
        assert [await is_open(wire) for wire in tunnels] == [False, False, True]
        assert [blocked.host for blocked in proxies.blocked] == ["ok.test", "ok.test"]
        answer = await proxies.ask_http(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % origin.port)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert proxies.server.recheck() == 0, "each is cut and reported once"
        for _, writer in tunnels:
            await finish(writer)


async def test_removing_the_rule_cuts_as_well() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        wire = await proxies.tunnel(f"ok.test:{origin.port}")
        proxies.policy = NetworkPolicy(allowed=rules("also.test"))
        assert proxies.server.recheck() == 1
        assert not await is_open(wire)
        await finish(wire[1])


async def test_an_unrelated_change_cuts_nothing_and_opens_nothing() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        wire = await proxies.tunnel(f"ok.test:{origin.port}")
        for number in range(20):
            proxies.policy = replace(proxies.policy, allow_local_binding=bool(number % 2))
            assert proxies.server.recheck() == 0
            answer = await proxies.ask_http(b"CONNECT no.test:%d HTTP/1.1\r\n\r\n" % origin.port)
            assert answer.startswith(b"HTTP/1.1 403 ")
        assert await is_open(wire) and origin.connections == 1
        await finish(wire[1])


async def test_a_plain_request_under_way_is_cut_too() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await reader.read()

    async with scripted_origin(talk) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await proxies.http()
        writer.write(b"GET http://ok.test:%d/ HTTP/1.1\r\n\r\n" % origin.port)
        await reader.readuntil(b"half")
        proxies.deny("*")
        assert proxies.server.recheck() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await finish(writer)


async def test_a_denial_that_comes_while_dialling_counts() -> None:
    dialled: list[socket.socket] = []

    async with scripted_origin(echo) as origin:

        async def connect(address: object, port: int) -> socket.socket:
            proxies.deny("ok.test")
            dialled.append(socket.create_connection(("127.0.0.1", origin.port)))
            return dialled[-1]

        async with running_proxies("ok.test", connector=connect) as proxies:
            answer = await proxies.ask_http(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % origin.port)
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert dialled[0].fileno() == -1 and len(proxies.blocked) == 1


# faults


async def test_a_fault_in_one_connection_ends_that_one(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(host: Host, port: int, decision: Decision) -> Decision:
        raise RuntimeError("boom")

    async with scripted_origin(echo) as origin, running_proxies("ok.test", ask=broken) as proxies:
        wire = await proxies.tunnel(f"ok.test:{origin.port}")
        reader, writer = await proxies.http()
        writer.write(b"CONNECT ask.test:%d HTTP/1.1\r\n\r\n" % origin.port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert await is_open(wire)
        assert origin.connections == 1, "no fault becomes a yes"
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        await finish(writer)
        await finish(wire[1])


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
async def test_out_of_descriptors_new_ones_wait_old_ones_go_on(caplog: pytest.LogCaptureFixture) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ProxyLimits(accept_retry_s=0.01, linger_s=0.1)
    async with scripted_origin(echo) as origin, running_proxies("ok.test", limits=limits) as proxies:
        old = await proxies.tunnel(f"ok.test:{origin.port}")
        with socket.socket() as waiting:
            waiting.setblocking(False)
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 9, hard))  # enough for a few, once there is room
            hogs = []
            try:
                while True:
                    hogs.append(os.dup(0))
            except OSError:
                pass
            try:
                loop = asyncio.get_running_loop()
                await loop.sock_connect(waiting, ("127.0.0.1", proxies.http_port))
                await loop.sock_sendall(waiting, b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % origin.port)
                await wait_until_async(lambda: any("trying again" in record.message for record in caplog.records))
                assert await is_open(old)
            finally:
                for hog in hogs:
                    os.close(hog)
            assert (await loop.sock_recv(waiting, 100)).startswith(b"HTTP/1.1 200 ")
        await finish(old[1])


async def test_more_connections_than_the_limit_wait() -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test", limits=ProxyLimits(connections=2, linger_s=0.1)) as proxies,
    ):
        first = await proxies.tunnel(f"ok.test:{origin.port}")
        second = await proxies.tunnel(f"ok.test:{origin.port}")
        third = asyncio.create_task(proxies.tunnel(f"ok.test:{origin.port}"))
        for _ in range(5):
            assert await is_open(first) and await is_open(second)
        assert not third.done() and proxies.server.connections == 2
        await finish(first[1])
        assert await is_open(await third)
        for wire in (second, third.result()):
            await finish(wire[1])


def are_done(tasks: list[asyncio.Task[Wire]], count: int) -> bool:
    return sum(task.done() for task in tasks) >= count


async def test_a_greedy_command_leaves_room_for_the_others() -> None:
    """Those of its session, and of other sessions although several of its session are greedy."""
    room = Room(32)  # for 12 connections
    greedy, other = SessionRoom(room), SessionRoom(room)
    limits = ProxyLimits(linger_s=0.1, accept_retry_s=0.01)
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test", limits=limits, room=greedy) as hog,
        running_proxies("ok.test", limits=limits, room=greedy) as second,
        running_proxies("ok.test", limits=limits, room=other) as alone,
    ):
        target = f"ok.test:{origin.port}"
        tasks: list[asyncio.Task[Wire]] = []
        for proxies, stand in ((hog, 6), (second, 6 + 2), (alone, 6 + 2 + 2)):
            tasks += [asyncio.create_task(proxies.tunnel(target)) for _ in range(12)]
            await wait_until_async(partial(are_done, tasks, stand), "so many stand")
        for _ in range(3):
            assert await is_open(next(task for task in tasks if task.done()).result())
        assert [one.server.connections for one in (hog, second, alone)] == [6, 2, 2]
        while tasks:
            await wait_until_async(partial(are_done, tasks, 1))
            task = next(task for task in tasks if task.done())
            tasks.remove(task)
            await finish(task.result()[1])
        await wait_until_async(lambda: room.taken == 0, "all have ended")
        assert greedy.has_some(11) and not greedy.has_some(12)


# the end


async def test_the_end_is_at_once_and_nothing_accepts_any_more() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        wires = [await proxies.tunnel(f"ok.test:{origin.port}") for _ in range(5)] + [await proxies.http()]
        await wait_until_async(lambda: proxies.server.connections == 6)
        before = len(os.listdir("/proc/self/fd"))
        await proxies.server.aclose()
        assert proxies.server.connections == 0
        assert [await is_open(wire) for wire in wires] == [False] * 6
        for port in (proxies.http_port, proxies.socks_port):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        for _, writer in wires:
            await finish(writer)
        assert len(os.listdir("/proc/self/fd")) <= before - 6 - 2 - 5, "no descriptor stays open"


async def test_a_server_without_listeners_ends_as_well() -> None:
    gate = Gate(NetworkPolicy, None, NoNames())
    server = ProxyServer(gate, Dialer(), lambda blocked: None)
    server.serve(None, None)
    await server.aclose()
    await server.aclose()


async def test_a_question_ends_with_the_server() -> None:
    asked = asyncio.Event()

    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        asked.set()
        await asyncio.Event().wait()
        return Decision(Behavior.ALLOW, Reason.GRANTED, "too late")

    async with running_proxies(ask=ask) as proxies:
        _, writer = await proxies.http()
        writer.write(b"CONNECT ask.test:443 HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(asked.wait(), 30)
        await proxies.server.aclose()
        await finish(writer)


async def test_tasks_have_names() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        wire = await proxies.tunnel(f"ok.test:{origin.port}")
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "http test 1" in names
        await finish(wire[1])


# many


async def test_many_tunnels_at_once_are_all_correct() -> None:
    async with scripted_origin(echo) as origin, running_proxies("ok.test") as proxies:
        tunnels = await asyncio.gather(*(proxies.tunnel(f"ok.test:{origin.port}") for _ in range(150)))
        for number, (_, writer) in enumerate(tunnels):
            writer.write(b"%06d" % number)
        assert [await reader.readexactly(6) for reader, _ in tunnels] == [b"%06d" % number for number in range(150)]
        for _, writer in tunnels:
            await finish(writer)
        await wait_until_async(lambda: proxies.server.connections == 0)


def test_a_thousand_tunnels_fit() -> None:
    """In a process of its own, whose memory is then the proxies' and the interpreter's: below 100 MB."""
    script = Path(__file__).with_name("thousand_tunnels.py")
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests")))}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100 * 1024
