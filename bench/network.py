"""What the proxies cost beside a direct loopback connection, and whether they lose anything.

Three processes as in real use: this one is the client, one is the origin, one is the proxy with its own event loop.
Everything is plain blocking sockets here, so that what is measured is the proxy. `python -m bench.network` prints the
rows of this module alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.private_daemon import ROOT, Bench
from bench.rows import Row
from bench.timing import in_turns, median, ms, percentile

NAME = "ok.test"
MEGABYTE = 1 << 20
BUFFER = 1 << 16
"""What programs read and write at once: curl, Node, git and Python's own libraries use 16 to 128 KiB."""
TUNNELS = 1000


@dataclass(frozen=True, slots=True)
class Stand:
    """The origin's port, the proxy's ports, and the process ids of both."""

    origin: int
    http: int
    socks: int
    pid: int
    origin_pid: int

    def direct(self) -> socket.socket:
        return tuned(socket.create_connection(("127.0.0.1", self.origin)))

    def through_connect(self) -> socket.socket:
        sock = tuned(socket.create_connection(("127.0.0.1", self.http)))
        sock.sendall(b"CONNECT %b:%d HTTP/1.1\r\nHost: %b\r\n\r\n" % (NAME.encode(), self.origin, NAME.encode()))
        answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n"), answer
        return sock

    def through_socks(self) -> socket.socket:
        sock = tuned(socket.create_connection(("127.0.0.1", self.socks)))
        name = NAME.encode()
        sock.sendall(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + self.origin.to_bytes(2, "big"))
        answer = b""
        while len(answer) < 12:
            answer += sock.recv(12 - len(answer))
        assert answer[3] == 0, answer
        return sock

    def memory_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def throughput(bench: Bench | None, quick: bool) -> Iterator[Row]:
    """One connection, a gigabyte each way, with client and origin on different cores, and all on the same.

    Where the scheduler chooses, direct connections are at times twice as fast as at others (docs/performance.md)."""
    size = (256 if quick else 1024) * MEGABYTE
    cores = sorted(os.sched_getaffinity(0))
    places = {"two cores": (cores[:1], cores[1:2], cores[:2])} if len(cores) > 1 else {}
    places["one core"] = (cores[:1],) * 3
    with _stand() as stand:
        try:
            for place, (client, origin, proxy) in places.items():
                for pid, where in ((os.getpid(), client), (stand.origin_pid, origin), (stand.pid, proxy)):
                    _place(pid, where)
                for word, transfer in (("down", _download), ("up", _upload)):
                    yield _tunnel_row(stand, f"{word}, {place}", transfer, size, quick)
        finally:
            _place(os.getpid(), cores)


