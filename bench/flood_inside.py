"""Runs inside a sandbox: floods the daemon in one way, for ever.

    python3 flood_inside.py ATTACK

The command has no network permission at all: its servers are its own, asked through the proxy, and what it asks for is
refused. Standard library only. Prints `flooding` once it has begun.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

ATTACKS: dict[str, Callable[[], None]] = {}
THREADS = 4


def attack(function: Callable[[], None]) -> Callable[[], None]:
    ATTACKS[function.__name__] = function
    return function


def proxy(variable: str = "HTTP_PROXY") -> socket.socket:
    place = urlsplit(os.environ[variable])
    sock = socket.create_connection((place.hostname or "127.0.0.1", place.port or 80))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def socks() -> socket.socket:
    return proxy("ALL_PROXY")


def served(answer: Callable[[socket.socket], None]) -> int:
    """A server of the command's own, a process for each connection: it is always ready. Its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            sock, _ = listener.accept()
            if os.fork() == 0:
                with contextlib.suppress(OSError):
                    answer(sock)
                os._exit(0)
            sock.close()
    return int(listener.getsockname()[1])


def in_background(work: Callable[[], None]) -> None:
    def quietly() -> None:
        with contextlib.suppress(OSError):
            work()

    threading.Thread(target=quietly, daemon=True).start()


def again_and_again(work: Callable[[], None], threads: int = THREADS) -> None:
    """Whatever becomes of it, in several threads."""

    def loop() -> None:
        while True:
            try:
                work()
            except OSError:
                time.sleep(0.001)

    for _ in range(threads):
        threading.Thread(target=loop, daemon=True).start()


