"""Connects that wait for the daemon's answer: the test is the daemon."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import Exited, Failed, Started
from sandboxd.backends.linux.helper.notifications import (
    AGAIN,
    Connecting,
    Listens,
    RefusedCall,
    encode_answer,
)
from sandboxd.host.socket_files import find_sockets
from sandboxd.plan.plan import Supervision, UnixSockets
from support.users import Identity
from support.waiting import wait_until

from .conftest import OPTIONS, PYTHON, Launcher, Sandbox

INTERNET = Supervision(connects=True)
UNIX = Supervision(unix_sockets=UnixSockets.LISTED)
BOTH = Supervision(connects=True, unix_sockets=UnixSockets.LISTED)
INET, INET6, UNIX_FAMILY = int(socket.AF_INET), int(socket.AF_INET6), int(socket.AF_UNIX)

TRY = """
import errno, os, socket, sys
def attempt(family, kind, address, prepare=lambda s: None):
    with socket.socket(family, kind) as s:
        prepare(s)
        error = s.connect_ex(address)
        print(errno.errorcode.get(error, error), flush=True)
        return s
"""


def question(sandbox: Sandbox) -> Connecting:
    event = sandbox.next_event()
    assert isinstance(event, Connecting), event
    return event


def answer(sandbox: Sandbox, asked: Connecting, number: int) -> None:
    sandbox.send(encode_answer(asked.question, number))


def finish(sandbox: Sandbox) -> str:
    status, out, err = sandbox.finish()
    assert (status, err) == (0, "")
    return out


class TestInternet:
    @pytest.mark.parametrize("watched", [INTERNET, BOTH])
    @pytest.mark.parametrize(
        ("family", "address", "asked"),
        [
            (INET, ("192.0.2.1", 443), (INET, "192.0.2.1", 443)),
            (INET6, ("2001:db8::1", 80), (INET6, "2001:db8::1", 80)),
            (INET6, ("::ffff:192.0.2.7", 80), (INET, "192.0.2.7", 80)),
        ],
    )
    def test_asked_and_refused_and_let_through(
        self, launch: Launcher, watched: Supervision, family: int, address: tuple[str, int], asked: tuple[object, ...]
    ) -> None:
        """Its name is that of its executable, whatever a thread calls itself."""
        named = "open('/proc/self/comm', 'w').write('main2')"
        script = f"{TRY}\n{named}\nfor _ in range(2): attempt({family}, 1, {address!r})"
        sandbox = launch.python(script, watched=watched)
        sandbox.expect(Started())
        for number in (errno.ECONNREFUSED, 0):
            got = question(sandbox)
            assert (got.family, got.address, got.port) == asked
            assert got.process == PYTHON and got.pid > 1
            answer(sandbox, got, number)
        assert finish(sandbox) == "ECONNREFUSED\nENETUNREACH\n"

    def test_an_mptcp_socket(self, launch: Launcher) -> None:
        script = f"""{TRY}
try: s = socket.socket(2, 1, 262)
except OSError: s = socket.socket()  # a kernel without it
print(s.connect_ex(("192.0.2.1", 1)))"""
        sandbox = launch.python(script, watched=INTERNET)
        sandbox.expect(Started())
        answer(sandbox, question(sandbox), 5)
        assert finish(sandbox) == "5\n"

    @pytest.mark.parametrize("watched", [INTERNET, BOTH])
    def test_what_is_not_asked_about(self, launch: Launcher, watched: Supervision) -> None:
        script = f"""{TRY}
import struct
server, server6 = socket.create_server(("0.0.0.0", 0)), socket.create_server(("::", 0), family=10)
for address in ("127.0.0.1", "127.9.9.9", "0.0.0.0"):
    attempt(2, 1, (address, server.getsockname()[1]))
attempt(10, 1, ("::1", server6.getsockname()[1]))
attempt(10, 1, ("::", server6.getsockname()[1]))
attempt(10, 1, ("::ffff:127.0.0.1", server.getsockname()[1]))
attempt(2, 1, ("192.0.2.1", 80), lambda s: s.setblocking(False))
attempt(2, 2, ("192.0.2.1", 80))
attempt(2, 2, ("127.0.0.1", 80))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(fd, address, length):
    print(errno.errorcode.get(ctypes.get_errno(), 0) if libc.connect(fd, address, length) else 0)
