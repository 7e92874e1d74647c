"""Parts of the floods.

Standard library only: all of this runs inside a sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

ATTACKS: dict[str, Callable[[], None]] = {}
CLIENTS: dict[str, Callable[[], None]] = {}
"""Those that are no command's, but a client's of the daemon."""
CONTROL = "processors"
"""The attack of `ATTACKS` that is none."""
COMPANIONS = {
    "questions": "subscriber",
    "published_answers": "reader_of_the_published",
    "published_connections": "caller_of_the_published",
}
"""The client's part of an attack that a command does not do alone."""
PUBLISHED = 8000
"""The port inside of the attacks that are named so; the one outside is in `FLOODING_PORT`."""
BEGIN = threading.Event()
THREADS = 4


def attack(function: Callable[[], None]) -> Callable[[], None]:
    ATTACKS[function.__name__] = function
    return function


def client(function: Callable[[], None]) -> Callable[[], None]:
    CLIENTS[function.__name__] = function
    return function


def proxy(variable: str = "HTTP_PROXY") -> socket.socket:
    place = urlsplit(os.environ[variable])
    sock = socket.create_connection((place.hostname or "127.0.0.1", place.port or 80))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def options(attack: str, port: int) -> list[str]:
    """Those of `sandboxd run`."""
    return ["--publish", f"{port}:{PUBLISHED}"] if attack.startswith("published") else []


def settings(attack: str) -> dict[str, object] | None:
    """Those of the user, where an attack needs any."""
    return {"sandbox": {"network": {"allowLocalBinding": True}}} if attack.startswith("published") else None


def served(answer: Callable[[socket.socket], None], port: int = 0) -> int:
    """A server of the command's own, a process for each connection: it is always ready. Its port."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
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
        BEGIN.wait()  # else the first threads would take the time to make the others
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


def read_all(sock: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    while sock.recv_into(buffer):
        pass
