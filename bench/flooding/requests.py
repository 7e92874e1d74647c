"""Floods of requests to the HTTP proxy, and of answers from servers of the command's own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time

from .tools import again_and_again, attack, endless, in_background, proxy, read_all, served


def get(port: int, path: str = "/") -> bytes:
    return f"GET http://127.0.0.1:{port}{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


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
