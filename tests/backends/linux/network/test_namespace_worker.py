"""Programs in network namespaces, from outside: the real helper and real namespaces."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest

from sandboxd.backends.linux.network import capture_rules, netlink
from sandboxd.backends.linux.network.namespace_hold import NamespaceHold
from sandboxd.backends.linux.network.namespace_program import (
    STREAM,
    Configure,
    Continuation,
    NamespaceProgram,
    OpenSocket,
    SocketUse,
    SystemCall,
    Then,
)
from sandboxd.backends.linux.network.namespace_request import NamespaceError
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.network.netlink import Family
from support.namespaces import namespace_worker, network_namespace
from support.waiting import wait_until_async

LOOPBACK = IPv4Address("127.0.0.1")
ROUTES = Configure(netlink.everything_is_local((Family.V4,)), "add routes")


def listen(port: int) -> OpenSocket:
    return OpenSocket(STREAM, LOOPBACK, port, SocketUse.LISTEN, backlog=16)


@pytest.fixture
def namespace() -> Iterator[int]:
    with network_namespace() as descriptor:
        yield descriptor


@pytest.fixture
async def worker() -> AsyncIterator[NamespaceWorker]:
    async with namespace_worker() as worker:
        yield worker


async def test_sockets_come_back_in_order_and_live_in_the_namespace(worker: NamespaceWorker, namespace: int) -> None:
    sockets = await worker.perform(namespace, NamespaceProgram.of((ROUTES, listen(81), listen(5000))))
    assert [one.getsockname() for one in sockets] == [("127.0.0.1", 81), ("127.0.0.1", 5000)]
    with socket.socket() as outside:
        outside.settimeout(5)
        assert outside.connect_ex(("127.0.0.1", 81)) == errno.ECONNREFUSED
    for one in sockets:
        one.close()


async def test_the_step_that_failed_is_named(worker: NamespaceWorker, namespace: int) -> None:
    with pytest.raises(NamespaceError, match=r"listen at 127\.0\.0\.1, port 81: Address already in use") as caught:
        await worker.perform(namespace, NamespaceProgram.of((listen(80), listen(81), listen(81))))
    assert caught.value.number == errno.EADDRINUSE
    # nothing of the failed one is left: its ports are free again
    (sock, other) = await worker.perform(namespace, NamespaceProgram.of((listen(80), listen(81))))
    sock.close()
    other.close()


async def test_whoever_stays_does_the_rest_in_the_same_place(worker: NamespaceWorker, namespace: int) -> None:
    mounts = os.open("/proc/self/ns/net", os.O_RDONLY)  # not one of mounts: entering it fails, and is named
    stay = worker.stay(namespace, NamespaceProgram.of((listen(81), Continuation())))
    (sock,) = await stay.opened()
    with pytest.raises(NamespaceError, match="cannot enter the mount namespace"):
        await stay.finish(NamespaceProgram.of((listen(82),)), mounts)
    # sent before the first part is done; given up before it is done; failed in the first part
    early = worker.stay(namespace, NamespaceProgram.of((listen(83), Continuation())))
    rest = early.finish(NamespaceProgram.of((listen(84),)), mounts)
    given_up, failing = (
        worker.stay(namespace, NamespaceProgram.of((listen(port), Continuation()))) for port in (85, 81)
    )
    given_up.close()
    others = await early.opened()
    with pytest.raises(NamespaceError, match="cannot enter the mount namespace"):
        await rest
    with pytest.raises(NamespaceError, match="Address already in use"):
        await failing.opened()
    assert failing.has_failed and not early.has_failed
    with pytest.raises(NamespaceError, match="has ended"):
        await failing.finish(NamespaceProgram.of((listen(86),)), mounts)
    unwanted = worker.stay(namespace, NamespaceProgram.of((listen(87), Continuation())))
    await wait_until_async(lambda: unwanted.is_done, "it has opened its socket")
    unwanted.close()
    (again,) = await worker.perform(namespace, NamespaceProgram.of((listen(87),)))  # that it is closed by now
    for one in (sock, *others, again):
        one.close()
    os.close(mounts)


async def test_a_refused_netlink_message_is_an_error(worker: NamespaceWorker, namespace: int) -> None:
    with_jump_to_nowhere = netlink.Table(
        "t", Family.V4, (netlink.Chain("c", ((netlink.jump("nowhere"),),), hook=3, priority=0),)
    )
    program = NamespaceProgram.of(
        (Configure(netlink.new_tables((with_jump_to_nowhere,)), "install the rules"), listen(80))
    )
    with pytest.raises(NamespaceError, match="install the rules: No such file"):
        await worker.perform(namespace, program)


async def test_the_network_of_the_host_is_out_of_reach(worker: NamespaceWorker) -> None:
    host = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        with pytest.raises(NamespaceError, match="cannot enter the user namespace"):
            await worker.perform(host, NamespaceProgram.of((listen(81),)))
        with open("/proc/self/stat", "rb") as no_namespace, pytest.raises(NamespaceError, match="cannot find"):
            await worker.perform(no_namespace.fileno(), NamespaceProgram.of((listen(81),)))
    finally:
        os.close(host)


async def test_a_worker_that_dies_is_replaced(worker: NamespaceWorker, namespace: int) -> None:
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    for port in (6000, 6001):  # the first may still have gone to the dying one
        try:
            (sock,) = await worker.perform(namespace, NamespaceProgram.of((listen(port),)))
            sock.close()
        except NamespaceError as error:
            assert "died" in str(error)
    (sock,) = await worker.perform(namespace, NamespaceProgram.of((listen(6002),)))
    sock.close()
    assert worker.pid not in (None, first)


async def test_an_answer_to_a_cancelled_task_leaves_no_descriptor(
    worker: NamespaceWorker, namespace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = NamespaceProgram.of((SystemCall("openat", (-100, "/", os.O_PATH), Then.GIVE, "open it"),))
    (kept,) = await worker.take(namespace, program)
    before = os.listdir("/proc/self/fd")
    tasks: list[asyncio.Task[Any]] = []
    usual = worker.start

    def start(*arguments: Any) -> asyncio.Future[Any]:
        answer = usual(*arguments)
        answer.add_done_callback(lambda _: tasks[-1].cancel())  # before the task goes on with it
        return answer

    monkeypatch.setattr(worker, "start", start)
    for _ in range(3):
        tasks.append(asyncio.create_task(worker.take(namespace, program)))
        await asyncio.wait(tasks)
    assert all(one.cancelled() for one in tasks)
    tasks.clear()
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)
    kept.close()
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1


async def test_many_at_once_and_some_given_up(worker: NamespaceWorker, namespace: int) -> None:
    """More than fit into the socket to the worker."""
    times, routes = 100, ROUTES.batch
    many = netlink.Batch(netlink.NETLINK_ROUTE, routes.messages * times, routes.acknowledgements * times)
    big = Configure(many, "do the same many times")
    waiting = [worker.start(namespace, NamespaceProgram.of((big, listen(port)))) for port in range(7000, 7060)]
    for one in waiting[::7]:
        one.cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    kept = [one for number, one in enumerate(done) if number % 7]
    assert all(isinstance(one, list) for one in kept), kept
    assert all(isinstance(one, asyncio.CancelledError) for one in done[::7])
    for sockets in kept:
        assert isinstance(sockets, list)
        sockets[0].close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signals_do_not_end_it(worker: NamespaceWorker, namespace: int, number: signal.Signals) -> None:
    """Ctrl-C in the terminal of `sandboxd serve` reaches it as well."""
    pid = worker.pid
    assert pid is not None
    os.kill(pid, number)
    (sock,) = await worker.perform(namespace, NamespaceProgram.of((listen(81),)))
    sock.close()
    assert worker.pid == pid


async def test_every_connection_is_captured(worker: NamespaceWorker, namespace: int) -> None:
    """The rules in a real kernel; what programs see is in tests/enforce."""
    both = (Family.V4, Family.V6)
    listeners = [
        OpenSocket(STREAM, address, capture_rules.LISTENER_PORT, SocketUse.LISTEN, 16, (option,))
        for address, option in (
            (capture_rules.LOOPBACK[Family.V4], (socket.SOL_IP, 19, 1)),
            (capture_rules.LOOPBACK[Family.V6], (socket.IPPROTO_IPV6, 75, 1)),
        )
    ]
    rules = netlink.new_tables(capture_rules.tables(both, [(5432, 5432), (8000, 8010)]))
    sockets = await worker.perform(
        namespace,
        NamespaceProgram.of((Configure(netlink.everything_is_local(both), "r"), Configure(rules, "t"), *listeners)),
    )
    inside = NamespaceHold(worker, os.dup(namespace))
    loop = asyncio.get_running_loop()
    for address, port in (("192.0.2.7", 443), ("2001:db8::7", 22), ("127.0.0.1", 5432), ("::1", 8003)):
        client = await inside.connect_inside(ip_address(address), port)
        accepted, _ = await loop.sock_accept(sockets[":" in address])
        assert accepted.getsockname()[:2] == (address, port) == client.getpeername()[:2]
        accepted.close()
        client.close()
    for address, port in (("127.0.0.1", 80), ("127.0.0.2", 5432), ("::1", 443), ("192.0.2.7", 53)):
        with pytest.raises(ConnectionRefusedError):
            await inside.connect_inside(ip_address(address), port)
    inside.close()
    for one in sockets:
        one.close()
