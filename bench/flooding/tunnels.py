"""Floods of connections, and of bytes in tunnels."""

from __future__ import annotations

import contextlib
import socket
import time

from .tools import again_and_again, attack, proxy, read_all, served


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
def unread_tunnels() -> None:
    """Full in both directions, so that each holds as many bytes as it may."""

    def answer(sock: socket.socket) -> None:
        _fill(sock)
        time.sleep(3600)

    port = served(answer)
    kept = []

    def work() -> None:
        sock = tunnel(port)
        _fill(sock)
        kept.append(sock)
        while len(kept) >= 900:
            time.sleep(0.1)
            kept.pop(0).close()

    again_and_again(work)


def _fill(sock: socket.socket) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))


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
def tls_fragments() -> None:
    port = served(read_all)

    def work() -> None:
        with tunnel(port) as sock:
            for byte in b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(16000):
                sock.sendall(bytes([byte]))

    again_and_again(work, 50)
