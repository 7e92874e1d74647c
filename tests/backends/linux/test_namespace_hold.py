"""The network of a sandbox from outside: what listens there is reached and seen, until the hold is let go."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Address

import pytest

from sandboxd.backends.linux import netlink
from sandboxd.backends.linux.namespace_hold import NamespaceHold
from sandboxd.backends.linux.namespace_program import STREAM, Configure, OpenSocket, Program, Then
from sandboxd.backends.linux.namespace_request import NamespaceError
from sandboxd.backends.linux.netlink import Family
from support.namespaces import namespace_worker, network_namespace

LOOPBACK = IPv4Address("127.0.0.1")
ROUTES = Configure(netlink.everything_is_local((Family.V4,)), "add routes")


@pytest.fixture
async def inside() -> AsyncIterator[NamespaceHold]:
    """Where something listens at port 5000 and nothing at 5001."""
    with network_namespace() as namespace:
        async with namespace_worker() as worker:
            listening = OpenSocket(STREAM, LOOPBACK, 5000, Then.LISTEN, backlog=16)
            (listener,) = await worker.perform(namespace, Program.of((ROUTES, listening)))
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


async def test_nothing_is_reached_once_it_was_let_go(inside: NamespaceHold) -> None:
    inside.close()
    assert inside.fileno() == -1
    with pytest.raises(NamespaceError):
        await inside.connect_inside(LOOPBACK, 5000)
    with pytest.raises(NamespaceError):
        await inside.is_listening(LOOPBACK, 5000)
