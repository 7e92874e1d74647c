"""`sandboxd run --relay-stdio`, `relay_stdio=True`: sockets as standard streams, as inetd and systemd hand them out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd_client import AsyncClient, Client
from sandboxd_client.running.relay import Relay
from sandboxd_client.testing import FakeDaemon
from support.waiting import wait_until

LARGE = os.urandom(1 << 16) * 64


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The end that a service is given, and the end of its client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        with client, listener.accept()[0] as given:
            client.settimeout(60)
            yield given, client


def everything(client: socket.socket) -> bytes:
    with client.makefile("rb") as stream:
        return stream.read()


def serve(cli: CommandLine, given: socket.socket, command: str, *options: str, **streams: Any) -> subprocess.Popen[str]:
    """As inetd does: the socket is all three streams, and the parent has none of it left."""
    all_streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), given.fileno())
    process = cli.popen("run", "--relay-stdio", *options, "-c", command, **{**all_streams, **streams})
    given.close()
    return process


def test_the_command_gets_pipes_and_no_other_descriptor(cli: CommandLine) -> None:
    with connection() as (given, client):
        process = serve(cli, given, "stat -Lc %F /proc/self/fd/[012]; echo /proc/self/fd/*")
        lines = everything(client).decode().splitlines()
        assert lines[:3] == ["fifo"] * 3
        assert lines[3] in ("/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2", "/proc/self/fd/0 /proc/self/fd/1 "
                            "/proc/self/fd/2 /proc/self/fd/3")  # fmt: skip
        assert process.wait() == 0


def test_both_directions_and_the_ends_of_both(cli: CommandLine) -> None:
    """The client's half-close is the end of the input; the rest of the output comes after it."""
    with connection() as (given, client):
        process = serve(cli, given, "read line; echo got $line; cat >/dev/null; echo after the end; exit 7")
        client.sendall(b"first\n")
        assert client.recv(100) == b"got first\n"
        client.shutdown(socket.SHUT_WR)
        assert everything(client) == b"after the end\n"
        assert process.wait() == 7


def test_large_amounts_both_ways_at_once(cli: CommandLine) -> None:
    with connection() as (given, client):
        process = serve(cli, given, "cat")

        def write() -> None:
            client.sendall(LARGE)
            client.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        assert everything(client) == LARGE
        writer.join()
        assert process.wait() == 0


