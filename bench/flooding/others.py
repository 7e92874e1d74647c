"""Floods of everything else that a command reaches: SOCKS, names, captured connections, refused calls, processes."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .tools import PUBLISHED, again_and_again, attack, endless, in_background, proxy, read_all, served


def socks() -> socket.socket:
    return proxy("ALL_PROXY")


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
def compressed_questions() -> None:
    """Each with as many names of as many labels as fit."""
    name = b"\1a" * 126 + b"\0\0\1\0\1"
    more = (4084 - len(name)) // 6
    data = bytes(4) + (1 + more).to_bytes(2, "big") + bytes(6) + name + b"\xc0\x0c\0\1\0\1" * more

    def work() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((name_server(), 53))
            while True:
                sock.send(data)

    again_and_again(work)


@attack
def unfinished_questions() -> None:
    def work() -> None:
        sock = socket.create_connection((name_server(), 53))
        sock.sendall(b"\x0f\xff" + bytes(4000))
        KEPT.append(sock)
        while len(KEPT) >= 1500:
            time.sleep(0.1)
            KEPT.pop(0).close()

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
def listening_servers() -> None:
    """More than a list of them should be read for, and one that comes and goes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for number in range(min(most - 100, 10_000)):
        KEPT.append(socket.create_server((f"127.5.{number // 250}.{number % 250}", 8000)))
    again_and_again(lambda: socket.create_server(("127.0.0.1", 0)).close(), 1)


KEPT: list[socket.socket] = []


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
def watched_directories() -> None:
    """Where the daemon waits for settings files."""

    def work() -> None:
        os.makedirs(".claude", exist_ok=True)
        for name in (f".claude/{random.getrandbits(30)}", f"{random.getrandbits(30)}"):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            os.unlink(name)

    again_and_again(work)


@attack
def forks() -> None:
    def work() -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    again_and_again(work, 2)


@attack
def output() -> None:
    """The client's, not the daemon's."""

    def work() -> None:
        os.write(1, b"x" * 65536)

    again_and_again(work, 1)


@attack
def questions() -> None:
    """Hosts on no list, while a client is there that may allow them."""

    def work() -> None:
        name = f"n{random.getrandbits(60)}.test"
        with proxy() as sock:
            sock.sendall(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            sock.settimeout(random.choice((0.001, 0.1, 10)))
            read_all(sock)

    again_and_again(work, 50)


@attack
def published_answers() -> None:
    served(endless(b"", b"x"), PUBLISHED)


@attack
def published_connections() -> None:
    served(read_all, PUBLISHED)


@attack
def processors() -> None:
    """The control: as many processes as are told, which the daemon does not hear of."""
    for _ in range(int(sys.argv[2]) - 1):
        if os.fork() == 0:
            break
    print("flooding", flush=True)
    while True:
        pass
