"""Sockets of the host's network that a server outside hands in over a listed Unix socket (SCM_RIGHTS): they reach
no peer. What belongs to the sandbox, and what was connected outside, works as before."""

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
import array, ctypes, errno, json, os, signal, socket, struct, sys, threading
signal.alarm(30)
given = json.loads(sys.argv[1])
if given["threads"]: threading.Thread(target=threading.Event().wait, daemon=True).start()
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
with received("stream") as one: attempt("abstract bind", lambda: one.bind("\0sandboxd-test"))
away("unix", "unix", socket.AF_UNIX, given["datagrams"])
def again(one):
    unspecified(one)
    one.connect(tcp)
with received("connected") as one: attempt("connected anew", lambda: again(one))
with received("connected") as one:
    attempt("as connected", lambda: (one.sendall(b"GET / HTTP/1.0\r\n\r\n"), one.recv(12))[1].decode())
with received("connected") as one:
    words = [b"GET / HTTP/1.0\r\n", b"\r\n"]
    attempt("as connected by message", lambda: (one.sendmsg(words), one.recv(12))[1].decode())
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
    reads, writes = os.pipe()
    socket.send_fds(a, [b"x", b"y"], [server.fileno(), writes])
    data, (number, pipe), _, _ = socket.recv_fds(b, 2, 2)
    os.write(pipe, data)
    with socket.socket(fileno=number) as one: assert one.getsockname() == server.getsockname()
    return os.read(reads, 9).decode()
attempt("own rights", rights)
def no_rights():
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [server.fileno(), 9999]))])
attempt("own no rights", no_rights)
def credentials():
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    a.sendmsg([b"x"])
    (_, _, sent), = b.recvmsg(1, 100)[1]
    return str(struct.unpack("=iii", sent)[0] == os.getpid())
attempt("own credentials", credentials)
def waits(kind):  # until there is room; a message arrives whole, and once, whatever signals come
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, False)
    main, over = threading.get_ident(), threading.Event()
    def interrupt():
        while not over.wait(0.005): signal.pthread_kill(main, signal.SIGUSR1)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    one, other = socket.socketpair(type=kind)
    with one, other:
        words, got = [bytes([65 + n]) * 60000 for n in range(8)], []
        flags = socket.MSG_WAITALL if kind == socket.SOCK_STREAM else 0
        def read():
            for _ in words:
                over.wait(0.05)
                got.append(other.recv(60000, flags))
        reader = threading.Thread(target=read)
        reader.start()
        for word in words:
            while word: word = word[one.sendmsg([word]):]
        reader.join(); over.set(); interrupting.join()
        return str(b"".join(got) == b"".join(bytes([65 + n]) * 60000 for n in range(8)))
if given["threads"]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET): attempt(f"own waits {int(kind)}", lambda: waits(kind))
def patience():
    one, other = socket.socketpair()
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@qq", 0, 200000))
        while True: one.sendmsg([b"x" * 60000])
attempt("own patience", patience)
def without_reader():
    signal.signal(signal.SIGPIPE, lambda *_: done.setdefault("own pipe signal", "yes"))
    one, other = socket.socketpair()
    other.close()
    try:
        if libc.sendmsg(one.fileno(), ctypes.byref(Message(None, 0, ctypes.pointer(Words(b"x", 1)), 1)), 0) < 0:
            raise OSError(ctypes.get_errno(), "")
    finally: one.close()
attempt("own pipe", without_reader)
def packet_information():  # a control message that is only data
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        one.bind(("127.0.0.1", 0))
        source = struct.pack("=I4s4s", 0, socket.inet_aton("127.0.0.9"), bytes(4))
        other.sendmsg([b"from"], [(socket.IPPROTO_IP, 8, source)], 0, one.getsockname())
        return one.recvfrom(9)[1][0]
attempt("own source", packet_information)
def path_bound():
    own = "/tmp/sdt-" + os.urandom(8).hex()
    os.mkdir(own); os.chdir(own); os.umask(0o027)
    try:
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
            one.bind("relative"); one.listen()
            other.bind(own + "/absolute")
            return oct(os.stat("relative").st_mode & 0o777) + " " + " ".join(sorted(os.listdir(".")))
    finally: os.chdir("/")