with socket.socket() as s:
    raw(s.fileno(), struct.pack("<H", 0) + bytes(14), 16)  # AF_UNSPEC
    raw(s.fileno(), None, 16)
    raw(s.fileno(), bytes(200), 200)
    raw(s.fileno(), bytes(200), -1)
    raw(s.fileno(), b"x", 1)
raw(99, bytes(16), 16)
raw(0, struct.pack("<HH", 2, 80) + bytes([192, 0, 2, 1]) + bytes(8), 16)
a, b = socket.socketpair()
raw(a.fileno(), bytes([1, 0]) + b"/x", 4)
c = socket.create_connection(server.getsockname())
raw(c.fileno(), struct.pack("<HH", 2, 80) + bytes([192, 0, 2, 1]) + bytes(8), 16)
"""
        sandbox = launch.python(script, watched=watched, stdin=-3)
        sandbox.expect(Started(), Listens(), Listens(), Exited(0, 0))
        unwatched = finish(launch.python(script))
        lines = finish(sandbox).split()
        assert lines == unwatched.split()
        assert lines[:6] == ["0"] * 6

    def test_ports_of_the_loopback_that_are_asked_about(self, launch: Launcher) -> None:
        script = f"{TRY}\nfor port in (5431, 5432, 5440, 5441): attempt(2, 1, ('127.0.0.1', port))"
        sandbox = launch.python(script, watched=INTERNET, asked_ports=((9, 9), (5432, 5440)))
        sandbox.expect(Started())
        for port in (5432, 5440):
            got = question(sandbox)
            assert (got.address, got.port) == ("127.0.0.1", port)
            answer(sandbox, got, errno.EACCES)
        assert finish(sandbox) == "ECONNREFUSED\nEACCES\nEACCES\nECONNREFUSED\n"

    def test_many_wait_in_threads_and_are_answered_in_any_order(self, launch: Launcher) -> None:
        script = f"""{TRY}
import threading
def one(n):
    with socket.socket() as s: results[n] = s.connect_ex(("192.0.2.1", 1000 + n))
results = {{}}
threads = [threading.Thread(target=one, args=(n,)) for n in range(50)]
[t.start() for t in threads]; [t.join() for t in threads]
print(all(results[n] == 1000 + n for n in range(50)))"""
        sandbox = launch.python(script, watched=INTERNET)
        sandbox.expect(Started())
        for asked in reversed([question(sandbox) for _ in range(50)]):
            answer(sandbox, asked, asked.port)
        assert finish(sandbox) == "True\n"

    def test_more_than_can_wait_go_on_at_once(self, launch: Launcher) -> None:
        script = f"""{TRY}
import threading
threading.stack_size(1 << 16)
def one(n):
    with socket.socket() as s: results.append(s.connect_ex(("192.0.2.1", 1000 + n)))