def endless(beginning: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(beginning)
        block = piece * (65536 // len(piece) + 1)
        while True:
            sock.sendall(block)

    return answer


def get(port: int, path: str = "/") -> bytes:
    return f"GET http://127.0.0.1:{port}{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def read_all(sock: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    while sock.recv_into(buffer):
        pass


def asking(port: int) -> None:
    with proxy() as sock:
        sock.sendall(get(port))
        if os.fork() == 0:  # as fast a reader as can be
            with contextlib.suppress(OSError):
                read_all(sock)
            os._exit(0)
        os.wait()


def refused(head: bytes = b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n") -> None:
    with proxy() as sock:
        in_background(lambda: read_all(sock))
        while True:
            sock.sendall(head * 50)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@attack
def interim_answers() -> None:
    port = served(endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"))
    again_and_again(lambda: asking(port))


@attack
def chunks_down() -> None:
    port = served(endless(CHUNKED, b"1\r\nx\r\n"))
    again_and_again(lambda: asking(port))


@attack
def chunks_down_on_200_connections() -> None:
    port = served(endless(CHUNKED, b"1\r\nx\r\n"))
    again_and_again(lambda: asking(port), 200)


@attack
def chunks_up() -> None:
    port = served(read_all)

    def work() -> None:
        with proxy() as sock:
            head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            sock.sendall(head.encode())
            while True:
                sock.sendall(b"1\r\nx\r\n" * 10000)

    again_and_again(work)


@attack
def chunk_extensions() -> None:
    port = served(endless(CHUNKED, b"1;" + b"e" * 4000 + b"\r\nx\r\n"))
    again_and_again(lambda: asking(port))


@attack
def trailers() -> None:
    port = served(endless(CHUNKED + b"0\r\n", b"A: b\r\n"))
    again_and_again(lambda: asking(port))


@attack
def heads_of_many_lines() -> None:
    def work() -> None:
        with proxy() as sock:
            sock.sendall(b"GET http://denied.test/ HTTP/1.1\r\n" + b"A:b\r\n" * 12900)
            read_all(sock)

    again_and_again(work, 200)


@attack
def answers_of_many_lines() -> None:
    port = served(endless(b"HTTP/1.1 200 OK\r\n", b"A:b\r\n"))
    again_and_again(lambda: asking(port), 50)


@attack
def empty_lines() -> None:
    def work() -> None:
        with proxy() as sock:
            sock.sendall(b"\r\n" * 32000)
            read_all(sock)

    again_and_again(work, 50)


@attack
def unfinished_heads() -> None:
    kept = []

    def work() -> None:
        sock = proxy()
        sock.sendall(b"GET http://denied.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 199 + b"B: " + b"b" * 60000)
        kept.append(sock)
        while len(kept) >= 1500:
            time.sleep(0.1)
            kept.pop(0).close()

    again_and_again(work)


@attack
def heads_by_byte() -> None:
    def work() -> None:
        with proxy() as sock:
            while True:
                sock.sendall(b"GET http://denied.test/ HTTP/1.1\r\nA: ")
                for _ in range(60000):
                    sock.sendall(b"b")

    again_and_again(work, 100)


@attack
def pipelined_requests() -> None:
    def work() -> None:
        with proxy() as sock:
            while True:
                sock.sendall(b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n" * 50)

    again_and_again(work, 100)


@attack
def refused_requests() -> None:
    again_and_again(refused)


@attack
def refused_names() -> None:
    def work() -> None:
        with proxy() as sock:
            in_background(lambda: read_all(sock))
            while True:
                name = f"n{random.getrandbits(60)}.test"
                sock.sendall(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())

    again_and_again(work)


@attack
def invalid_hosts() -> None:
    def work() -> None:
        with proxy() as sock:
            sock.sendall(b"CONNECT " + b"%" * 3000 + b":1 HTTP/1.1\r\n\r\n")
            read_all(sock)

    again_and_again(work)


@attack
def own_server_requests() -> None:
    def answer(sock: socket.socket) -> None:
        while sock.recv(65536):
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    port = served(answer)

    def work() -> None:
        with proxy() as sock:
            while True:
                sock.sendall(get(port))
                if not sock.recv(65536):
                    return

    again_and_again(work, 20)


def tunnel(port: int) -> socket.socket:
    sock = proxy()
    sock.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
    sock.recv(4096)
    return sock


@attack
def tunnels_by_byte() -> None:
    port = served(read_all)
    again_and_again(lambda: _bytes(tunnel(port)), 60)


def _bytes(sock: socket.socket) -> None:
    with sock:
        while True:
            sock.sendall(b"x")


@attack
def tunnels_at_full_speed() -> None:
    port = served(read_all)

    def work() -> None:
        with tunnel(port) as sock:
            while True:
                sock.sendall(b"x" * (1 << 18))

    again_and_again(work, 4)


@attack
def half_open_tunnels() -> None:
    port = served(lambda sock: time.sleep(3600))

    kept = []

    def work() -> None:
        sock = tunnel(port)
        sock.shutdown(socket.SHUT_WR)
        kept.append(sock)
        if len(kept) > 1500:
            kept.pop(0).close()

    again_and_again(work)


@attack
def tunnel_churn() -> None:
    port = served(lambda sock: sock.close())
    again_and_again(lambda: tunnel(port).close(), 20)


@attack
def connection_churn() -> None:
    again_and_again(lambda: proxy().close(), 20)


@attack
def resets() -> None:
    def work() -> None:
        with proxy() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.sendall(b"GET http://denied.test/ HTTP/1.1\r\n")

    again_and_again(work, 20)


@attack
def greetings_by_byte() -> None:
    def work() -> None:
        with socks() as sock:
            for byte in b"\x05\xff" + bytes(255):
                sock.sendall(bytes([byte]))

    again_and_again(work, 100)


@attack
def refused_socks() -> None:
    def work() -> None:
        with socks() as sock:
            sock.sendall(b"\x05\x01\x00\x05\x01\x00\x03\x0bdenied.test\x00\x50")
            read_all(sock)

    again_and_again(work, 20)


def question() -> bytes:
    label = f"n{random.getrandbits(60)}".encode()
    name = bytes([len(label)]) + label + b"\x04test\x00"
    return random.randbytes(2) + b"\1\0\0\1\0\0\0\0\0\0" + name + b"\0\1\0\1"


def name_server() -> str:
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        if line.startswith("nameserver"):
            return line.split()[1]
    return "127.0.0.1"


@attack
def datagram_questions() -> None:
    def work() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((name_server(), 53))
            while True:
                sock.send(question())

    again_and_again(work)


@attack
def stream_questions() -> None:
    def work() -> None:
        with socket.create_connection((name_server(), 53)) as sock:
            in_background(lambda: read_all(sock))
            while True:
                sock.sendall(b"".join(len(one).to_bytes(2, "big") + one for one in (question() for _ in range(50))))

    again_and_again(work)


@attack
def captured_connects() -> None:
    def work() -> None:
        with socket.socket() as sock:
            sock.connect((f"198.51.{random.randrange(256)}.{random.randrange(1, 255)}", random.randrange(1, 65535)))

    again_and_again(work, 50)


@attack
def captured_names() -> None:
    def work() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((f"n{random.getrandbits(60)}.test", 80)).close()

    again_and_again(work, 20)


@attack
def refused_opens() -> None:
    serial: Iterator[int] = iter(range(1 << 60))

    def work() -> None:
        open(f"/usr/no-{next(serial)}", "w").close()

    again_and_again(work)


@attack
def refused_unix_sockets() -> None:
    def work() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"/tmp/none-{random.getrandbits(60)}")

    again_and_again(work)


@attack
def protected_names() -> None:
    def work() -> None:
        os.mkdir(".vscode")
        os.rmdir(".vscode")

    again_and_again(work, 2)


@attack
def forks() -> None:
    def work() -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    again_and_again(work, 2)


@attack
def tls_fragments() -> None:
    port = served(read_all)

    def work() -> None:
        with tunnel(port) as sock:
            for byte in b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(16000):
                sock.sendall(bytes([byte]))

    again_and_again(work, 50)


@attack
def output() -> None:
    """The client's, not the daemon's."""
    def work() -> None:
        os.write(1, b"x" * 65536)

    again_and_again(work, 1)


if __name__ == "__main__":
    ATTACKS[sys.argv[1]]()
    print("flooding", flush=True)
    time.sleep(3600)
