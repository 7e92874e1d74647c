"""The sockets that are handed out: they lie in the sandbox's network, and the daemon accepts on them."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import MAX_LISTENERS, Failed, Started
from sandboxd.backends.linux.helper.launch_configuration import Flags, Listener

from .conftest import Launcher, Sandbox, configuration

CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    connection.sendall(b"from inside")
    connection.shutdown(socket.SHUT_WR)
    sys.stdout.write(connection.makefile().read())
"""


def answer(listener: socket.socket) -> bytes:
    listener.settimeout(30)
    connection, _ = listener.accept()
    with connection:
        got = b"".join(iter(lambda: connection.recv(100), b""))
        connection.sendall(b"from outside")
    return got


@pytest.mark.parametrize(
    ("address", "port"), [("127.0.0.1", 3128), ("127.0.0.1", 65535), ("::1", 1080), ("127.0.0.2", 1024)]
)
def test_a_connection_from_inside_arrives_at_the_daemon(launch: Launcher, address: str, port: int) -> None:
    sandbox = launch.python(CONNECT, address, str(port), ports=[Listener.tcp(address, port)])
    (listener,) = sandbox.sockets
    assert listener.getsockname()[:2] == (address, port)
    assert answer(listener) == b"from inside"
    assert sandbox.finish() == (0, "from outside", "")


def test_two_listeners_in_the_order_of_the_configuration(launch: Launcher) -> None:
    ports = [Listener.tcp("127.0.0.1", 3128), Listener.tcp("127.0.0.1", 1080)]
    sandbox = launch(["true"], ports=ports)
    assert [one.getsockname()[1] for one in sandbox.sockets] == [3128, 1080]
    assert all(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for one in sandbox.sockets)
    assert sandbox.finish()[0] == 0


def test_as_many_as_there_may_be(launch: Launcher) -> None:
    ports = [Listener.tcp("127.0.0.1", 2000 + n) for n in range(MAX_LISTENERS)]
    sandbox = launch(["true"], ports=ports)
    assert [one.getsockname()[1] for one in sandbox.sockets] == [2000 + n for n in range(MAX_LISTENERS)]
    assert sandbox.finish()[0] == 0


def test_a_port_of_the_systems_choice(launch: Launcher) -> None:
    sandbox = launch(["true"], ports=[Listener.tcp("127.0.0.1", 0)])
    assert sandbox.sockets[0].getsockname()[1] > 0
    assert sandbox.finish()[0] == 0


def test_the_same_port_in_many_sandboxes_and_on_the_host(launch: Launcher) -> None:
    """Each connection arrives on the listener of its own sandbox, so it is clear whose it is."""
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = Listener.tcp("127.0.0.1", here.getsockname()[1])
        sandboxes: list[Sandbox] = [launch.python(CONNECT, "127.0.0.1", str(port.port), ports=[port]) for _ in range(5)]
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(answer, [one.sockets[0] for one in sandboxes])) == [b"from inside"] * 5
        here.setblocking(False)
        with pytest.raises(BlockingIOError):
            here.accept()
    assert [one.finish()[0] for one in sandboxes] == [0] * 5


def test_the_network_namespace_is_the_sandboxs(launch: Launcher) -> None:
    sandbox = launch(["sleep", "1000"])
    sandbox.expect(Started())
    handed = os.fstat(sandbox.namespace).st_ino
    assert handed != os.stat("/proc/self/ns/net").st_ino
    init = int(Path(f"/proc/{sandbox.process.pid}/task/{sandbox.process.pid}/children").read_text())
    assert os.stat(f"/proc/{init}/ns/net").st_ino == handed


def test_they_are_ready_before_the_command_starts(launch: Launcher) -> None:
    sandbox = launch.python(CONNECT, "127.0.0.1", "3128", ports=[Listener.tcp("127.0.0.1", 3128)], flags=Flags.WAIT)
    sandbox.send(b"G")
    assert answer(sandbox.sockets[0]) == b"from inside"
    assert sandbox.finish()[0] == 0


def test_the_command_holds_none_of_them(launch: Launcher) -> None:
    """When the daemon closes them, the port is free: it was the last to hold them."""
    script = """
import socket, sys
sys.stdin.readline()
socket.create_server(("127.0.0.1", 3128)).close()
print("free")
"""
    sandbox = launch.python(script, ports=[Listener.tcp("127.0.0.1", 3128)], stdin=-1)
    sandbox.sockets.pop().close()
    out, err = sandbox.process.communicate(b"\n")
    assert (out, err) == (b"free\n", b"")


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ([Listener.tcp("127.0.0.1", 3128)] * 2, "port 3128: Address already in use"),
        ([Listener.tcp("192.0.2.1", 3128)], "port 3128: Cannot assign requested address"),
        ([Listener.tcp("127.0.0.1", 53)], "port 53: Permission denied"),
    ],
)
def test_what_cannot_be_opened_stops_the_launch(launch: Launcher, ports: list[Listener], message: str) -> None:
    sandbox = launch.connect()
    sandbox.send(configuration(["echo", "ran"], ports=ports))
    assert sandbox.next_event() == Failed(f"cannot listen in the sandbox on {message}")
    status, out, err = sandbox.finish()
    assert (status, out) == (125, "")
    assert err.startswith(f"sandboxd: cannot listen in the sandbox on {message}\nhint: ")