results = []
threads = [threading.Thread(target=one, args=(n,)) for n in range(300)]
[t.start() for t in threads]
import time
while len(results) < 44: time.sleep(0.001)
print("full", flush=True)
[t.join() for t in threads]
print(sorted(results) == [5] * 256 + [errno.ENETUNREACH] * 44)"""
        sandbox = launch.python(script, watched=INTERNET)
        sandbox.expect(Started())
        asked = [question(sandbox) for _ in range(256)]
        assert sandbox.process.stdout is not None and sandbox.process.stdout.readline() == b"full\n"
        for one in asked:
            answer(sandbox, one, 5)
        assert finish(sandbox) == "True\n"

    def test_a_daemon_that_is_gone_lets_them_go_on(self, launch: Launcher) -> None:
        script = f"{TRY}\nfor _ in range(2): attempt(2, 1, ('192.0.2.1', 80))"
        sandbox = launch.python(script, watched=INTERNET)
        sandbox.expect(Started())
        question(sandbox)
        sandbox.hang_up()
        assert finish(sandbox) == "ENETUNREACH\nENETUNREACH\n"

    def test_a_daemon_that_took_over_asks_for_the_questions_again(self, launch: Launcher) -> None:
        sandbox = launch.python(f"{TRY}\nattempt(2, 1, ('192.0.2.1', 80))", watched=INTERNET)
        sandbox.expect(Started())
        first = question(sandbox)
        sandbox.send(AGAIN)
        assert question(sandbox) == first
        answer(sandbox, first, errno.EACCES)
        answer(sandbox, first, 0)  # an answer to a question that is over
        assert finish(sandbox) == "EACCES\n"

    def test_an_answer_in_pieces(self, launch: Launcher) -> None:
        sandbox = launch.python(f"{TRY}\nattempt(2, 1, ('192.0.2.1', 80))", watched=INTERNET)
        sandbox.expect(Started())
        for byte in encode_answer(question(sandbox).question, errno.EACCES):
            sandbox.send(bytes([byte]))
        assert finish(sandbox) == "EACCES\n"

    @pytest.mark.parametrize("data", [b"X", b"\0", b"R" + bytes(4) + b"\xff" * 4])
    def test_what_is_no_answer_ends_the_sandbox(self, launch: Launcher, data: bytes) -> None:
        sandbox = launch.python(f"{TRY}\nattempt(2, 1, ('192.0.2.1', 80)); print('on')", watched=INTERNET)
        sandbox.expect(Started())
        question(sandbox)
        sandbox.send(data)
        sandbox.expect(Failed("the daemon sent something unknown"))
        status, out, _ = sandbox.finish()
        assert (status, out) == (125, "")


INTERRUPTED = f"""{TRY}
import signal, threading, time
def handle(*_): raise KeyboardInterrupt
signal.signal(signal.SIGINT, handle)
main = threading.main_thread().ident
try:
    s = socket.socket(FAMILY, 1)
    print("begin", flush=True)
    s.connect(ADDRESS)
except KeyboardInterrupt:
    print("interrupted", flush=True)
s.close()
attempt(FAMILY, 1, ADDRESS)
"""


def test_a_signal_ends_the_wait(launch: Launcher) -> None:
    script = INTERRUPTED.replace("FAMILY", "2").replace("ADDRESS", "('192.0.2.1', 80)")
    sandbox = launch.python(script, watched=INTERNET)
    sandbox.expect(Started())
    first = question(sandbox)
    init = int(Path(f"/proc/{sandbox.process.pid}/task/{sandbox.process.pid}/children").read_text())
    os.kill(int(Path(f"/proc/{init}/task/{init}/children").read_text()), signal.SIGINT)
    second = question(sandbox)
    answer(sandbox, first, errno.EIO)  # too late
    answer(sandbox, second, errno.EACCES)
    assert finish(sandbox) == "begin\ninterrupted\nEACCES\n"


class Sockets:
    """Servers on the host, and names for them."""

    def __init__(self, base: Path, identity: Identity) -> None:
        self.base = base
        self.identity = identity
        self.servers: list[socket.socket] = []

    def serve(self, name: str, kind: int = socket.SOCK_STREAM, backlog: int = 8) -> str:
        server = socket.socket(socket.AF_UNIX, kind)
        server.bind(str(self.base / name))
        self.identity.own(self.base / name)
        server.listen(backlog)
        server.settimeout(30)
        self.servers.append(server)
        return str(self.base / name)


@pytest.fixture
def sockets(identity: Identity) -> Iterator[Sockets]:
    base = identity.runtime / "sockets"
    base.mkdir()
    identity.own(base)
    made = Sockets(base, identity)
    yield made
    for server in made.servers:
        server.close()


OWN = """
import ctypes, os, socket, threading
os.chdir(BASE)
libc = ctypes.CDLL(None, use_errno=True)
def mmsg(one, data, path):
    address = bytes([1, 0]) + path.encode() + bytes(1)
    name, text = ctypes.create_string_buffer(address, len(address)), ctypes.create_string_buffer(data, len(data))
    parts = (ctypes.c_uint64 * 2)(ctypes.addressof(text), len(data))
    head = (ctypes.c_uint64 * 8)(ctypes.addressof(name), len(address), ctypes.addressof(parts), 1, 0, 0, 0, 0)
    assert libc.sendmmsg(one.fileno(), head, 1, 0) == 1, ctypes.get_errno()
