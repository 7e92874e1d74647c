"""Who is let in: this user, in the daemon's own user and pid namespaces, and no other process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxd.errors import CallerError
from sandboxd.rpc.peer import Caller, Identity, identify
from support.users import account

CALL = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdout.write('c'); s.recv(1)"
GO = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
BWRAP = ("bwrap", "--dev-bind", "/", "/", "--die-with-parent")

OUTSIDERS = {
    "user and pid namespace": (*BWRAP, "--unshare-user", "--unshare-pid"),
    "everything, as a sandbox": (*BWRAP, "--unshare-all", "--unshare-user"),
    "user namespace only": (*BWRAP, "--unshare-user"),
    "nested": (*BWRAP, "--unshare-user", "--unshare-pid", *BWRAP, "--unshare-user", "--unshare-pid"),
    "proc of the host in view": (*BWRAP, "--unshare-user", "--unshare-pid", "--ro-bind", "/proc", "/proc"),
}


@pytest.fixture
def listener(world_directory: Path) -> Iterator[socket.socket]:
    """A socket that every user may connect to: the test is about the check afterwards."""
    path = world_directory / "peer.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o666)
        server.listen()
        yield server
    path.unlink()


@contextmanager
def caller(
    listener: socket.socket, wrapper: Sequence[str] = (), code: str = CALL, uid: int | None = None
) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A process that has connected, and the accepted connection. It ends when the connection is closed."""
    other: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    process = subprocess.Popen(
        [*wrapper, PYTHON, "-I", "-S", "-c", code, listener.getsockname()], stdout=subprocess.PIPE, cwd="/", **other
    )
    connection, _ = listener.accept()
    with connection, process:
        yield connection, process
        connection.close()


def test_a_process_of_this_user_is_let_in(listener: socket.socket) -> None:
    with caller(listener) as (connection, process):
        assert identify(connection, Identity.own()) == Caller(os.geteuid(), os.getegid(), process.pid)


@pytest.mark.parametrize("kind", OUTSIDERS)
def test_a_process_in_other_namespaces_is_refused(listener: socket.socket, kind: str) -> None:
    with caller(listener, OUTSIDERS[kind]) as (connection, _):
        with pytest.raises(CallerError) as error:
            identify(connection, Identity.own())
    assert error.value.slug == "peer_other_namespace"
    assert error.value.hint


@pytest.mark.parametrize("pidfd", [True, False], ids=["with SO_PEERPIDFD", "older kernel"])
def test_a_process_that_is_gone_is_refused(
    listener: socket.socket, pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pidfd:
        monkeypatch.setattr("sandboxd.rpc.peer._SO_PEERPIDFD", 9999)
    with caller(listener, code=GO) as (connection, process):
        process.wait()
        with pytest.raises(CallerError) as error:
            identify(connection, Identity.own())
    assert error.value.slug == "peer_unknown"


def test_older_kernels_let_the_same_callers_in(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.rpc.peer._SO_PEERPIDFD", 9999)
    with caller(listener) as (connection, process):
        assert identify(connection, Identity.own()).pid == process.pid
    with caller(listener, OUTSIDERS["user and pid namespace"]) as (connection, _):
        with pytest.raises(CallerError):
            identify(connection, Identity.own())


def test_a_daemon_of_another_user_refuses(listener: socket.socket) -> None:
    with caller(listener) as (connection, _):
        own = Identity.own()
        with pytest.raises(CallerError) as error:
            identify(connection, Identity(own.uid + 1, own.namespaces))
    assert error.value.slug == "peer_other_user"


if os.geteuid() == 0:

    def test_root_refuses_an_ordinary_user(listener: socket.socket) -> None:
        with caller(listener, uid=account("user").pw_uid) as (connection, _):
            with pytest.raises(CallerError) as error:
                identify(connection, Identity.own())
        assert error.value.slug == "peer_other_user"

    def test_a_user_refuses_root(listener: socket.socket) -> None:
        with caller(listener) as (connection, _):
            with pytest.raises(CallerError) as error:
                identify(connection, Identity(account("user").pw_uid, Identity.own().namespaces))
        assert error.value.slug == "peer_other_user"

    def test_a_pid_namespace_alone_is_refused(listener: socket.socket) -> None:
        with caller(listener, ("unshare", "--pid", "--fork")) as (connection, _):
            with pytest.raises(CallerError) as error:
                identify(connection, Identity.own())
        assert error.value.slug == "peer_other_namespace"