def _place(pid: int, cores: Sequence[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _tunnel_row(
    stand: Stand, title: str, transfer: Callable[[socket.socket, int], None], size: int, quick: bool
) -> Row:
    taken = in_turns(
        {
            "tunnel": lambda: transfer(stand.through_connect(), size),
            "direct": lambda: transfer(stand.direct(), size),
        },
        5 if quick else 11,
        warm_up=1,
    )
    tunnel, direct = size / median(taken["tunnel"]), size / median(taken["direct"])
    detail = {"tunnel": f"{tunnel / 1e9:.2f} GB/s", "direct": f"{direct / 1e9:.2f} GB/s"}
    budget = "≥ 0.85" if title.endswith("two cores") else ""
    return Row(f"tunnel throughput {title} ÷ direct loopback", tunnel / direct, "", budget, detail)


def connect_cost(bench: Bench | None, quick: bool) -> Iterator[Row]:
    """From nothing to the origin's first byte, and then what 1,000 open tunnels hold."""
    with _stand() as stand:
        taken = in_turns(
            {
                "CONNECT": lambda: _hello(stand.through_connect()),
                "SOCKS5": lambda: _hello(stand.through_socks()),
                "direct": lambda: _hello(stand.direct()),
            },
            500 if quick else 3000,
            warm_up=50,
        )
        direct = median(taken["direct"])
        for protocol in ("CONNECT", "SOCKS5"):
            ours = median(taken[protocol])
            detail = {"ours": ms(ours), "direct": ms(direct), "p99": ms(percentile(taken[protocol], 99))}
            yield Row(f"connect to first byte, {protocol} ÷ direct", ours / direct, "", "≤ 4", detail)
        taken = in_turns(
            {"CONNECT": lambda: stand.through_connect().close(), "direct": lambda: stand.direct().close()},
            500 if quick else 3000,
            warm_up=50,
        )
        ours, direct = median(taken["CONNECT"]), median(taken["direct"])
        # Without a byte from the origin: a bare connect() is answered by the kernel alone, so no budget goes with it.
        yield Row("CONNECT answered ÷ bare connect()", ours / direct, "", "", {"ours": ms(ours), "direct": ms(direct)})
        tunnels = [stand.through_connect() for _ in range(TUNNELS)]
        for tunnel in tunnels:
            tunnel.sendall(b"H\n")
        correct = sum(tunnel.recv(1) == b"!" for tunnel in tunnels)
        memory = stand.memory_mb()
        for tunnel in tunnels:
            tunnel.close()
        yield Row(f"{TUNNELS:,} tunnels at once: without an answer", TUNNELS - correct, "", "= 0")
        yield Row(f"{TUNNELS:,} tunnels at once: memory of the proxy's process", memory, "MB", "≤ 100")


def closed_by_origin(bench: Bench | None, quick: bool) -> Iterator[Row]:
    """The origin sends a megabyte and closes at once; every byte must arrive."""
    count = 100 if quick else 1000
    expected = hashlib.sha256(_pattern(MEGABYTE)).digest()
    with _stand() as stand:
        kinds: dict[str, Callable[[], socket.socket]] = {
            "CONNECT": stand.through_connect,
            "SOCKS5": stand.through_socks,
        }
        for protocol, connect in kinds.items():
            short = 0
            for number in range(count):
                with connect() as sock:
                    sock.sendall(b"C %d\n" % MEGABYTE)
                    if number % 2:  # half of the clients have closed their side by then
                        sock.shutdown(socket.SHUT_WR)
                    short += hashlib.sha256(_read_all(sock)).digest() != expected
            yield Row(f"{count:,} transfers of 1 MB closed by the origin, {protocol}: incomplete", short, "", "= 0")


def under_load(bench: Bench | None, quick: bool) -> Iterator[Row]:
    """Readers that pause, both ways at once, and many short requests over plain HTTP."""
    size, number = (20 if quick else 100) * MEGABYTE, 4
    with _stand() as stand:
        before = stand.memory_mb()
        wrong: list[int] = []
        readers = [
            threading.Thread(target=lambda: wrong.append(_wrong_with_pauses(stand.through_connect(), size)))
            for _ in range(number)
        ]
        for reader in readers:
            reader.start()
        highest = before
        while any(reader.is_alive() for reader in readers):
            highest = max(highest, stand.memory_mb())
            time.sleep(0.05)
        name = f"{number} tunnels, {size // MEGABYTE} MB up and down at once, readers that pause"
        yield Row(f"{name}: wrong", number - wrong.count(0), "", "= 0")
        yield Row(f"{name}: growth of the proxy's memory", highest - before, "MB", "≤ 16")
    requests = 1000 if quick else 10_000
    with _stand() as stand:
        begin = time.perf_counter()
        failed = sum(not _short_request(stand) for _ in range(requests))
        detail = {"each": ms((time.perf_counter() - begin) / requests)}
        yield Row(f"{requests:,} short requests, a connection each: failed", failed, "", "= 0", detail)


def _wrong_with_pauses(sock: socket.socket, size: int) -> int:
    """Send so many bytes while as many come back, slowly; 0 when they are the same."""
    sent, received = hashlib.sha256(), hashlib.sha256()

    def send() -> None:
        piece = os.urandom(BUFFER)
        for number in range(size // BUFFER):
            data = number.to_bytes(4, "big") + piece[4:]
            sent.update(data)
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    with sock:
        sock.sendall(b"E\n")
        sender = threading.Thread(target=send)
        sender.start()
        total = 0
        while data := sock.recv(BUFFER):
            received.update(data)
            if total // (8 * MEGABYTE) != (total + len(data)) // (8 * MEGABYTE):
                time.sleep(0.05)
            total += len(data)
        sender.join()
    return int(received.digest() != sent.digest())


def _short_request(stand: Stand) -> bool:
    with tuned(socket.create_connection(("127.0.0.1", stand.http))) as sock:
        sock.sendall(b"GET http://%b:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % (NAME.encode(), stand.origin))
        return _read_all(sock).endswith(b"\r\n\r\n!")


def _hello(sock: socket.socket) -> None:
    with sock:
        sock.sendall(b"H\n")
        assert sock.recv(1) == b"!"


def _download(sock: socket.socket, size: int) -> None:
    with sock:
        sock.sendall(b"D %d\n" % size)
        buffer = bytearray(BUFFER)
        received = 0
        while count := sock.recv_into(buffer):
            received += count
        assert received == size, (received, size)


def _upload(sock: socket.socket, size: int) -> None:
    with sock:
        sock.sendall(b"U %d\n" % size)
        piece = b"u" * BUFFER
        for _ in range(size // BUFFER):
            sock.sendall(piece)
        assert sock.recv(1) == b"!"


def _read_all(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def _pattern(size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(60)
    return sock


# the other two processes


@contextmanager
def _stand() -> Iterator[Stand]:
    with contextlib.ExitStack() as stack:
        [origin], origin_pid = stack.enter_context(child("bench.network", "origin"))
        (http, socks), pid = stack.enter_context(child("bench.network", "proxy"))
        yield Stand(origin, http, socks, pid, origin_pid)


@contextmanager
def child(module: str, *arguments: str) -> Iterator[tuple[list[int], int]]:
    """Run a module with arguments; give the ports it printed and its process id."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield [int(word) for word in process.stdout.readline().split()], process.pid
    finally:
        process.stdin.close()  # its sign to end
        process.wait(20)
        process.stdout.close()


def _listener() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    return sock


def _run_origin() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = _listener()
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    sys.stdin.read()


def _accept(listener: socket.socket) -> None:
    threading.stack_size(256 << 10)  # there may be ten thousand
    while True:
        sock, _ = listener.accept()
        tuned(sock).settimeout(600)
        threading.Thread(target=_answer, args=(sock,), daemon=True).start()


def _answer(sock: socket.socket) -> None:
    with contextlib.suppress(OSError), sock:
        line = b""
        while not line.endswith(b"\n"):
            piece = sock.recv(1)
            if not piece:
                return
            line += piece
        word, _, number = line.strip().partition(b" ")
        size = int(number) if number.isdigit() else 0
        if word == b"H":
            sock.sendall(b"!")
            sock.recv(1)
        elif word == b"GET":
            while not line.endswith(b"\r\n\r\n"):
                line += sock.recv(4096)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!")
        elif word == b"E":
            while data := sock.recv(BUFFER):
                sock.sendall(data)
        elif word == b"C":
            sock.sendall(_pattern(size))
        elif word == b"D":
            piece = b"d" * BUFFER
            for _ in range(size // BUFFER):
                sock.sendall(piece)
        elif word == b"U":
            buffer = bytearray(BUFFER)
            while size > 0:
                size -= sock.recv_into(buffer)
            sock.sendall(b"!")


async def _run_proxy() -> None:
    from sandboxd.policy.hosts.host_patterns import HostPattern
    from sandboxd.policy.model import HostRule, NetworkPolicy
    from sandboxd.proxy.dial import Dialer, PinnedResolver, SystemResolver
    from sandboxd.proxy.gate import Gate
    from sandboxd.proxy.server import ProxyServer
    from sandboxd.settings.origins import BUILT_IN

    network = NetworkPolicy(allowed=(HostRule(HostPattern.parse(NAME), BUILT_IN),))
    resolver = PinnedResolver({NAME: ("127.0.0.1",)}, SystemResolver())
    gate = Gate(lambda: network, None, resolver, resolver.pins)
    server = ProxyServer(gate, Dialer(), lambda blocked: print(blocked, file=sys.stderr), "bench")
    http, socks = _listener(), _listener()
    ports = http.getsockname()[1], socks.getsockname()[1]
    server.serve(http, socks)
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.aclose()


def _main(role: str) -> None:
    if role == "origin":
        _run_origin()
    elif role == "proxy":
        asyncio.run(_run_proxy())
    else:
        from bench.rows import table

        begin = time.perf_counter()
        rows = [
            row
            for part in (throughput, connect_cost, closed_by_origin, under_load)
            for row in part(None, role == "quick")
        ]
        print(table(rows), f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    _main(sys.argv[1] if len(sys.argv) > 1 else "")
