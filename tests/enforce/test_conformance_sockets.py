"""Unix sockets of the host in every kind and way of sending, and
every other family of sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity

PROGRAM = r"""
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
done = {}
def attempt(name, operation):
    try: operation(); done[name] = "done"
    except OSError as error: done[name] = errno.errorcode[error.errno]
def sendmmsg(path):
    class Words(ctypes.Structure): _fields_ = [("base", ctypes.c_char_p), ("size", ctypes.c_size_t)]
    class Message(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_uint32), ("iov", ctypes.POINTER(Words)),
                    ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("length", ctypes.c_size_t),
                    ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]
    address = b"\1\0" + path.encode() + b"\0"
    words = Words(b"mmsg", 4)
    message = Message(address, len(address), ctypes.pointer(words), 1, None, 0, 0, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        if libc.sendmmsg(one.fileno(), ctypes.byref(message), 1, 0) < 0: raise OSError(ctypes.get_errno(), "")
def datagram(way, path, pair=False):
    one = (socket.socketpair(type=socket.SOCK_DGRAM)[0] if pair else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    with one: way(one, path)
def connect(path, kind):
    with socket.socket(socket.AF_UNIX, kind) as one: one.connect(path)
WAYS = {
    "sendto": lambda path: datagram(lambda one, path: one.sendto(b"sendto", path), path),
    "sendmsg": lambda path: datagram(lambda one, path: one.sendmsg([b"sendmsg"], [], 0, path), path),
    "sendmmsg": sendmmsg,
    "connect": lambda path: datagram(lambda one, path: (one.connect(path), one.send(b"connect")), path),
    "pair": lambda path: datagram(lambda one, path: one.sendto(b"pair", path), path, True),
}
given = json.loads(sys.argv[1])
for way, operation in WAYS.items(): attempt("datagram " + way, lambda: operation(given["datagrams"]))
for path in given["services"]:
    attempt("connect " + os.path.basename(path), lambda: connect(path, socket.SOCK_STREAM))
for family in range(50):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        attempt("family %d %d" % (family, kind), lambda: socket.socket(family, kind).close())
def received():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(given["hands"])
        _, (number, *_), _, _ = socket.recv_fds(one, 1, 1)
        os.write(number, b"inside")
        mine = os.open("mine", os.O_RDWR | os.O_CREAT)
        socket.send_fds(one, [b"x"], [mine])
if given.get("hands"): attempt("received", received)
print(json.dumps(done))
"""
SERVICES = """docker.sock podman.sock containerd.sock buildkitd.sock S.gpg-agent ssh-agent.sock vscode-ipc-1.sock
    vscode-main-1.sock native kitty-1 nvim.1 sway-ipc.1.sock""".split()


class Servers:
    """Listeners on the host. None accepts: connections are seen in the backlog."""

    def __init__(self, identity: Identity) -> None:
        self.directory = identity.base / "s"
        self.directory.mkdir()
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.datagrams.bind(str(self.directory / "datagrams"))
        self.streams = {name: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for name in SERVICES}
        for name, one in self.streams.items():
            one.bind(str(self.directory / name))
            one.listen()
            one.setblocking(False)
        for path in (self.directory, *self.directory.iterdir()):
            identity.own(path)

    def given(self) -> dict[str, Any]:
        services = [str(self.directory / name) for name in SERVICES]
        return {"datagrams": str(self.directory / "datagrams"), "services": services}

    def arrived(self) -> list[str]:
        found: list[str] = []
        try:
            while True:
                found.append(self.datagrams.recv(100).decode())
        except BlockingIOError:
            pass
        for name, one in self.streams.items():
            try:
                one.accept()[0].close()
                found.append(name)
            except BlockingIOError:
                pass
        return found

    def close(self) -> None:
        for one in (self.datagrams, *self.streams.values()):
            one.close()


@pytest.fixture
def servers(identity: Identity) -> Iterator[Servers]:
    made = Servers(identity)
    yield made
    made.close()


def attempt(daemon: DaemonProcess, given: dict[str, Any]) -> dict[str, str]:
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", PROGRAM, json.dumps(given))
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


FAMILIES = {"family 2 1", "family 2 2", "family 10 1", "family 10 2", "family 16 2", "family 16 3"}
"""TCP and UDP, and the netlink that tells the addresses of this namespace."""
UNIX = {f"family 1 {kind}" for kind in (1, 2, 3, 5)}


def test_no_socket_of_the_host_is_reached(daemon: DaemonProcess, servers: Servers) -> None:
    """Neither by a datagram in any way of sending one, nor a service, nor by another family."""
    said = attempt(daemon, servers.given())
    assert {name for name, result in said.items() if result == "done"} == FAMILIES | UNIX
    assert servers.arrived() == []


def test_where_sockets_are_allowed_they_are_reached(start_daemon: StartDaemon, servers: Servers) -> None:
    """The twin: with every Unix socket allowed all of that arrives, so the attempts were good. A
    socket that is allowed can hand over anything; a file that the host opened is written through, as docs/settings.md
    says. Other families stay closed."""
    daemon = start_daemon(settings={"sandbox": {"network": {"allowAllUnixSockets": True}}})
    handed = daemon.identity.write(daemon.identity.home / "handed", "")
    with socket.socket(socket.AF_UNIX) as hands, handed.open("r+b") as file:
        hands.bind(str(servers.directory / "hands"))
        daemon.identity.own(servers.directory / "hands")
        hands.listen()
        got: list[int] = []

        def hand_over() -> None:
            with hands.accept()[0] as client:
                socket.send_fds(client, [b"x"], [file.fileno()])
                got.extend(socket.recv_fds(client, 1, 1)[1])

        thread = threading.Thread(target=hand_over)
        thread.start()
        said = attempt(daemon, {**servers.given(), "hands": str(servers.directory / "hands")})
        thread.join()
    refused = {name for name, result in said.items() if result != "done"}
    assert {name for name in said if name.startswith("family")} - refused == FAMILIES | UNIX
    assert servers.arrived() == ["sendto", "sendmsg", "mmsg", "connect", "pair", *SERVICES]
    assert handed.read_text() == "inside"
    assert os.path.samestat(os.fstat(got[0]), os.stat(daemon.identity.workspace / "mine"))
    os.close(got[0])
