"""What a connection survives: notifications, requests from the daemon, many threads, restarts, forks, silence."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client import AsyncClient, Client, ConnectionLost, DaemonNotRunning, DaemonTimeout, PermissionDenied
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.transport.connection import open_connection
from sandboxd_client.wire.framing import encode_line
from support.waiting import wait_until, wait_until_async


def test_notifications_and_requests_of_the_daemon_are_tolerated(box: Client, fake: FakeDaemon) -> None:
    box.status()
    fake.notify("something.new", {"a": 1})
    fake.ask("are.you.there", {})
    assert box.status()
    wait_until(lambda: any(heard.method == "answer" for heard in fake.calls))


async def test_the_same_with_coroutines(fake: FakeDaemon) -> None:
    async with AsyncClient(fake.socket, autostart=False) as box:
        await box.status()
        fake.notify("something.new", {"a": 1})
        fake.ask("are.you.there", {})
        await wait_until_async(lambda: any(heard.method == "answer" for heard in fake.calls))
        assert await box.status()


def test_a_single_connection_hands_notifications_on(fake: FakeDaemon) -> None:
    connection = open_connection(fake.socket)
    heard: list[tuple[str, Any]] = []
    connection.on_notification = lambda method, params: heard.append((method, params))
    connection.call("status", {})
    fake.notify("something.new", {"a": 1})
    connection.call("status", {})
    assert heard == [("something.new", {"a": 1})]
    connection.close()


def echo_ids(fake: FakeDaemon) -> None:
    fake.answer(
        "wrap.outcome",
        lambda params: {
            "started": True,
            "exited": True,
            "status": int(params["wrap_id"]),
            "reason": None,
            "violations": [],
        },
    )


def test_many_threads_get_their_own_answers(box: Client, fake: FakeDaemon) -> None:
    echo_ids(fake)
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda number: box.wrap_outcome(str(number)).status, range(400)))
    assert statuses == list(range(400))
    assert box.connections == 1


async def test_many_coroutines_get_their_own_answers(fake: FakeDaemon) -> None:
    echo_ids(fake)
    async with AsyncClient(fake.socket, autostart=False) as box:
        outcomes = await asyncio.gather(*(box.wrap_outcome(str(number)) for number in range(400)))
        assert [outcome.status for outcome in outcomes] == list(range(400))
        assert box.connections == 1


class Scripted:
    """A server that the test plays by hand: one connection, frames in and out."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.path = str(directory / "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()

    def accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        return connection

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def scripted(tmp_path: Path) -> Any:
    server = Scripted(tmp_path / "d")
    yield server
    server.close()


def outcome(number: int, status: int) -> bytes:
    result = {"started": True, "exited": True, "status": status, "reason": None}
    return encode_line({"jsonrpc": "2.0", "id": number, "result": result})


def test_answers_out_of_order_reach_their_threads(scripted: Scripted) -> None:
    with Client(scripted.path, autostart=False) as box, ThreadPoolExecutor(2) as pool:
        first = pool.submit(box.wrap_outcome, "a")
        daemon = scripted.accept()
        received = daemon.recv(65536)
        second = pool.submit(box.wrap_outcome, "b")
        while received.count(b"\n") < 2:
            received += daemon.recv(65536)
        daemon.sendall(outcome(2, 22)[:10])
        daemon.sendall(outcome(2, 22)[10:] + outcome(99, 0))
        assert second.result().status == 22
        assert not first.done()
        daemon.sendall(outcome(1, 11))
        assert first.result().status == 11
        daemon.close()


def test_a_late_answer_does_not_go_to_somebody_else(scripted: Scripted) -> None:
    with Client(scripted.path, autostart=False, timeout=0.05) as box:
        with pytest.raises(DaemonTimeout) as caught:
            box.wrap_outcome("a")
        assert "wrap.outcome" in caught.value.message
        daemon = scripted.accept()
        daemon.recv(65536)
        box._connector._timeout = 20
        daemon.sendall(outcome(1, 11))
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(box.wrap_outcome, "b")
            daemon.recv(65536)
            daemon.sendall(outcome(2, 22))
            assert again.result().status == 22
        daemon.close()


