"""The network of a sandbox from outside: what listens there is reached and seen, until the hold is let go."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sandboxd.backends.base import SessionServer
from sandboxd.backends.linux.network import namespace_hold, netlink
from sandboxd.backends.linux.network.namespace_hold import NamespaceHold
from sandboxd.backends.linux.network.namespace_program import STREAM, Configure, NamespaceProgram, OpenSocket, SocketUse
from sandboxd.backends.linux.network.namespace_request import NamespaceError
from sandboxd.backends.linux.network.netlink import Family
from sandboxd.host.socket_files import find_sockets
from support.namespaces import namespace_worker, network_namespace

NS_GET_USERNS = 0xB701  # ioctl_ns(2)
LOOPBACK = IPv4Address("127.0.0.1")
SERVER = SessionServer(IPv4Address("127.5.6.7"), 8000)
ROUTES = Configure(netlink.everything_is_local((Family.V4,)), "add routes")


@pytest.fixture
async def inside() -> AsyncIterator[NamespaceHold]:
    """Where something listens at port 5000 and nothing at 5001."""
    with network_namespace() as namespace:
        async with namespace_worker() as worker:
            listening = OpenSocket(STREAM, LOOPBACK, 5000, SocketUse.LISTEN, backlog=16)
            (listener,) = await worker.perform(namespace, NamespaceProgram.of((ROUTES, listening)))
            hold = NamespaceHold(worker, os.dup(namespace))
            yield hold
            hold.close()
            listener.close()


async def test_what_listens_there_is_reached(inside: NamespaceHold) -> None:
    with await inside.connect_inside(LOOPBACK, 5000) as peer:
        assert peer.getpeername() == ("127.0.0.1", 5000)
        assert not os.get_blocking(peer.fileno())
    with pytest.raises(ConnectionRefusedError):
        await inside.connect_inside(LOOPBACK, 5001)


async def test_what_listens_there_is_seen(inside: NamespaceHold) -> None:
    assert await inside.is_listening(LOOPBACK, 5000)
    assert not await inside.is_listening(LOOPBACK, 5001)


async def test_the_same_port_outside_is_another(inside: NamespaceHold) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        assert not await inside.is_listening(LOOPBACK, port)
        with pytest.raises(ConnectionRefusedError):
            await inside.connect_inside(LOOPBACK, port)


async def test_a_list_of_servers_is_read_to_an_end(inside: NamespaceHold, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a command listens at more addresses than anything can read. The next list is whole again."""
    monkeypatch.setattr(namespace_hold, "MOST_PARTS", 1, raising=False)
    with monkeypatch.context() as endless:
        endless.setattr(namespace_hold, "read_listening", lambda answer: ({SERVER}, False))
        assert await inside.servers() == {SERVER}
    monkeypatch.setattr(namespace_hold, "MOST_PARTS", 8, raising=False)
    assert await inside.servers() == {SessionServer(LOOPBACK, 5000)}


async def test_unix_sockets_that_were_bound_there_are_seen(inside: NamespaceHold, tmp_path: Path) -> None:
    """Whether they listen yet or not, and by their files: not those of the host, nor what a path leads to."""
    code = (
        "import socket, sys\n"
        "listening, bound = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)\n"
        "listening.bind('listening'); listening.listen(); bound.bind('bound')\n"
        "print(flush=True); sys.stdin.read()"
    )
    owner = fcntl.ioctl(inside.fileno(), NS_GET_USERNS)  # an ordinary user enters through the owning user namespace
    held = f"/proc/{os.getpid()}/fd"
    enter = ["nsenter", f"--user={held}/{owner}", "--preserve-credentials", f"--net={held}/{inside.fileno()}"]
    enter += [sys.executable, "-c", code]
    with (
        os.fdopen(owner),
        subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as server,
        socket.socket(socket.AF_UNIX) as outside,
    ):
        assert server.stdout is not None
        assert server.stdout.readline()
        outside.bind(str(tmp_path / "outside"))
        outside.listen()
        for name, there in (("listening", True), ("bound", True), ("outside", False)):
            [found] = find_sockets([(str(tmp_path / name), name)]).found
            assert await inside.is_bound(found.file) is there
            assert not await inside.is_bound(replace(found.file, inode=found.file.inode + (1 << 32)))
            assert not await inside.is_bound(replace(found.file, device=(0, 1)))
        server.communicate()
        [found] = find_sockets([(str(tmp_path / "listening"), "")]).found
        assert not await inside.is_bound(found.file)


async def test_nothing_is_reached_once_it_was_let_go(inside: NamespaceHold) -> None:
    inside.close()
    assert inside.fileno() == -1
    with pytest.raises(NamespaceError):
        await inside.connect_inside(LOOPBACK, 5000)
    with pytest.raises(NamespaceError):
        await inside.is_listening(LOOPBACK, 5000)
