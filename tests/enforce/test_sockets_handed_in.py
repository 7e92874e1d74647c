"""Sockets of the host's network that a server outside hands in over a listed Unix socket (SCM_RIGHTS): they reach
nobody. What belongs to the sandbox, and what was connected outside, works as before."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.hands import Hands
from support.origin import Origin
from support.users import Identity

INSIDE = r"""
import ctypes, errno, faulthandler, json, socket, struct, sys
faulthandler.dump_traceback_later(15, exit=True)
given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
done = {}
def attempt(name, operation):
    try: done[name] = operation() or "done"
    except OSError as error: done[name] = errno.errorcode[error.errno]
def received(kind):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(given["hands"])
        one.sendall(kind.encode() + b"\n")
        data, (number, *_), _, _ = socket.recv_fds(one, 10, 1)
        return socket.socket(fileno=number)
class Words(ctypes.Structure): _fields_ = [("base", ctypes.c_char_p), ("size", ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_uint32), ("iov", ctypes.POINTER(Words)),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("length", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]
def sendmmsg(one, address, flags=0):
    words = Words(b"sendmmsg", 8)
    message = Message(address, len(address), ctypes.pointer(words), 1, None, 0, 0, 0)
    if libc.sendmmsg(one.fileno(), ctypes.byref(message), 1, flags) < 0: raise OSError(ctypes.get_errno(), "")
def unspecified(one):
    if libc.connect(one.fileno(), bytes(16), 16): raise OSError(ctypes.get_errno(), "")
def raw(family, address):
    if family == socket.AF_UNIX: return struct.pack("=H", family) + address.encode() + b"\0"
    return struct.pack("=H", family) + struct.pack("!H", address[1]) + socket.inet_aton(address[0]) + bytes(8)
FASTOPEN, tcp, udp = 0x20000000, ("127.0.0.1", given["tcp"]), ("127.0.0.1", given["udp"])
def away(name, kind, family, address):
    def tried(way, operation):
        with received(kind) as one: attempt(name + " " + way, lambda: operation(one))
    tried("connect", lambda one: one.connect(address))
    tried("sendto", lambda one: (one.sendto(b"sendto", address), None)[1])
    tried("sendmsg", lambda one: (one.sendmsg([b"sendmsg"], [], 0, address), None)[1])
    tried("sendmmsg", lambda one: sendmmsg(one, raw(family, address)))
    if kind == "tcp":
        tried("fast", lambda one: (one.sendto(b"fast", FASTOPEN, address), None)[1])
        tried("fast sendmsg", lambda one: (one.sendmsg([b"fast"], [], FASTOPEN, address), None)[1])
        tried("fast sendmmsg", lambda one: sendmmsg(one, raw(family, address), FASTOPEN))
        def late(one):
            one.setsockopt(6, 30, 1)  # TCP_FASTOPEN_CONNECT
            one.connect(address)
            one.sendall(b"late")
        tried("fast connect", late)
        tried("listen", lambda one: one.listen())
    if kind != "unix": tried("bind", lambda one: one.bind(("127.0.0.1", 0)))
away("tcp", "tcp", socket.AF_INET, tcp)
away("udp", "udp", socket.AF_INET, udp)
away("unix", "unix", socket.AF_UNIX, given["datagrams"])
def again(one):
    unspecified(one)
    one.connect(tcp)
with received("connected") as one: attempt("connected anew", lambda: again(one))
with received("connected") as one:
    attempt("as connected", lambda: (one.sendall(b"GET / HTTP/1.0\r\n\r\n"), one.recv(12))[1].decode())
# What is its own.
server = socket.create_server(("127.0.0.1", 0))
def own():
    with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        one.sendmsg([b"sent"])
        return other.recv(9).decode()
attempt("own tcp", own)
def datagrams(way):
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        one.bind(("127.0.0.1", 0))
        way(other, one.getsockname())
        return one.recv(99999).decode()[:9]
attempt("own sendto", lambda: datagrams(lambda one, to: one.sendto(b"sendto", to)))
attempt("own large", lambda: datagrams(lambda one, to: one.sendto(b"x" * 65507, to)))
attempt("own too large", lambda: datagrams(lambda one, to: one.sendto(b"x" * 70000, to)))
attempt("own sendmsg", lambda: datagrams(lambda one, to: one.sendmsg([b"send", b"msg"], [], 0, to)))
attempt("own sendmmsg", lambda: datagrams(lambda one, to: sendmmsg(one, raw(2, to))))
attempt("bad memory", lambda: datagrams(lambda one, to: libc.sendto(one.fileno(), None, 4, 0, raw(2, to), 16) < 0
                                        and (_ for _ in ()).throw(OSError(ctypes.get_errno(), ""))))
a, b = socket.socketpair()
def rights():
    socket.send_fds(a, [b"x"], [server.fileno()])
    return str(len(socket.recv_fds(b, 1, 1)[1]))
attempt("own rights", rights)
def not_dumpable():  # as ssh-agent
    libc.prctl(4, 0)
    try:
        with received("udp") as one: one.connect(udp)
    except OSError as error: return errno.errorcode[error.errno]
    finally: libc.prctl(4, 1)
attempt("hidden connect", not_dumpable)
def listens():
    libc.prctl(4, 0)
    with socket.create_server(("127.0.0.1", 0)) as one: port = one.getsockname()[1]
    libc.prctl(4, 1)
    return str(port > 0)
attempt("own hidden", listens)
attempt("names", lambda: str(bool(socket.if_nameindex())))
print(json.dumps(done))
"""


def run(daemon: DaemonProcess, **given: object) -> dict[str, str]:
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", INSIDE, json.dumps(given))
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


OWN = {
    "own hidden": "True",
    "own tcp": "sent", "own sendto": "sendto", "own large": "xxxxxxxxx", "own too large": "EMSGSIZE",
    "own sendmsg": "sendmsg", "own sendmmsg": "sendmmsg", "bad memory": "EFAULT", "own rights": "1", "names": "True",
}  # fmt: skip


def test_a_socket_of_another_network_reaches_nobody(
    start_daemon: StartDaemon, identity: Identity, hands: Hands, origin: Origin
) -> None:
    path = str(identity.base / "datagrams")
    with contextlib.ExitStack() as stack:
        udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(path)
        identity.own(Path(path))
        os.chmod(path, 0o777)
        udp.setblocking(False)
        datagrams.setblocking(False)
        given = {"hands": hands.path, "tcp": origin.port, "udp": udp.getsockname()[1], "datagrams": path}
        daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": [hands.path]}}})
        said = run(daemon, **given)
        kept = {name: said.pop(name) for name in OWN}
        assert kept == OWN
        assert said.pop("as connected") == "HTTP/1.1 200"
        assert set(said.values()) <= {"EACCES", "ENOTSUP", "EPIPE", "ENOTCONN"}, said
        assert [name for name, result in said.items() if "connect" in name and result != "EACCES"] == []
        for one in (udp, datagrams):
            with pytest.raises(BlockingIOError):
                one.recv(100)
        assert len(origin.connections) == 2  # those that the server outside made
