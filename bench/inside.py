"""Runs inside a sandbox, or beside it for comparison: measures connections to the origin of bench.network.

    python3 inside.py HOST PORT QUICK               (QUICK: 0 or 1)
    python3 inside.py HOST PORT connects NUMBER     only the seconds of so many connects, as a list
    python3 inside.py HOST PORT hold NUMBER         opens so many, prints "open", and ends with its standard input

Goes through $HTTP_PROXY where that is set, by CONNECT, whatever sandbox set it. Standard library only. Prints JSON:
bytes per second down, seconds from connect to the first byte (median), and how many transfers of 1 MB were short.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import socket
import statistics
import sys
import time
from urllib.parse import unquote, urlsplit

MEGABYTE = 1 << 20


def connect(host: str, port: int) -> socket.socket:
    proxy = urlsplit(os.environ.get("HTTP_PROXY", ""))
    if not proxy.hostname:
        return _tuned(socket.create_connection((host, port)))
    sock = _tuned(socket.create_connection((proxy.hostname, proxy.port or 80)))
    credentials = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    header = f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}\r\n" if proxy.username else ""
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{header}\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        piece = sock.recv(4096)
        if not piece:
            raise OSError(f"the proxy hung up: {answer!r}")
        answer += piece
    if b" 200 " not in answer.split(b"\r\n")[0]:
        raise OSError(f"the proxy refused: {answer!r}")
    return sock


def _tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(60)
    return sock


def download(host: str, port: int, size: int, word: bytes) -> tuple[float, int]:
    """Seconds from the request to the end, and the bytes that came."""
    buffer = bytearray(MEGABYTE)
    received = 0
    with connect(host, port) as sock:
        begin = time.perf_counter()
        sock.sendall(b"%b %d\n" % (word, size))
        while count := sock.recv_into(buffer):
            received += count
        return time.perf_counter() - begin, received


def first_byte(host: str, port: int) -> float:
    begin = time.perf_counter()
    with connect(host, port) as sock:
        sock.sendall(b"H\n")
        if sock.recv(1) != b"!":
            raise OSError("the origin did not answer")
        return time.perf_counter() - begin


def main(host: str, port: int, quick: bool) -> None:
    if not os.environ.get("HTTP_PROXY"):
        host = socket.gethostbyname(host)  # once: what a look-up takes is not what is measured
    size = (64 if quick else 512) * MEGABYTE
    speeds = []
    for _ in range(3):
        seconds, received = download(host, port, size, b"D")
        speeds.append(received / seconds)
    first_byte(host, port)
    connects = [first_byte(host, port) for _ in range(50 if quick else 500)]
    number = 50 if quick else 500
    short = sum(download(host, port, MEGABYTE, b"C")[1] != MEGABYTE for _ in range(number))
    figures = {"down": statistics.median(speeds), "connect": statistics.median(connects), "short": short}
    print(json.dumps({**figures, "transfers": number}))


if __name__ == "__main__":
    target = sys.argv[1], int(sys.argv[2])
    if sys.argv[3] == "hold":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        held = [connect(*target) for _ in range(int(sys.argv[4]))]
        print("open", flush=True)
        sys.stdin.read()
    elif sys.argv[3] == "connects":
        print(json.dumps([first_byte(*target) for _ in range(int(sys.argv[4]))]))
    else:
        main(*target, sys.argv[3] == "1")