async def test_a_coroutine_gives_up_on_a_silent_daemon(scripted: Scripted) -> None:
    async with AsyncClient(scripted.path, autostart=False, timeout=0.05) as box:
        with pytest.raises(DaemonTimeout):
            await box.status()


def test_a_refused_caller_hears_why(scripted: Scripted) -> None:
    error = {"code": -32001, "message": "not from a sandbox", "data": {"slug": "peer_other_namespace", "hint": "h"}}

    def refuse() -> None:
        with scripted.accept() as daemon:
            daemon.sendall(encode_line({"jsonrpc": "2.0", "id": None, "error": error}))

    thread = threading.Thread(target=refuse)
    thread.start()
    with Client(scripted.path, autostart=False) as box:
        box.connect()
        thread.join()
        with pytest.raises(PermissionDenied) as caught:
            box.status()
    assert (caught.value.slug, caught.value.hint) == ("peer_other_namespace", "h")


@pytest.mark.parametrize("answer", [b"nonsense\n", b"[]\n", b"\xff\n", b'{"jsonrpc":"2.0"'])
def test_an_answer_that_is_none_ends_the_connection(scripted: Scripted, answer: bytes) -> None:
    def serve() -> None:
        with scripted.accept() as daemon:
            daemon.recv(65536)
            daemon.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with Client(scripted.path, autostart=False) as box, pytest.raises(ConnectionLost):
        box.status()
    thread.join()


def test_after_a_restart_the_next_call_connects_again(box: Client, fake: FakeDaemon) -> None:
    box.status()
    fake.disconnect()
    assert box.status()
    assert box.connections == 2


async def test_the_same_after_a_restart_with_coroutines(fake: FakeDaemon) -> None:
    async with AsyncClient(fake.socket, autostart=False) as box:
        await box.status()
        fake.disconnect()
        assert await box.status()
        assert box.connections == 2


def test_a_request_that_must_not_happen_twice_is_not_repeated(box: Client, fake: FakeDaemon) -> None:
    def vanish(params: object) -> None:
        fake.disconnect()

    box.status()
    fake.answer("session.close", vanish)
    with pytest.raises(ConnectionLost):
        box.session_close("s")
    assert [heard.method for heard in fake.calls] == ["status", "session.close"]


def test_a_request_that_may_be_repeated_is_repeated_once(box: Client, fake: FakeDaemon) -> None:
    def vanish(params: object) -> None:
        fake.disconnect()

    box.status()
    fake.answer("check", vanish)
    with pytest.raises(ConnectionLost):
        box.check()
    assert [heard.method for heard in fake.calls] == ["status", "check", "check"]


def test_a_daemon_that_is_gone(box: Client, fake: FakeDaemon) -> None:
    box.status()
    fake.close()
    with pytest.raises(DaemonNotRunning):
        box.status()


def test_closing_wakes_those_who_wait(scripted: Scripted) -> None:
    box = Client(scripted.path, autostart=False)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(box.session_close, "x") for _ in range(3)]
        daemon = scripted.accept()
        received = b""
        while received.count(b"\n") < 3:
            received += daemon.recv(65536)
        box.close()
        for each in waiting:
            with pytest.raises(ConnectionLost):
                each.result()
        daemon.close()


def test_a_closed_client_can_be_used_again(box: Client) -> None:
    box.status()
    box.close()
    box.close()
    assert box.status()


def test_a_forked_child_has_a_conversation_of_its_own(box: Client, fake: FakeDaemon) -> None:
    echo_ids(fake)
    box.status()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(box.wrap_outcome("7").status).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        assert answers.read() == b"7"
    os.waitpid(child, 0)
    assert box.wrap_outcome("8").status == 8
    assert box.connections == 1


def test_nothing_is_left_open(fake: FakeDaemon) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Client(fake.socket, autostart=False) as box:
            box.status()
            fake.disconnect()
            box.status()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
