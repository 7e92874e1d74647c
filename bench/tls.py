"""Cost of TLS that ends in the proxy, beside TLS from end to end through the same libraries.

Three processes as in `bench.network`: this one is the client, one the origin, one the proxy. All use Python's ssl.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes

from bench.network import BUFFER, MEGABYTE, NAME, child, tuned
from bench.private_daemon import ROOT, Bench
from bench.rows import Row
from bench.timing import in_turns, median, ms

CONNECTIONS = 1000
"""Fewer than a command may have (`MOST_TLS`)."""
CERTIFICATES = ROOT / "tests" / "proxy" / "tls"
WINDOW = 4 << 20
"""Of the client of HTTP/2."""


@dataclass(frozen=True, slots=True)
class TlsStand:
    """Ports of origin and proxies, the processes of both, and what the client trusts with each.

    TLS ends in the first proxy. In the second it would for another host, and in the third for none."""

    origin: int
    http: int
    beside: int
    without: int
    origin_pid: int
    pid: int
    directory: Path

    def direct(self, *protocols: str) -> ssl.SSLSocket:
        sock = tuned(socket.create_connection(("127.0.0.1", self.origin)))
        return self._context("origin", *protocols).wrap_socket(sock, server_hostname=NAME)

    def through(self, port: int = 0, *protocols: str) -> ssl.SSLSocket:
        sock = tuned(socket.create_connection(("127.0.0.1", port or self.http)))
        sock.sendall(b"CONNECT %b:%d HTTP/1.1\r\n\r\n" % (NAME.encode(), self.origin))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        return self._context("origin" if port else "proxy", *protocols).wrap_socket(sock, server_hostname=NAME)

    def _context(self, authority: str, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.directory / f"{authority}.pem"))
        context.set_alpn_protocols(protocols)
        return context

    def cpu_s(self) -> float:
        """Return the processor time of client, origin and proxy."""
        return time.process_time() + _cpu_s(self.origin_pid) + _cpu_s(self.pid)

    def request(self, sock: ssl.SSLSocket, size: int, body: int = 0) -> None:
        """Get `size` bytes, after sending `body`."""
        head = f"POST /{size} HTTP/1.1\r\nHost: {NAME}:{self.origin}\r\nContent-Length: {body}\r\n\r\n"
        sock.sendall(head.encode())
        upload = b"u" * BUFFER
        for _ in range(body // BUFFER):
            sock.sendall(upload)
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = sock.recv(4096)
            assert piece, "the connection ended without an answer"
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        left = size - len(answer.partition(b"\r\n\r\n")[2])
        buffer = bytearray(BUFFER)
        while left > 0:
            left -= sock.recv_into(buffer)


def ended_tls(bench: Bench | None, quick: bool) -> Iterator[Row]:
    """Throughput, time to the first byte, processor time and memory, with TLS that ends in the proxy."""
    size = (64 if quick else 512) * MEGABYTE
    with _stand() as stand:
        for word, amounts in (("down", (size, 0)), ("up", (1, size))):
            yield from _compared(
                stand,
                word,
                size,
                7,
                lambda a=amounts: _once(stand, stand.through(), *a),  # type: ignore[misc]
                lambda a=amounts: _once(stand, stand.direct(), *a),  # type: ignore[misc]
            )
        few = size // 8
        yield from _compared(
            stand,
            "down by HTTP/2",
            few,
            3,
            lambda: _once2(stand.through(0, "h2"), f"{NAME}:{stand.origin}", few),
            lambda: _once2(stand.direct("h2"), f"{NAME}:{stand.origin}", few),
            budgets=("", ""),
        )
        piece = 4 * MEGABYTE  # many small turns: the ratio of the same server to itself is 1 ± 0.02 then
        taken = in_turns(
            {
                "beside": lambda: _once(stand, stand.through(stand.beside), piece),
                "without": lambda: _once(stand, stand.through(stand.without), piece),
            },
            100 if quick else 400,
            warm_up=1,
        )
        ratio = median(taken["without"]) / median(taken["beside"])
        yield Row("TLS that does not end in the proxy, throughput ÷ without network.tls", ratio, "", "≥ 0.98")
        taken = in_turns(
            {
                "ended": lambda: _once(stand, stand.through(), 1),
                "direct": lambda: _once(stand, stand.direct(), 1),
            },
            50 if quick else 300,
            warm_up=5,
        )
        ours, direct = median(taken["ended"]), median(taken["direct"])
        detail = {"ours": ms(ours), "direct": ms(direct)}
        yield Row("TLS that ends in the proxy, first byte ÷ direct TLS", ours / direct, "", "≤ 2", detail)
        open_ones = []
        for _ in range(CONNECTIONS):
            open_ones.append(stand.through())
            stand.request(open_ones[-1], 1)
        yield Row(f"{CONNECTIONS:,} connections whose TLS ends: memory", _memory_mb(stand.pid), "MB", "≤ 150")
        for sock in open_ones:
            sock.close()


def _compared(
    stand: TlsStand,
    word: str,
    size: int,
    rounds: int,
    ended: Callable[[], None],
    direct: Callable[[], None],
    budgets: tuple[str, str] = ("≥ 0.4", "≤ 2.4"),
) -> Iterator[Row]:
    """Throughput and processor time for `size` bytes, through the proxy and without it."""
    cpu: dict[str, list[float]] = {"ended": [], "direct": []}

    def measured(name: str, action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            before = stand.cpu_s()
            action()
            cpu[name].append(stand.cpu_s() - before)

        return run

    actions = {"ended": ended, "direct": direct}
    taken = in_turns({name: measured(name, one) for name, one in actions.items()}, rounds, warm_up=1)
    rates = {name: size / median(taken[name]) for name in actions}
    title = f"TLS that ends in the proxy, throughput {word} ÷ direct TLS"
    detail = {name: f"{rate / 1e9:.2f} GB/s" for name, rate in rates.items()}
    yield Row(title, rates["ended"] / rates["direct"], "", budgets[0], detail)
    costs = {name: median(sorted(cpu[name][1:])) / (size / 1e9) for name in actions}
    detail = {name: f"{cost:.2f} s/GB" for name, cost in costs.items()}
    title = f"TLS that ends in the proxy, processor time {word} ÷ direct TLS"
    yield Row(title, costs["ended"] / costs["direct"], "", budgets[1], detail)


def _once2(sock: ssl.SSLSocket, host: str, size: int) -> None:
    """Get `size` bytes by HTTP/2."""
    conn = H2Connection()
    conn.initiate_connection()
    conn.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: WINDOW})
    conn.increment_flow_control_window(WINDOW)
    head = [(":method", "GET"), (":scheme", "https"), (":authority", host), (":path", f"/{size}")]
    conn.send_headers(1, head, end_stream=True)
    got, ended = 0, False
    with sock:
        while not ended:
            sock.sendall(conn.data_to_send())
            data = sock.recv(BUFFER)
            assert data, "it ended early"
            for event in conn.receive_data(data):
                if isinstance(event, DataReceived):
                    got += len(event.data)
                    conn.acknowledge_received_data(event.flow_controlled_length, 1)
                ended = ended or isinstance(event, StreamEnded)
    assert got == size, got


def _once(stand: TlsStand, sock: ssl.SSLSocket, size: int, body: int = 0) -> None:
    with sock:
        stand.request(sock, size, body)


def _cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), which counts more exactly than /proc


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def _stand() -> Iterator[TlsStand]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sandboxd-bench-", dir="/var/tmp"))
        [origin], origin_pid = stack.enter_context(child("bench.tls", "origin", directory))
        [http, beside, without], pid = stack.enter_context(child("bench.tls", "proxy", directory))
        yield TlsStand(origin, http, beside, without, origin_pid, pid, Path(directory))


# the other two processes


def _run_origin(directory: str) -> None:
    Path(directory, "origin.pem").write_bytes((CERTIFICATES / "ca.pem").read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=_answer, args=(context, tuned(sock)), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def _answer(context: ssl.SSLContext, plain: socket.socket) -> None:
    with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as sock:
        if sock.selected_alpn_protocol() == "h2":
            _answer2(sock)
            return
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                piece = sock.recv(BUFFER)
                if not piece:
                    return
                data += piece
            head, _, data = data.partition(b"\r\n\r\n")
            size = int(head.split(b" ")[1][1:])
            left = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0") - len(data)
            buffer = bytearray(BUFFER)
            while left > 0:
                left -= sock.recv_into(buffer)
            data = b""
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            piece = b"d" * BUFFER
            while size > 0:
                sock.sendall(piece[:size])
                size -= len(piece)


def _answer2(sock: ssl.SSLSocket) -> None:
    conn, left, piece = H2Connection(H2Configuration(client_side=False)), 0, bytes(1 << 14)
    conn.initiate_connection()
    while True:
        sock.sendall(conn.data_to_send())
        data = sock.recv(BUFFER)
        if not data:
            return
        for event in conn.receive_data(data):
            if isinstance(event, RequestReceived):
                left = int(dict(event.headers)[b":path"][1:])
                conn.send_headers(1, [(":status", "200")])
        while left and (room := min(conn.local_flow_control_window(1), left, len(piece))):
            left -= room
            conn.send_data(1, piece[:room], end_stream=not left)


async def _run_proxy(directory: Path) -> None:
    from sandboxd.policy.hosts.host_patterns import HostPattern
    from sandboxd.policy.model import HostRule, NetworkPolicy
    from sandboxd.proxy.dial import Dialer, PinnedResolver, SystemResolver
    from sandboxd.proxy.gate import Gate
    from sandboxd.proxy.limits import ProxyLimits
    from sandboxd.proxy.server import ProxyServer
    from sandboxd.proxy.tls.authority import Authority
    from sandboxd.settings.origins import BUILT_IN

    os.environ["SSL_CERT_FILE"] = str(directory / "origin.pem")
    authority = Authority([HostPattern.parse(NAME)])
    await asyncio.to_thread((directory / "proxy.pem").write_text, authority.certificate)
    rules, others = ((HostRule(HostPattern.parse(name), BUILT_IN),) for name in (NAME, f"not.{NAME}"))
    resolver = PinnedResolver({NAME: ("127.0.0.1",)}, SystemResolver())
    limits = ProxyLimits(connections=2 * CONNECTIONS)
    servers, ports = [], []
    for ended in (rules, others, ()):
        network = NetworkPolicy(allowed=rules, tls_terminate=ended)
        gate = Gate(lambda policy=network: policy, None, resolver, resolver.pins)  # type: ignore[misc]
        server = ProxyServer(
            gate, Dialer(limits=limits), lambda event: None, "bench", limits=limits, authority=lambda: authority
        )
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        server.serve(listener, None)
        servers.append(server)
        ports.append(listener.getsockname()[1])
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.aclose()


if __name__ == "__main__":
    if sys.argv[1:2] == ["origin"]:
        _run_origin(sys.argv[2])
    elif sys.argv[1:2] == ["proxy"]:
        asyncio.run(_run_proxy(Path(sys.argv[2])))
    else:
        for row in ended_tls(None, quick="--quick" in sys.argv):
            print(row)
