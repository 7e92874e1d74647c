"""Floods of a client of the daemon, which anything that the user runs outside can be."""

from __future__ import annotations

import json
import os
import socket
import time

from .tools import again_and_again, client, in_background, read_all


def daemon() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ["SANDBOXD_SOCKET"])
    return sock


def request(method: str, number: int = 1, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def sent(data: bytes, threads: int, *, reads: bool = True) -> None:
    """Again and again on a connection."""

    def work() -> None:
        with daemon() as sock:
            if reads:
                in_background(lambda: read_all(sock))
            while True:
                sock.sendall(data)

    again_and_again(work, threads)


@client
def unread_answers() -> None:
    sent(request("status") * 1000, 20, reads=False)


@client
def requests() -> None:
    sent(request("status") * 100, 4)


@client
def unknown_methods() -> None:
    sent(request("no_such_method_at_all") * 100, 4)


@client
def invalid_lines() -> None:
    sent(b"{\n" * 1000, 4)


@client
def huge_frames() -> None:
    sent(request("should_sandbox", command="true", x="x" * (4 << 20))[: (4 << 20) - 2] + b"\n", 4)


@client
def large_numbers() -> None:
    sent(b"[" + b"1" * 4200 + b"]\n", 4)


@client
def many_values() -> None:
    sent(request("status", x=[0] * 1_900_000), 4)


@client
def deep_values() -> None:
    sent(b"[" * 100_000 + b"]" * 100_000 + b"\n", 4)


@client
def batches() -> None:
    sent(b"[" + b",".join([request("status").strip()] * 256) + b"]\n", 4)


@client
def batches_of_nothing() -> None:
    sent(b"[" + b",".join([b"1"] * 256) + b"]\n", 4)


@client
def slow_frames() -> None:
    def work() -> None:
        with daemon() as sock:
            for byte in request("status", x="x" * 100_000):
                sock.sendall(bytes([byte]))

    again_and_again(work, 100)


@client
def unfinished_frames() -> None:
    kept = []
    for _ in range(100):
        kept.append(daemon())
        kept[-1].sendall(b"x" * (4 << 20))
    CLIENTS_KEPT.extend(kept)


CLIENTS_KEPT: list[socket.socket] = []


@client
def connections() -> None:
    kept = []

    def work() -> None:
        kept.append(daemon())
        while len(kept) >= 400:
            time.sleep(0.001)
            kept.pop(0).close()

    again_and_again(work)


@client
def client_churn() -> None:
    again_and_again(lambda: daemon().close(), 20)


@client
def wraps() -> None:
    sent(request("wrap", command="true", cwd=os.getcwd()) * 64, 4)


@client
def wraps_over_new_connections() -> None:
    def work() -> None:
        with daemon() as sock:
            sock.sendall(request("wrap", command="true", cwd=os.getcwd()))
            sock.recv(65536)

    again_and_again(work, 8)


@client
def sessions() -> None:
    sent(request("session.open", cwd=os.getcwd()) * 64, 4)


@client
def enormous_commands() -> None:
    sent(request("should_sandbox", cwd=os.getcwd(), command="true;" * 790_000), 4)


@client
def enormous_words() -> None:
    sent(request("should_sandbox", cwd=os.getcwd(), command="a=$(b " * 600_000), 4)


@client
def large_commands() -> None:
    sent(request("should_sandbox", cwd=os.getcwd(), command="git status | (cat <<x; $(`date`)) && " * 400) * 20, 4)


@client
def enormous_outputs() -> None:
    sent(request("violation.annotate", stderr="/usr/x: Permission denied\n" * 140_000, command="x", session_id="x"), 4)


@client
def stripped_outputs() -> None:
    sent(request("violation.strip", text="<sandbox_violations>" * 150_000), 4)


@client
def explained_paths() -> None:
    sent(request("policy.explain", cwd=os.getcwd(), kind="path", target="a/" * 1000 + "b") * 64, 4)


@client
def subscriber() -> None:
    sock = daemon()
    sock.sendall(request("permission.subscribe") + request("violation.subscribe", 2))
    in_background(lambda: read_all(sock))


def published() -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", int(os.environ["FLOODING_PORT"])))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    return sock


@client
def reader_of_the_published() -> None:
    def work() -> None:
        with published() as sock:
            sock.sendall(b"x")
            read_all(sock)

    again_and_again(work, 8)


@client
def caller_of_the_published() -> None:
    def work() -> None:
        with published() as sock:
            sock.sendall(b"x" * 1000)

    again_and_again(work, 20)
