"""One command that floods the daemon, without any permission, keeps no other from running and the daemon not from
ending; nor does a client of it. What it costs does not depend on the identity, so each is tried as one of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from bench.flooding import ATTACKS, CLIENTS, COMPANIONS, CONTROL, options, settings
from support.daemons import DaemonProcess, StartDaemon
from support.ports import free_port
from support.users import identity_names
from support.waiting import wait_until

FLOODING = Path(__file__).parents[2] / "bench" / "flooding"
MOST_KB = 100 << 10


@contextmanager
def flooding(daemon: DaemonProcess, attacks: tuple[str, ...], port: int) -> Iterator[None]:
    """Flood in one process, which is a command or not."""
    place = daemon.identity.workspace / attacks[0]
    for file in FLOODING.glob("*.py"):
        daemon.identity.write(place / FLOODING.name / file.name, file.read_text())
    begun = place / "begun"
    command = ["/usr/bin/python3", "-m", FLOODING.name, *attacks]
    if attacks[0] in ATTACKS:
        command = daemon.identity.command("run", *options(attacks[0], port), "--", *command)
    with begun.open("wb") as stream:
        flood = daemon.identity.popen(
            command,
            cwd=place,
            env={**daemon.environment(), "FLOODING_PORT": str(port)},
            stdout=stream,
            stderr=subprocess.DEVNULL,
        )
    try:
        wait_until(lambda: begun.read_bytes().startswith(b"flooding\n"), "the flood has begun")
        yield
    finally:
        flood.kill()
        flood.wait()


def peak_kb(daemon: DaemonProcess) -> int:
    text = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])


class ServiceManager:
    """As much of systemd as sd_notify(3) needs: a socket in the abstract namespace, which every user reaches."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0sandboxd-test-{os.getpid()}-{id(self)}")
        self.name = "@" + self._socket.getsockname()[1:].decode()

    def heard(self) -> list[bytes]:
        """What has arrived since the last time."""
        messages: list[bytes] = []
        while True:
            try:
                messages.append(self._socket.recv(4096))
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[ServiceManager]:
    made = ServiceManager()
    yield made
    made.close()


ALONE = (
    ("interim_answers", "chunks_down", "chunks_up"),
    ("heads_of_many_lines", "unfinished_heads"),
    ("own_server_requests", "captured_connects", "refused_opens", "stream_questions", "unfinished_questions"),
    ("requests", "batches", "invalid_lines"),
    ("wraps", "explained_paths", "watched_directories"),
    ("unfinished_frames", "client_churn", "unread_answers"),
    ("questions", "published_answers", "published_connections"),
)
TOGETHER = (
    ("greetings_by_byte", "refused_socks", "datagram_questions", "compressed_questions", "captured_names",
     "refused_unix_sockets", "protected_names", "forks", "invalid_hosts", "refused_requests", "refused_names",
     "empty_lines", "listening_servers"),
    ("chunks_down_on_200_connections", "chunk_extensions", "trailers", "answers_of_many_lines", "heads_by_byte",
     "pipelined_requests", "tunnels_by_byte", "tunnels_at_full_speed", "half_open_tunnels", "tunnel_churn",
     "unread_tunnels", "connection_churn", "resets", "tls_fragments"),
    ("unknown_methods", "huge_frames", "large_numbers", "many_values", "deep_values", "batches_of_nothing",
     "slow_frames", "connections", "wraps_over_new_connections", "sessions", "enormous_commands", "enormous_words",
     "large_commands", "enormous_outputs", "stripped_outputs"),
)  # fmt: skip
"""So many, in one process, that only the bench measures their memory."""


def test_every_flood_is_tried() -> None:
    tried = {attack for attacks in (*ALONE, *TOGETHER) for attack in attacks}
    assert tried == {*ATTACKS, *CLIENTS} - {CONTROL, "output", *COMPANIONS.values()}


@pytest.mark.parametrize(
    "identity, attacks",
    [
        pytest.param(identity, attacks, id=f"{attacks[0]}-{identity}")
        for attacks, identity in zip([*ALONE, *TOGETHER], cycle(identity_names()))
    ],
    indirect=["identity"],
)
def test_others_run_and_the_daemon_ends(
    start_daemon: StartDaemon, manager: ServiceManager, attacks: tuple[str, ...]
) -> None:
    needed = next(filter(None, map(settings, attacks)), None)
    daemon = start_daemon(settings=needed, env={"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "200000"})
    with ExitStack() as floods:
        for parts in [attacks] if attacks in TOGETHER else [(attack,) for attack in attacks]:
            port = free_port()
            floods.enter_context(flooding(daemon, parts, port))
            if (companion := COMPANIONS.get(parts[0])) is not None:
                floods.enter_context(flooding(daemon, (companion,), port))
        for name in "abc":
            hook = f"{name}/.git/hooks/post-commit"
            done = daemon.run("run", "-c", f"git init -q {name}; echo true > {hook}; chmod +x {hook}; echo ran")
            assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
            assert not (daemon.identity.workspace / hook).exists()
        manager.heard()
        wait_until(lambda: b"WATCHDOG=1" in manager.heard(), "the watchdog is fed while the flood goes on")
        assert attacks in TOGETHER or peak_kb(daemon) < MOST_KB
        assert daemon.stop(signal.SIGTERM) == 0