attempt("own bind", path_bound)
def bound_outside():
    with socket.socket(socket.AF_UNIX) as one: one.bind(given["outside"] + "/socket")
attempt("own bind outside", bound_outside)
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
    "own sendmsg": "sendmsg", "own sendmmsg": "sendmmsg", "bad memory": "EFAULT", "own rights": "xy", "names": "True",
    "own no rights": "EBADF", "own patience": "EAGAIN", "own pipe": "EPIPE",
    "own source": "127.0.0.9", "own bind": "0o750 absolute relative", "own bind outside": "EROFS",
}  # fmt: skip


@pytest.mark.parametrize("threads", [False, True], ids=["alone", "threads"])
def test_a_socket_of_another_network_reaches_nobody(
    start_daemon: StartDaemon, identity: Identity, hands: Hands, origin: Origin, threads: bool
) -> None:
    """The calls of a command that is alone go on after a look, those of others are made for it; no difference shows."""
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
        given = {"hands": hands.path, "tcp": origin.port, "udp": udp.getsockname()[1], "datagrams": path,
                 "threads": threads, "outside": str(identity.base)}  # fmt: skip
        daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": [hands.path]}}})
        said = run(daemon, **given)
        waits = {"own waits 1": "True", "own waits 5": "True", "own credentials": "False"}
        own = OWN | (waits if threads else {"own pipe signal": "yes", "own credentials": "True"})
        kept = {name: said.pop(name, "") for name in own}
        assert kept == own
        assert said.pop("as connected") == said.pop("as connected by message") == "HTTP/1.1 200"
        assert set(said.values()) <= {"EACCES", "ENOTSUP", "EPIPE", "ENOTCONN"}, said
        assert [name for name, result in said.items() if "connect" in name and result != "EACCES"] == []
        for one in (udp, datagrams):
            with pytest.raises(BlockingIOError):
                one.recv(100)
        assert len(origin.connections) == 3  # those that the server outside made


RACE = r"""
import ctypes, json, os, signal, socket, struct, sys, threading
signal.alarm(100)
given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def received(kind):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(given["hands"])
        one.sendall(kind.encode() + b"\n")
        return socket.recv_fds(one, 10, 1)[1][0]
class Words(ctypes.Structure): _fields_ = [("base", ctypes.c_char_p), ("size", ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_uint32), ("iov", ctypes.POINTER(Words)),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("length", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]
def address(port):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton("127.0.0.1") + bytes(8)
to, anywhere, words = address(given["udp"]), address(0), Words(b"raced", 5)
one = Message(to, 16, ctypes.pointer(words), 1)
for kind in ("udp", "tcp"):
    foreign, place, over = received(kind), os.dup(0), False
    own = socket.socket(type=socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    def swap():
        while not over:
            libc.dup2(foreign, place)
            libc.dup2(own.fileno(), place)
    swapping = threading.Thread(target=swap)
    swapping.start()
    for _ in range(given["attempts"]):
        if kind == "udp":
            libc.sendmsg(place, ctypes.byref(one), 0)
            libc.sendmmsg(place, ctypes.byref(one), 1, 0)
            libc.sendto(place, b"raced", 5, 0, to, 16)
        else: libc.listen(place, 1)
        libc.bind(place, anywhere, 16)
    over = True
    swapping.join()
print("raced")
"""


def test_no_race_with_another_thread_leaves_by_it(
    start_daemon: StartDaemon, identity: Identity, hands: Hands, origin: Origin
) -> None:
    """A second thread exchanges the descriptor all the time: now the command's own socket, now one of the host."""
    daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": [hands.path]}}})
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        given = {"hands": hands.path, "udp": udp.getsockname()[1], "attempts": 5000}
        done = daemon.run("run", "--", "python3", "-I", "-S", "-c", RACE, json.dumps(given))
        assert (done.returncode, done.stdout) == (0, "raced\n"), done.stderr
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while udp.recv(100):
                sent += 1
        bound = [one.getsockname()[1] != 0 for one in hands.kept]
        listens = [one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for one in hands.kept]
        assert (sent, bound, listens) == (0, [False, False], [0, 0])
        hands.kept[0].sendto(b"twin", udp.getsockname())
        assert udp.recv(100) == b"twin"
