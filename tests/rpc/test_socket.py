"""The listening socket: what it refuses, what it takes over, what it leaves behind."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.rpc.socket import DirectoryLock, listen, prepare_directory, take_passed


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return prepare_directory(str(tmp_path / "sandboxd" / "sandboxd.sock"))


def refused(error: pytest.ExceptionInfo[HostError], slug: str) -> None:
    assert error.value.slug == slug
    assert error.value.hint
    assert error.value.message


def test_the_directory_is_made_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        prepare_directory(str(tmp_path / "new" / "s.sock"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777, 0o1777])
def test_a_directory_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(HostError) as error:
        prepare_directory(str(path / "s.sock"))
    refused(error, "directory_not_private")
    assert stat.S_IMODE(path.stat().st_mode) == mode  # it is the owner's to change


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError) as error:
        prepare_directory(str(tmp_path / "absent" / "sandboxd" / "s.sock"))
    refused(error, "directory_unusable")
    assert str(tmp_path / "absent") in error.value.message


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_is_not_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "file":
        path.touch()
    else:
        target = tmp_path / "target"
        if kind == "link":
            target.mkdir(mode=0o700)
        path.symlink_to(target)
    with pytest.raises(HostError) as error:
        prepare_directory(str(path / "s.sock"))
    refused(error, "directory_unusable")


def test_the_socket_is_for_its_owner_only(directory: str) -> None:
    path = os.path.join(directory, "sandboxd.sock")
    old = os.umask(0)
    try:
        listening = listen(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    listening.close()
    listening.close()
    assert not os.path.exists(path)


def test_a_dead_socket_is_taken_over(directory: str) -> None:
    path = os.path.join(directory, "sandboxd.sock")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    listening = listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    listening.close()


def test_a_live_socket_is_left_alone(directory: str) -> None:
    path = os.path.join(directory, "sandboxd.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(HostError) as error:
            listen(path)
        refused(error, "socket_in_use")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


@pytest.mark.parametrize("kind", ["file", "directory", "link", "fifo"])
def test_what_is_not_a_socket_is_left_alone(directory: str, kind: str) -> None:
    path = Path(directory, "sandboxd.sock")
    make: dict[str, Callable[[], object]] = {
        "file": lambda: path.write_text("precious"),
        "directory": path.mkdir,
        "link": lambda: path.symlink_to("/nowhere"),
        "fifo": lambda: os.mkfifo(path),
    }
    make[kind]()
    before = path.lstat()
    with pytest.raises(HostError) as error:
        listen(str(path))
    refused(error, "socket_path_occupied")
    assert os.path.samestat(before, path.lstat())


@pytest.mark.parametrize("path", ["relative/s.sock", "/tmp/" + "s" * 120, "/tmp/a\0b"])
def test_a_path_no_socket_can_have_is_explained(path: str) -> None:
    with pytest.raises(HostError) as error:
        prepare_directory(path)
    refused(error, "socket_path_invalid")


def test_a_socket_that_replaced_ours_is_not_removed(directory: str) -> None:
    path = os.path.join(directory, "sandboxd.sock")
    listening = listen(path)
    os.rename(path, path + ".old")
    Path(path).write_text("somebody else's")
    listening.close()
    assert Path(path).read_text() == "somebody else's"


def test_only_one_holds_the_lock(directory: str) -> None:
    lock = DirectoryLock(directory)
    with pytest.raises(HostError) as error:
        DirectoryLock(directory)
    refused(error, "daemon_running")
    assert str(os.getpid()) in error.value.message
    lock.release()
    lock.release()
    assert not os.path.exists(directory)
    DirectoryLock(directory).release()


def test_a_lock_removed_while_held_is_not_shared(directory: str) -> None:
    """A removal of the file by hand permits a second daemon, but never two that hold the same name."""
    first = DirectoryLock(directory)
    os.unlink(first.path)
    second = DirectoryLock(directory)
    with pytest.raises(HostError):
        DirectoryLock(directory)
    second.release()
    first.release()


RACER = """
import sys, os
from sandboxd.errors import HostError
from sandboxd.rpc.socket import DirectoryLock
sys.stdin.read(1)
try:
    lock = DirectoryLock(sys.argv[1])
except HostError as error:
    print(error.slug, flush=True)
else:
    print("won", flush=True)
    sys.stdin.read()
    lock.release()
"""


def test_of_many_that_start_at_once_exactly_one_wins(directory: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("x")
        racer.stdin.flush()
    words = []
    for racer in racers:
        assert racer.stdout is not None
        words.append(racer.stdout.readline().strip())
    for racer in racers:
        racer.communicate()
    assert sorted(words) == ["daemon_running"] * 5 + ["won"]
    assert not os.path.exists(directory)


def test_nothing_is_passed_without_a_service_manager() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "HOME": "/"}
    assert take_passed(environment) is None
    assert environment == {"HOME": "/"}  # never inherited by a child


PASSED = """
import os, sys
from sandboxd.errors import HostError
from sandboxd.rpc.socket import take_passed
os.dup2(int(sys.argv[1]), 3)
try:
    passed = take_passed({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
    print(passed.path, passed.own, os.get_inheritable(3))
    passed.close()
except HostError as error:
    print(error.slug)
"""


@pytest.mark.parametrize("kind", ["listening", "connected", "file"])
def test_a_passed_socket_is_used_and_left_in_place(directory: str, kind: str) -> None:
    path = os.path.join(directory, "passed.sock")
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as client,
        open(os.path.join(directory, "file"), "w") as file,
    ):
        listener.bind(path)
        listener.listen()
        client.connect(path)
        given = {"listening": listener.fileno(), "connected": client.fileno(), "file": file.fileno()}[kind]
        done = subprocess.run(
            [sys.executable, "-c", PASSED, str(given)],
            pass_fds=[given],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            check=True,
        )
    if kind == "listening":
        assert done.stdout.split() == [path, "False", "False"]
    else:
        assert done.stdout.strip() == "passed_socket_unusable"
    assert os.path.exists(path)


def test_a_directory_that_is_not_ours_by_name_stays(tmp_path: Path) -> None:
    directory = tmp_path / "chosen"
    directory.mkdir(0o700)
    DirectoryLock(str(directory)).release()
    assert os.listdir(directory) == []


def test_the_log_stays_where_the_daemon_has_been(directory: str) -> None:
    lock = DirectoryLock(directory)
    Path(directory, "daemon.log").touch()
    lock.release()
    assert os.listdir(directory) == ["daemon.log"]
