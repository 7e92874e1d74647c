"""Socket activation from a client's side: what is looked at, and that nothing is started by looking."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sandboxd_client import programs
from sandboxd_client.transport import activation


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    """A process listens at `s`, and never accepts."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(tmp_path / "s"))
    made.listen()
    return made


def test_who_listens_is_seen_without_a_connection(tmp_path: Path, listener: socket.socket) -> None:
    path = str(tmp_path / "s")
    with listener:
        assert activation.is_listening(path)
        assert activation.only_a_connection_is_missing(path)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert not activation.is_listening(path)  # the file is there, and no process listens
    assert not activation.only_a_connection_is_missing(path)


def test_a_listener_of_another_mount_namespace_is_told_apart(tmp_path: Path, listener: socket.socket) -> None:
    """A container that shares the network lists its sockets in the same /proc/net/unix, by the path that it sees."""
    path = str(tmp_path / "s")
    with listener:
        os.unlink(path)  # what its file is like for us
        assert not activation.is_listening(path)
        assert not activation.only_a_connection_is_missing(path)
        Path(path).touch()
        assert not activation.is_listening(path)


def test_a_daemon_is_known_by_the_lock_it_holds(tmp_path: Path, listener: socket.socket) -> None:
    path, lock = str(tmp_path / "s"), tmp_path / "lock"
    with listener:
        lock.write_text(f"{os.getpid()}\n")
        assert activation.daemon_pid(path) is None  # a pid that was given to another process
        with lock.open():
            assert activation.daemon_pid(path) == os.getpid()
            assert not activation.only_a_connection_is_missing(path)
        for text in ("", "x", "999999999\n"):
            lock.write_text(text)
            assert activation.daemon_pid(path) is None


def test_systemctl_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project could have put one where PATH leads first."""
    runtime = tmp_path / "run"
    (runtime / "systemd").mkdir(parents=True)
    (runtime / "systemd" / "private").touch()
    for place in (tmp_path, tmp_path / "bin"):
        place.mkdir(exist_ok=True)
        (place / "systemctl").write_text(f"#!/bin/sh\necho $0 >>{tmp_path}/ran\n")
        (place / "systemctl").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    path = f"{runtime}/sandboxd/sandboxd.sock"
    monkeypatch.setenv("PATH", f".:bin::{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert activation.start_socket_unit(path) is False
    assert not (tmp_path / "ran").exists()
    monkeypatch.setattr(programs, "SYSTEM_DIRECTORIES", (str(tmp_path / "bin"),))
    monkeypatch.setattr(programs, "why_writable", lambda path, writable=(): "")
    assert activation.start_socket_unit(path) is False
    assert (tmp_path / "ran").read_text() == f"{tmp_path}/bin/systemctl\n"