def all_kinds():
    for place in ("s", BASE + "/s", "\\0name"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(1, kind) as server, socket.socket(1, kind) as one:
                server.bind(place); server.listen()
                assert server.getsockname() == (place.encode() if place[0] == "\\0" else place)
                at = place
                if place[0] != "\\0":
                    os.rename(place, "moved"); os.link("moved", "second"); os.symlink("second", "link"); at = "link"
                one.connect(at)
                with server.accept()[0] as other:
                    one.sendall(b"x"); assert other.recv(2) == b"x"
            for name in ("moved", "second", "link"):
                if place[0] != "\\0": os.unlink(name)
        with socket.socket(1, 2) as server, socket.socket(1, 2) as one, socket.socket(1, 2) as connected:
            server.bind(place)
            one.sendto(b"1", place); one.sendmsg([b"2"], [], 0, place); connected.connect(place); connected.send(b"3")
            assert [server.recv(2) for _ in range(3)] == [b"1", b"2", b"3"]
            if place[0] != "\\0":
                mmsg(one, b"4", place); assert server.recv(2) == b"4"
                os.unlink(place)
    for kind in (1, 2, 5):
        one, other = socket.socketpair(1, kind)
        one.send(b"x"); assert other.recv(2) == b"x"
    with socket.socket(1) as one: one.bind(""); assert one.getsockname()[:1] == b"\\0"
    print("ok", flush=True)
all_kinds()
thread = threading.Thread(target=all_kinds); thread.start(); thread.join()
"""

SWAPS = """
import os, socket, sys, threading
os.chdir(BASE)
outside, done, reached = sys.argv[1:], False, 0
swaps = threading.Event()
def swap(n):
    name = f"swap{n}"
    while swaps.wait() and not done:
        try:
            os.link(outside[n % 2], name); os.rename(name, "s"); os.rename("s", name); os.unlink(name)
        except OSError: pass
        try: os.unlink(name)
        except OSError: pass
threads = [threading.Thread(target=swap, args=(n,)) for n in range(10)]
[one.start() for one in threads]
for turn in range(400):
    kind = 1 + turn % 2
    if turn % 10 == 0: swaps.clear()  # they all come to rest
    if turn % 10 == 3: swaps.set()
    with socket.socket(1, kind) as server, socket.socket(1, kind) as one:
        try:
            server.bind("s")
            if kind == 1: server.listen(); one.connect("s")
            else: one.sendto(b"x", "s")
            reached += 1
        except OSError: pass
        try: os.unlink("s")
        except OSError: pass
done = True
swaps.set()
[one.join() for one in threads]
print(reached)
"""


class TestUnix:
    @pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
    def test_a_listed_socket_is_connected_and_another_is_not(
        self, launch: Launcher, sockets: Sockets, kind: int
    ) -> None:
        listed, other = sockets.serve("listed", kind), sockets.serve("other", kind)
        script = f"""{TRY}
attempt(1, {int(kind)}, sys.argv[2])
s = socket.socket(1, {int(kind)})
s.connect(sys.argv[1]); s.sendall(b"hello"); print(s.recv(10), s.getpeername() == sys.argv[1])"""
        sandbox = launch.python(script, listed, other, watched=UNIX)
        sandbox.expect(Started())
        asked = question(sandbox)
        assert (asked.family, asked.address, asked.port) == (UNIX_FAMILY, other, 0)
        answer(sandbox, asked, errno.EACCES)
        asked = question(sandbox)
        assert asked.address == listed
        answer(sandbox, asked, 0)
        with sockets.servers[0].accept()[0] as connection:
            assert connection.recv(10) == b"hello"
            connection.sendall(b"there")
        assert finish(sandbox) == "EACCES\nb'there' True\n"
        sockets.servers[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            sockets.servers[1].accept()

    def test_the_name_is_that_of_the_inode(self, launch: Launcher, sockets: Sockets) -> None:
        target = sockets.serve("real")
        (sockets.base / "link").symlink_to("real")
        (sockets.base / "chain").symlink_to(sockets.base / "link")
        script = f"""{TRY}
os.chdir(sys.argv[1])
for name in ("real", "link", "./chain", sys.argv[1] + "/../sockets//chain"): attempt(1, 1, name)
os.chdir("/proc/self")
for name in ("/proc/self/cwd/../../real", "cwd"): attempt(1, 1, name)"""
        sandbox = launch.python(script, str(sockets.base), watched=UNIX)
        sandbox.expect(Started())
        for _ in range(4):
            asked = question(sandbox)
            assert asked.address == target
            answer(sandbox, asked, 0)
        assert [type(event) for event in sandbox.rest()] == [RefusedCall, RefusedCall, Exited]
        assert finish(sandbox).split() == ["0"] * 4 + ["EACCES"] * 2

    def test_it_says_which_socket_it_is(self, launch: Launcher, sockets: Sockets) -> None:
        """The one that is connected, whatever is at the path by the time of the answer."""
        first, second = sockets.serve("first"), sockets.serve("second")
        files = [find_sockets([(path, path)]).found[0].file for path in (first, second)]
        script = f"{TRY}\nfor _ in range(2): attempt(1, 1, sys.argv[1])"
        sandbox = launch.python(script, first, watched=UNIX)
        sandbox.expect(Started())
        asked = question(sandbox)
        assert (asked.address, asked.port, asked.file) == (first, 0, files[0])
        os.rename(second, first)
        sandbox.send(AGAIN)
        again = question(sandbox)
        assert (again.question, again.file) == (asked.question, files[0])
        answer(sandbox, asked, 0)
        asked = question(sandbox)
        assert (asked.address, asked.file) == (first, files[1])
        answer(sandbox, asked, errno.EACCES)
        assert finish(sandbox).split() == ["0", "EACCES"]
        sockets.servers[0].accept()[0].close()

    def test_what_is_answered_without_a_question(self, launch: Launcher, sockets: Sockets) -> None:
        (sockets.base / "file").write_text("")
        script = f"""{TRY}
os.chdir(sys.argv[1])
attempt(1, 1, "missing")
attempt(1, 1, "file/x")
attempt(1, 1, "file")
attempt(1, 1, "\\0abstract")
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(fd, address, length):
    print(errno.errorcode.get(ctypes.get_errno(), 0) if libc.connect(fd, address, length) else 0)
s = socket.socket(1)
raw(s.fileno(), bytes([1, 0]), 2)
raw(s.fileno(), bytes([2, 0]) + b"/x", 4)
raw(s.fileno(), None, 20)
raw(s.fileno(), bytes(200), 200)
raw(0, bytes([1, 0]) + b"/x", 4)
raw(99, bytes([1, 0]) + b"/x", 4)
raw(s.fileno(), bytes(2), 2)"""
        sandbox = launch.python(script, str(sockets.base), watched=UNIX)
        sandbox.expect(Started(), Exited(0, 0))
        assert finish(sandbox).split() == [
            *("ENOENT", "ENOTDIR", "ECONNREFUSED", "ECONNREFUSED", "EINVAL", "EINVAL", "EFAULT", "EINVAL", "ENOTSOCK"),
            *("EBADF", "EINVAL"),
        ]

    def test_the_daemon_gone(self, launch: Launcher, sockets: Sockets) -> None:
        path = sockets.serve("s")
        sandbox = launch.python(f"{TRY}\nfor _ in range(2): attempt(1, 1, sys.argv[1])", path, watched=UNIX)
        sandbox.expect(Started())
        question(sandbox)
        sandbox.hang_up()
        assert finish(sandbox) == "EACCES\nEACCES\n"

    def test_a_full_backlog_holds_up_the_caller_only(self, launch: Launcher, sockets: Sockets) -> None:
        path = sockets.serve("s", backlog=0)
        script = f"""{TRY}
import threading
connected = []
def one():
    s = socket.socket(1); s.connect(sys.argv[1]); connected.append(s)
threads = [threading.Thread(target=one) for _ in range(4)]
[t.start() for t in threads]
attempt(2, 1, ("127.0.0.1", 9))
attempt(1, 1, sys.argv[1], lambda s: s.setblocking(False))
[t.join() for t in threads]
print(len(connected))"""
        sandbox = launch.python(script, path, watched=UNIX)
        sandbox.expect(Started())
        for _ in range(5):
            answer(sandbox, question(sandbox), 0)
        assert sandbox.process.stdout is not None
        assert sandbox.process.stdout.readline() + sandbox.process.stdout.readline() == b"ECONNREFUSED\nEAGAIN\n"
        for _ in range(4):
            sockets.servers[0].accept()[0].close()
        assert finish(sandbox) == "4\n"

    def test_an_interrupted_caller_leaves_no_connection_behind(self, launch: Launcher, sockets: Sockets) -> None:
        path = sockets.serve("s", backlog=0)
        with socket.socket(socket.AF_UNIX) as filler:
            filler.connect(path)
            script = INTERRUPTED.replace("FAMILY", "1").replace("ADDRESS", repr(path))
            sandbox = launch.python(script, watched=UNIX)
            sandbox.expect(Started())
            answer(sandbox, question(sandbox), 0)
            init = int(Path(f"/proc/{sandbox.process.pid}/task/{sandbox.process.pid}/children").read_text())
            children = Path(f"/proc/{init}/task/{init}/children")
            wait_until(lambda: len(children.read_text().split()) == 2, "somebody connects for the command")
            os.kill(int(children.read_text().split()[0]), signal.SIGINT)
            answer(sandbox, question(sandbox), errno.EACCES)
            assert finish(sandbox) == "begin\ninterrupted\nEACCES\n"
            sockets.servers[0].accept()[0].close()
            sockets.servers[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                sockets.servers[0].accept()

    def test_the_address_cannot_be_swapped(self, launch: Launcher, sockets: Sockets) -> None:
        """What was asked about is what is connected, whatever the caller does to its memory and descriptors."""
        allowed, secret = sockets.serve("a", backlog=1000), sockets.serve("b", backlog=1000)
        script = """
import ctypes, os, socket, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
one, other = (bytes([1, 0]) + os.fsencode(name) + bytes(1) for name in sys.argv[1:3])
address = ctypes.create_string_buffer(one, len(one))
done = False
def swap():
    while not done:
        ctypes.memmove(address, other, len(other)); ctypes.memmove(address, one, len(one))
thread = threading.Thread(target=swap); thread.start()
for _ in range(200):
    s = socket.socket(1); libc.connect(s.fileno(), address, len(one)); s.close()
done = True; thread.join()
s = socket.socket(1); libc.connect(s.fileno(), one, len(one)); s.close()  # the twin: the thread may win every race
"""
        sandbox = launch.python(script, allowed, secret, watched=UNIX)
        sandbox.expect(Started())
        for event in iter(sandbox.next_event, None):
            if isinstance(event, Connecting):
                answer(sandbox, event, 0 if event.address == allowed else errno.EACCES)
        assert finish(sandbox) == ""
        sockets.servers[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            sockets.servers[1].accept()
        sockets.servers[0].accept()[0].close()

    def test_what_was_bound_inside_is_reached_without_asking(self, launch: Launcher, sockets: Sockets) -> None:
        """By each kind of socket and each way of sending, also from threads, by links, and after it was moved."""
        script = OWN.replace("BASE", repr(str(sockets.base)))
        writable = ("--bind", str(sockets.base), str(sockets.base))
        sandbox = launch.python(script, watched=UNIX, options=(*OPTIONS, *writable))
        sandbox.expect(Started(), Exited(0, 0))
        assert finish(sandbox).split() == ["ok"] * 2

    def test_a_datagram_to_another_socket_is_asked_about(self, launch: Launcher, sockets: Sockets) -> None:
        script = f"""{TRY}
def send(how):
    try: return how()
    except OSError as error: return errno.errorcode[error.errno]
s = socket.socket(1, 2)
for how in (lambda: s.sendto(b"to", sys.argv[1]), lambda: s.sendmsg([b"msg"], [], 0, sys.argv[1])) * 2:
    print(send(how), flush=True)
attempt(1, 2, sys.argv[1], lambda one: None)
pair = socket.socketpair(1, 2)
print(send(lambda: pair[0].sendto(b"pair", sys.argv[1])), pair[1].send(b"own"), pair[0].recv(9))"""
        path = str(sockets.base / "datagrams")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(path)
            sockets.identity.own(sockets.base / "datagrams")
            server.settimeout(30)
            sandbox = launch.python(script, path, watched=UNIX)
            sandbox.expect(Started())
            for number in (errno.EACCES, errno.EACCES, 0, 0, errno.EACCES, errno.EACCES):
                asked = question(sandbox)
                assert (asked.family, asked.address) == (UNIX_FAMILY, path) and asked.file is not None
                answer(sandbox, asked, number)
            assert finish(sandbox) == "EACCES\nEACCES\n2\n3\nEACCES\nEACCES 3 b'own'\n"
            assert (server.recv(9), server.recv(9)) == (b"to", b"msg")
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recv(9)

    def test_no_swap_makes_a_socket_of_the_host_its_own(self, launch: Launcher, sockets: Sockets) -> None:
        """Ten threads exchange what is bound, connected and sent to with links to sockets outside."""
        stream = sockets.serve("stream", backlog=1000)
        path = str(sockets.base / "datagrams")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(path)
            sockets.identity.own(sockets.base / "datagrams")
            options = (*OPTIONS, "--bind", str(sockets.base), str(sockets.base))
            script = SWAPS.replace("BASE", repr(str(sockets.base)))
            sandbox = launch.python(script, stream, path, watched=UNIX, options=options)
            sandbox.expect(Started())
            for event in iter(sandbox.next_event, None):
                if isinstance(event, Connecting):
                    answer(sandbox, event, errno.EACCES)
            out = finish(sandbox).split()
            assert int(out[0]) > 20, out  # the twin: some reach what was bound inside
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recv(9)
        sockets.servers[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            sockets.servers[0].accept()

    def test_a_caller_that_cannot_be_read_is_refused(self, launch: Launcher, sockets: Sockets) -> None:
        path = sockets.serve("s")
        script = f"""{TRY}
attempt(1, 1, sys.argv[1])
for port in (0, 0):
    try: print(socket.create_server(("127.0.0.1", port)))
    except OSError as error: print(errno.errorcode[error.errno])
"""
        line = """cp "$(readlink -f "$(command -v python3)")" /tmp/p; chmod 111 /tmp/p; exec /tmp/p -I -S -c "$@" """
        sandbox = launch(["sh", "-c", line, "sh", script, path], watched=UNIX)
        sandbox.expect(Started())
        refused = [event for event in sandbox.rest() if isinstance(event, RefusedCall)]
        assert {event.path for event in refused} == {"/(a socket that cannot be looked at)"}
        assert sum(event.count for event in refused) == 3
        assert finish(sandbox) == "EACCES\n" * 3

    def test_a_caller_that_hides_is_looked_at_all_the_same(self, launch: Launcher, sockets: Sockets) -> None:
        """As ssh-agent does: it makes itself undumpable, listens, and connects."""
        script = f"{TRY}\nimport ctypes; print(ctypes.CDLL(None).prctl(4, 0)); attempt(1, 1, sys.argv[1])"
        sandbox = launch.python(script, sockets.serve("s"), watched=UNIX)
        sandbox.expect(Started())
        answer(sandbox, question(sandbox), 0)
        assert finish(sandbox) == "0\n0\n"

    def test_descriptors_can_be_shared_by_processes(self, launch: Launcher) -> None:
        script = """import ctypes, errno, os, threading
libc, number = ctypes.CDLL(None, use_errno=True), {"x86_64": 56, "aarch64": 220}[os.uname().machine]
for flags in (0x411, 0x11):
    child = libc.syscall(number, flags, 0, 0, 0, 0)
    if not child: os._exit(0)
    print(errno.errorcode[ctypes.get_errno()] if child < 0 else os.waitpid(child, 0)[1], flush=True)
thread = threading.Thread(target=print, args=("thread",))
thread.start(); thread.join()"""
        sandbox = launch.python(script, watched=UNIX)
        sandbox.expect(Started())
        assert finish(sandbox) == "0\n0\nthread\n"