def test_nothing_is_lost_at_the_end_when_the_client_reads_late(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(LARGE)
    with connection() as (given, client):
        process = serve(cli, given, f"cat {tmp_path}/large; touch {tmp_path}/done; exit 3")
        client.sendall(b"never read")
        assert client.recv(10) == LARGE[:10]
        received = bytearray(LARGE[:10])
        with contextlib.suppress(ConnectionResetError):  # for the unread input, as without a relay
            while data := client.recv(1 << 16):
                received += data
        assert received == LARGE
        assert process.wait() == 3


def test_output_and_errors_stay_in_order(cli: CommandLine) -> None:
    with connection() as (given, client):
        process = serve(cli, given, "for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done")
        assert everything(client).decode() == "".join(f"out {n}\nerr {n}\n" for n in range(1, 6))
        assert process.wait() == 0


def test_a_stream_that_needs_no_relay_is_passed_as_it_is(cli: CommandLine, tmp_path: Path) -> None:
    mine, other = socket.socketpair()
    with connection() as (given, client), mine, other, open(tmp_path / "errors", "w") as errors:
        command = "stat -Lc '%F %i' /proc/self/fd/[02] >&2; stat -Lc %F /proc/self/fd/1; cat"
        process = serve(cli, given, command, stdin=other.fileno(), stderr=errors)
        mine.sendall(b"through")
        mine.shutdown(socket.SHUT_WR)
        assert everything(client) == b"fifo\nthrough"
        assert process.wait() == 0
        inode, file = os.fstat(other.fileno()).st_ino, os.fstat(errors.fileno()).st_ino
    lines = (tmp_path / "errors").read_text().splitlines()
    assert lines[0] == f"socket {inode}"
    assert lines[1].split()[-1] == str(file)


def test_without_sockets_there_is_nothing_to_relay(cli: CommandLine) -> None:
    done = cli.run("run", "--relay-stdio", "-c", "cat; exit 4", input="text")
    assert (done.returncode, done.stdout) == (4, "text")


def test_a_client_that_is_gone_is_a_broken_pipe(cli: CommandLine, tmp_path: Path) -> None:
    with connection() as (given, client):
        process = serve(cli, given, f"trap '' PIPE; read x; while echo y; do :; done; touch {tmp_path}/heard; exit 5",
                        stderr=subprocess.DEVNULL)  # fmt: skip
        client.close()
        assert process.wait(60) == 5
    assert (tmp_path / "heard").exists()
    with connection() as (given, client):
        process = serve(cli, given, "read x; exec yes", stderr=subprocess.DEVNULL)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets
        client.close()
        assert process.wait(60) == 128 + signal.SIGPIPE


def test_a_signal_is_for_the_command_and_its_status_counts(cli: CommandLine) -> None:
    with connection() as (given, client):
        process = serve(cli, given, "trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.02; done")
        assert client.recv(100) == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert everything(client) == b"got\n"
        assert process.wait() == 9


def test_a_client_that_does_not_read_does_not_outlive_a_signal(cli: CommandLine) -> None:
    with connection() as (given, client):
        process = serve(cli, given, "echo ready; exec cat /dev/zero", "--grace", "0.2")
        assert client.recv(6) == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


def test_what_a_command_did_not_read_is_for_its_next_attempt() -> None:
    """A start that was refused since settings had changed meanwhile is tried again: what had come is not lost."""
    with connection() as (given, client):
        client.sendall(LARGE[:100_000])
        client.shutdown(socket.SHUT_WR)
        relay = None
        for attempt in (["head", "-c", "10"], ["true"], ["cat"]):
            relay = Relay((given.fileno(), None, None), after=relay)
            process = subprocess.Popen(attempt, stdin=relay.passed[0], stdout=subprocess.PIPE)
            relay.start()
            out, _ = process.communicate()
            assert relay.finish(60)
        assert len(out) > 50_000 and LARGE[:100_000].endswith(out)


def test_the_end_of_the_input_takes_nothing_from_a_slow_reader() -> None:
    with connection() as (given, client):
        client.sendall(LARGE[:10_000])
        client.shutdown(socket.SHUT_WR)
        relay = Relay((given.fileno(), None, None))
        with open(os.dup(relay.passed[0] or 0), "rb", buffering=0) as pipe:
            gate, opened = os.pipe()
            process = subprocess.Popen(
                ["sh", "-c", f"read line </dev/fd/{gate}; cat"], stdin=pipe, stdout=subprocess.PIPE, pass_fds=[gate]
            )
            relay.start()
            poll = select.poll()
            poll.register(pipe, 0)
            wait_until(lambda: any(events & select.POLLHUP for _, events in poll.poll(0)), "all of the input has come")
            os.write(opened, b"\n")
            out, _ = process.communicate()
            os.close(gate)
            os.close(opened)
        assert out == LARGE[:10_000]
        assert relay.finish(60)


def test_datagrams_of_one_peer(cli: CommandLine) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as client, socket.socket(type=socket.SOCK_DGRAM) as given:
        client.settimeout(60)
        client.bind(("127.0.0.1", 0))
        given.bind(("127.0.0.1", 0))
        client.connect(given.getsockname())
        given.connect(client.getsockname())
        process = serve(cli, given, "read line; echo got $line")
        client.send(b"one\n")
        assert client.recv(100) == b"got one\n"
        assert process.wait() == 0


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_client_library(fake: FakeDaemon) -> None:
    with Client(fake.socket, autostart=False, timeout=20) as box, connection() as (given, client):
        box.run("true")
        before = open_descriptors()
        client.sendall(b"one\n")
        number = given.fileno()
        done = box.run(
            "read x; echo got $x; echo e >&2; exit 3",
            stdin=number,
            stdout=number,
            stderr=subprocess.STDOUT,
            relay_stdio=True,
        )
        assert done.returncode == 3
        assert client.recv(100) == b"got one\ne\n"
        with box.spawn(["cat", "/dev/zero"], stdout=number, relay_stdio=True) as process:
            assert client.recv(1) == b"\0"
            assert process.stop() == 143
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while client.recv(1 << 20):
                pass
        client.setblocking(True)
        with pytest.raises(subprocess.TimeoutExpired):
            box.run(["cat", "/dev/zero"], stdout=number, relay_stdio=True, timeout=0.5, grace=0.1)
        wait_until(lambda: open_descriptors() == before, "the relays have closed what they had")
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("relay")]


async def test_the_asynchronous_client_library(fake: FakeDaemon) -> None:
    async with AsyncClient(fake.socket, autostart=False, timeout=20) as box:
        with connection() as (given, client):
            client.sendall(b"one\n")
            number = given.fileno()
            done = await box.run("read x; echo got $x; exit 3", stdin=number, stdout=number, relay_stdio=True)
            assert done.returncode == 3
            assert client.recv(100) == b"got one\n"
            with pytest.raises(subprocess.TimeoutExpired):
                await box.run(["cat", "/dev/zero"], stdout=number, relay_stdio=True, timeout=0.5, grace=0.1)
            task = asyncio.create_task(box.run(["cat", "/dev/zero"], stdout=number, relay_stdio=True, grace=0.1))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    for _ in range(200):
        if not [thread for thread in threading.enumerate() if thread.name.startswith("relay")]:
            return
        await asyncio.sleep(0.05)
    pytest.fail("a relay goes on")
