"""Captured connections in the test's own event loop: real rules in a real namespace, real proxies, scripted origins.

What programs see in whole sandboxes is in tests/enforce/test_capture.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.network.capture import Ability, Reach, capture_for
from sandboxd.backends.linux.network.namespace_hold import NamespaceHold
from sandboxd.backends.linux.network.namespace_program import STREAM, NamespaceProgram, OpenSocket, SocketUse
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.network.netlink import Family
from sandboxd.plan.network import NetworkPlan
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostPattern, IPAddress
from sandboxd.policy.model import NetworkPolicy, PortRange, UploadRule
from sandboxd.proxy.transparent import captured_connections
from support.greetings import client_hello
from support.namespaces import namespace_worker, network_namespace
from support.ports import closed_port
from support.proxies import SETTINGS, Proxies, running_proxies, scripted_origin
from support.waiting import wait_until_async

EVERYTHING = Ability(Reach.EVERY_PORT, (Family.V4, Family.V6))
LOCAL = (20_000, 60_999)
"""Ports of the scripted origins are among these."""


@pytest.fixture
async def worker() -> AsyncIterator[NamespaceWorker]:
    async with namespace_worker(alone=False) as worker:
        yield worker


@dataclass(slots=True)
class Sandbox:
    """A network with captured connections. `address` gives the address of a name, `connect` acts as a program."""

    proxies: Proxies
    inside: NamespaceHold
    worker: NamespaceWorker

    def address(self, name: str) -> IPAddress:
        return self.proxies.server.names.addresses_of(name)[0]

    async def connect(self, address: IPAddress, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(sock=await self.inside.connect_inside(address, port))

    async def exchange(self, address: IPAddress, port: int, data: bytes = b"ping") -> bytes:
        reader, writer = await self.connect(address, port)
        writer.write(data)
        try:
            return await reader.read()
        finally:
            writer.close()

    async def ask(self, address: IPAddress, port: int) -> int:
        """What a connect() that waits returns."""
        answers: list[int] = []
        self.proxies.server.connecting(str(address), port, answers.append)
        await wait_until_async(lambda: answers, "connect() is answered")
        return answers[0]


@asynccontextmanager
async def sandbox(worker: NamespaceWorker, namespace: int, proxies: Proxies) -> AsyncIterator[Sandbox]:
    plan = NetworkPlan(local_ports=(LOCAL,) if proxies.policy.allow_local_ports else ())
    made = capture_for(EVERYTHING, plan)
    assert made is not None
    listeners = Listeners()
    made.hand_over(await made.begin(worker, namespace), listeners)
    for sock in (*listeners.dns_datagram, *listeners.dns_stream):
        sock.close()
    inside = NamespaceHold(worker, os.dup(namespace))
    proxies.server.capture(listeners.captured, inside)
    proxies.server.reach(inside)
    try:
        yield Sandbox(proxies, inside, worker)
    finally:
        inside.close()


@pytest.fixture
async def fresh() -> AsyncIterator[int]:
    """A namespace of its own, for rules that may be installed only once."""
    with network_namespace() as descriptor:
        yield descriptor


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"pong " + await reader.read(4))
    await writer.drain()


async def test_a_name_and_its_twin_that_is_not_allowed(worker: NamespaceWorker, fresh: int) -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test", denied=["no.test"]) as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        assert await box.exchange(box.address("ok.test"), origin.port) == b"pong ping"
        with pytest.raises(ConnectionResetError):
            await box.exchange(box.address("no.test"), origin.port)
        assert origin.connections == 1
        (blocked,) = proxies.blocked
        assert (blocked.operation, blocked.host, blocked.port) == ("connect", "no.test", origin.port)
        # an address that stands for nothing leads nowhere
        with pytest.raises(ConnectionResetError):
            await box.exchange(ip_address("198.18.77.77"), origin.port)
        assert origin.connections == 1


async def test_connect_returns_what_becomes_of_the_way_out(worker: NamespaceWorker, fresh: int) -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test", "absent.test", denied=["no.test"]) as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        assert await box.ask(box.address("ok.test"), closed_port()) == errno.ECONNREFUSED
        assert await box.ask(box.address("no.test"), origin.port) == errno.EACCES
        assert await box.ask(box.address("absent.test"), origin.port) == errno.EHOSTUNREACH
        assert await box.ask(ip_address("127.0.0.1"), 81) == 0  # for the kernel to say
        assert [one.host for one in proxies.blocked] == ["no.test"]
        assert origin.connections == 0
        # the connection that was opened for the answer is the one that is used
        assert await box.ask(box.address("ok.test"), origin.port) == 0
        await wait_until_async(lambda: origin.connections == 1, "the way out stands")
        assert await box.exchange(box.address("ok.test"), origin.port) == b"pong ping"
        assert origin.connections == 1


async def test_a_connection_that_nobody_comes_for_is_closed(
    worker: NamespaceWorker, fresh: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_connections, "ARRIVES_WITHIN_S", 0.05)
    ended = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        ended.set()

    async with (
        scripted_origin(wait_for_end) as origin,
        running_proxies("ok.test") as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        assert await box.ask(box.address("ok.test"), origin.port) == 0
        await asyncio.wait_for(ended.wait(), 10)
        await wait_until_async(lambda: proxies.server.connections == 0, "nothing waits any more")


async def test_a_denial_while_it_waits_for_its_program(worker: NamespaceWorker, fresh: int) -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test") as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        assert await box.ask(box.address("ok.test"), origin.port) == 0
        proxies.deny("ok.test")
        assert proxies.server.recheck() == 1
        with pytest.raises(ConnectionResetError):
            await box.exchange(box.address("ok.test"), origin.port)


async def test_a_limit_of_bytes_holds(worker: NamespaceWorker, fresh: int) -> None:
    """All that it allows leaves, and no more: by a connection that is made at once, and by one that waits."""
    received: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                received.append(len(data))
                if sum(received) == 40_000:
                    writer.write(b"so far")

    network = NetworkPolicy(uploads=(UploadRule(HostPattern.parse("ok.test"), 100_000, SETTINGS),))
    async with (
        scripted_origin(count) as origin,
        running_proxies("ok.test", network=network) as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        reader, writer = await box.connect(box.address("ok.test"), origin.port)
        writer.write(b"x" * 40_000)
        assert await reader.readexactly(6) == b"so far"
        writer.close()
        assert await box.ask(box.address("ok.test"), origin.port) == 0
        with pytest.raises(ConnectionResetError):
            await box.exchange(box.address("ok.test"), origin.port, b"x" * 200_000)
        await wait_until_async(lambda: sum(received) == 100_000, "all that is allowed has come")
        assert await box.ask(box.address("ok.test"), origin.port) == errno.EACCES
        assert {one.decision.reason for one in proxies.blocked} == {Reason.UPLOAD_LIMIT}


async def test_a_question_is_waited_for(worker: NamespaceWorker, fresh: int) -> None:
    answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        return await answer

    async with (
        scripted_origin(echo) as origin,
        running_proxies(ask=ask) as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        asking = asyncio.ensure_future(box.exchange(box.address("ok.test"), origin.port))
        waiting = asyncio.ensure_future(box.ask(box.address("ok.test"), origin.port))
        done, _ = await asyncio.wait((asking, waiting), timeout=0.1)
        assert not done and not origin.connections
        answer.set_result(Decision(Behavior.ALLOW, Reason.GRANTED, "yes"))
        assert await asking == b"pong ping"
        assert await waiting == 0


async def test_local_ports_are_the_host_s_unless_the_command_listens(worker: NamespaceWorker, fresh: int) -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies() as proxies,
    ):
        closed = closed_port()
        proxies.policy = replace(proxies.policy, allow_local_ports=(PortRange(*LOCAL),))
        async with sandbox(worker, fresh, proxies) as box:
            for text in ("127.0.0.1", "::1"):  # the origin listens on 127.0.0.1 only
                address = ip_address(text)
                assert await box.exchange(address, origin.port) == b"pong ping"
                assert await box.ask(address, origin.port) == 0
                assert await box.exchange(address, origin.port) == b"pong ping"
                assert await box.ask(address, closed) == errno.ECONNREFUSED
                with pytest.raises(ConnectionResetError):
                    await box.exchange(address, closed)
            before = origin.connections
            with pytest.raises(ConnectionRefusedError):  # not on the list: nothing inside listens
                await box.exchange(ip_address("127.0.0.1"), 81)

            reuse = ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),)
            listen = OpenSocket(
                STREAM, ip_address("127.0.0.1"), origin.port, SocketUse.LISTEN, backlog=8, options=reuse
            )
            (own,) = await worker.perform(fresh, NamespaceProgram.of((listen,)))
            for text in ("127.0.0.1", "::1"):
                assert await box.ask(ip_address(text), origin.port) == 0
                reader, writer = await box.connect(ip_address(text), origin.port)
                accepted, _ = await asyncio.get_running_loop().sock_accept(own)
                accepted.send(b"own")
                accepted.close()
                assert await reader.read() == b"own"
                writer.close()
            own.close()
            assert origin.connections == before
            assert not proxies.blocked

            proxies.policy = replace(proxies.policy, allow_local_ports=())
            with pytest.raises(ConnectionResetError):
                await box.exchange(ip_address("127.0.0.1"), origin.port)
            assert origin.connections == before and len(proxies.blocked) == 1


async def test_a_proxy_that_is_asked_for_such_an_address(worker: NamespaceWorker, fresh: int) -> None:
    """By programs that look names up themselves."""
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test", denied=["no.test"]) as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        reader, writer = await proxies.tunnel(f"{box.address('ok.test')}:{origin.port}")
        writer.write(b"ping")
        assert await reader.read() == b"pong ping"
        writer.close()
        target = f"{box.address('no.test')}:{origin.port}"
        answer = await proxies.ask_http(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert [one.host for one in proxies.blocked] == ["no.test"]
        assert origin.connections == 1


async def test_what_is_open_ends_when_it_is_denied(worker: NamespaceWorker, fresh: int) -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test") as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        reader, writer = await box.connect(box.address("ok.test"), origin.port)
        await wait_until_async(lambda: origin.connections == 1, "the way out stands")
        await wait_until_async(lambda: proxies.server.recheck() == 0, "what is allowed stays")
        proxies.deny("ok.test")
        assert proxies.server.recheck() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert [(one.operation, one.host) for one in proxies.blocked] == [("connect", "ok.test")]


async def test_the_name_in_tls_is_compared(worker: NamespaceWorker, fresh: int) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(4096)
        writer.write(b"greeted")

    async with (
        scripted_origin(greet) as origin,
        running_proxies("ok.test") as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        proxies.policy = replace(proxies.policy, check_server_name="enforce")
        assert await box.exchange(box.address("ok.test"), origin.port, client_hello("ok.test")) == b"greeted"
        with pytest.raises(ConnectionResetError):
            await box.exchange(box.address("ok.test"), origin.port, client_hello("no.test"))
        assert [(one.operation, one.host) for one in proxies.blocked] == [("TLS", "no.test")]


async def test_a_file_descriptor_is_closed_for_every_connection(worker: NamespaceWorker, fresh: int) -> None:
    async with (
        scripted_origin(echo) as origin,
        running_proxies("ok.test") as proxies,
        sandbox(worker, fresh, proxies) as box,
    ):
        assert await box.exchange(box.address("ok.test"), origin.port) == b"pong ping"
        await wait_until_async(lambda: proxies.server.connections == 0, "the first has ended")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            assert await box.exchange(box.address("ok.test"), origin.port) == b"pong ping"
        await wait_until_async(lambda: proxies.server.connections == 0, "all have ended")
        await wait_until_async(lambda: len(os.listdir("/proc/self/fd")) <= before, "nothing is left open")


def test_the_destination_that_was_dialled() -> None:
    of = captured_connections.Destination.of
    assert of("::ffff:192.0.2.7", 80) == of("192.0.2.7", 80)
    assert of("fe80::1%lo", 80) == of("fe80::1", 80)
    with pytest.raises(ValueError, match="not-an-address"):
        of("not-an-address", 80)
