"""A daemon is started when none answers: detached, one for all, with its own words when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.settings.files.trust import OpenedPlaces, TrustStore, opened_file, trust_directory
from sandboxd_client import (
    AsyncClient,
    Client,
    DaemonNotRunning,
    DaemonStartFailed,
    DaemonTimeout,
    PermissionDenied,
    programs,
)
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.transport import starting
from sandboxd_client.transport.connection import open_connection
from sandboxd_client.transport.starting import stop_daemon
from support import processes
from support.daemons import accepts
from support.waiting import wait_until

CLIENT = Path(__file__).resolve().parents[2] / "client"
SERVE = f"""
import json, os, sys
sys.path.insert(0, {str(CLIENT)!r})
from sandboxd_client.testing import FakeDaemon
assert sys.argv[1:3] == ["serve", "--socket"]
facts = {{
    "pid": os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(), "environment": dict(os.environ),
    "files": {{fd: os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
              if os.path.exists("/proc/self/fd/" + fd)}},
}}
with open(sys.argv[3] + ".started", "a") as log:
    log.write(json.dumps(facts) + "\\n")
with FakeDaemon(sys.argv[3]) as daemon:
    daemon.wait_until_stopped()
"""

Serve = Callable[[str], None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A socket path in a directory that does not exist yet; what serves there is ended with the test."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = str(tmp_path / "run" / "s")
    yield path
    with contextlib.suppress(DaemonNotRunning, PermissionDenied):
        stop_daemon(path)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`serve(code)`: what `sandboxd serve` is in this test."""

    def install(code: str) -> None:
        script = tmp_path / "serve.py"
        script.write_text(textwrap.dedent(code))
        monkeypatch.setattr(starting, "daemon_command", lambda path: [sys.executable, str(script)])

    install(SERVE)
    return install


def starts(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path + ".started").read_text().splitlines()]


def test_the_first_call_starts_one_and_the_next_finds_it(path: str, serve: Serve) -> None:
    with Client(path) as box:
        assert box.status().socket == path
    with Client(path) as box:
        assert box.status()
    assert len(starts(path)) == 1
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


async def test_the_same_with_coroutines(path: str, serve: Serve) -> None:
    async with AsyncClient(path) as box:
        assert (await box.status()).socket == path
    assert len(starts(path)) == 1


def test_it_is_detached(path: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("KEPT", "1")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        with Client(path) as box:
            box.connect()
    finally:
        os.close(writer)
    (facts,) = starts(path)
    assert facts["cwd"] == "/"
    assert facts["session"] not in (os.getsid(0), facts["pid"])
    files = facts["files"]
    assert isinstance(files, dict) and set(files) == {"0", "1", "2"}
    log = os.path.join(os.environ["HOME"], ".local/state/sandboxd/daemon.log")
    assert (files["0"], files["1"], files["2"]) == ("/dev/null", log, log)
    environment = facts["environment"]
    assert isinstance(environment, dict) and environment["KEPT"] == "1"
    assert not {"NOTIFY_SOCKET", "LISTEN_FDS"} & set(environment)
    with open(reader, "rb") as end:
        assert end.read() == b""  # no other process holds the pipe's other end


def test_many_at_once_start_one(path: str, serve: Serve) -> None:
    def ask(number: int) -> int:
        with Client(path) as box:
            return box.status().pid

    with ThreadPoolExecutor(12) as pool:
        pids = set(pool.map(ask, range(12)))
    assert len(pids) == 1 and len(starts(path)) == 1
    left = ["lock", "s", "s.started"]  # the lock is the daemon's; that of its starting is gone
    assert sorted(os.listdir(os.path.dirname(path))) == left


def test_without_autostart_nothing_is_started_or_made(path: str, serve: Serve) -> None:
    with pytest.raises(DaemonNotRunning):
        Client(path, autostart=False).status()
    assert not os.path.exists(os.path.dirname(path))


def test_a_daemon_that_cannot_start_says_why(path: str, serve: Serve) -> None:
    serve("""
        import sys
        print("2030-01-01 some log line", file=sys.stderr)
        print("sandboxd: /home/x/.claude/settings.json:3: sandbox.enabled is true or false, not 7", file=sys.stderr)
        print("hint: write true", file=sys.stderr)
        sys.exit(125)
    """)
    with pytest.raises(DaemonStartFailed) as caught:
        Client(path).status()
    assert caught.value.message.endswith("sandbox.enabled is true or false, not 7")
    assert caught.value.hint == "write true"


def test_a_daemon_that_crashes_at_start(path: str, serve: Serve) -> None:
    serve("raise ModuleNotFoundError('no module named x')")
    with pytest.raises(DaemonStartFailed) as caught:
        Client(path).status()
    assert "no module named x" in caught.value.message
    assert "daemon.log" in caught.value.hint
    serve("import os; os._exit(3)")  # its predecessor's words, which the log keeps, are not taken for its own
    with pytest.raises(DaemonStartFailed, match="without a message"):
        Client(path).status()


def test_a_daemon_that_hangs_at_start(path: str, serve: Serve) -> None:
    serve("import time; time.sleep(300)")
    before = {process.pid for process in processes.descendants()}
    with pytest.raises(DaemonStartFailed, match="does not answer"):
        starting.connect_or_start(path, timeout=0.1)
    for process in processes.descendants():
        if process.pid not in before:
            processes.end(process.pid)


def test_a_program_that_cannot_be_run(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "daemon_command", lambda path: ["/nonexistent/sandboxd"])
    with pytest.raises(DaemonStartFailed, match="No such file"):
        Client(path).status()


@pytest.mark.parametrize("name", ["daemon.log", "starting"])
def test_what_is_no_file_is_named_and_not_waited_for(
    path: str, serve: Serve, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")  # so the log is beside the socket
    place = Path(path).with_name(name)
    place.parent.mkdir(mode=0o700)
    place.mkdir()
    with pytest.raises(DaemonStartFailed, match=name):
        Client(path).status()
    place.rmdir()
    place.symlink_to("elsewhere")
    with pytest.raises(DaemonStartFailed, match=name):
        Client(path).status()
    place.unlink()
    os.mkfifo(place)
    if name == "daemon.log":
        with pytest.raises(DaemonStartFailed, match=name):
            Client(path).status()
        place.unlink()
    with Client(path) as box:
        assert box.status() and not place.with_name("elsewhere").exists()


def test_a_place_where_no_directory_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(PermissionDenied) as caught:
        Client(tmp_path / "no" / "such" / "s").status()
    assert caught.value.slug == "directory_unusable"


def test_stopping_waits_until_it_is_gone(path: str, serve: Serve) -> None:
    with Client(path) as box:
        pid = box.status().pid
    assert stop_daemon(path) == pid
    assert not processes.is_alive(pid)
    with pytest.raises(DaemonNotRunning):
        stop_daemon(path)


def test_stopping_one_that_does_not_stop(fake: FakeDaemon) -> None:
    with pytest.raises(DaemonTimeout):
        stop_daemon(fake.socket, timeout=0.2)  # its pid is this very process
    fake.answer("shutdown", {"pid": 1})
    fake.close()


def test_a_dead_socket_is_no_obstacle(path: str, serve: Serve) -> None:
    with Client(path) as box:
        pid = box.status().pid
    processes.end(pid)
    # its first thread is a zombie before the last one has closed the listening socket
    wait_until(lambda: not accepts(Path(path)))
    assert os.path.exists(path)
    serve(f"import os, sys; os.path.exists(sys.argv[3]) and os.unlink(sys.argv[3])\n{SERVE}")
    with Client(path) as box:
        assert box.status().pid != pid


def test_a_socket_unit_without_a_listener_is_no_obstacle(
    path: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can fail between the look and the connection, and the look can have seen that of another mount namespace."""
    monkeypatch.setattr(starting, "start_socket_unit", lambda path: True)
    with Client(path) as box:
        assert box.status().socket == path
    assert len(starts(path)) == 1


def test_which_program_is_started(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "sandboxd", tmp_path / "site" / "sandboxd"):
        place.mkdir(parents=True)
        (place / "__init__.py").touch()
    program = tmp_path / "bin" / "sandboxd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path / "site")])
    monkeypatch.delitem(sys.modules, "sandboxd", raising=False)
    assert starting.daemon_command(path) == [sys.executable, "-I", "-m", "sandboxd"]
    with monkeypatch.context() as patch:  # a safe one comes before one that commands may have written
        patch.setattr(programs, "find", lambda *_: programs.Search("/usr/bin/sandboxd"))
        assert starting.daemon_command(path) == ["/usr/bin/sandboxd"]
        patch.setattr(programs, "why_writable", lambda *_: "")
        assert starting.daemon_command(path) == [sys.executable, "-I", "-m", "sandboxd"]
    monkeypatch.setattr(sys, "path", ["", "."])  # a project must not decide it by what it contains
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", ":.:bin:/nonexistent")
    with pytest.raises(DaemonNotRunning) as caught:
        starting.daemon_command(path)
    assert "./dev install" in caught.value.hint
    monkeypatch.setenv("PATH", f".:{program.parent}")
    with pytest.raises(DaemonNotRunning, match="a command could have written it"):
        starting.daemon_command(path)
    monkeypatch.setattr(programs, "why_writable", lambda path, writable=(): "")
    assert starting.daemon_command(path) == [str(program)]


def test_an_installation_commands_could_write_is_not_started(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of a project's virtual environment, with nothing better at hand."""
    home, project = tmp_path / "home", tmp_path / "project"
    package = project / ".venv" / "site" / "sandboxd"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", ["", str(package.parent)])
    monkeypatch.delitem(sys.modules, "sandboxd", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(programs, "find", lambda *_: programs.Search(None))
    own = [sys.executable, "-I", "-m", "sandboxd"]
    assert starting.daemon_command(path) == own
    store, record = TrustStore(trust_directory(str(home))), opened_file(str(home))
    OpenedPlaces(record).add([str(tmp_path / "other")], store)
    assert starting.daemon_command(path) == own
    OpenedPlaces(record).add([str(project)], store)
    with pytest.raises(DaemonNotRunning, match=f"commands could write {project}") as caught:
        starting.daemon_command(path)
    assert "./dev install" in caught.value.hint
    monkeypatch.setattr(programs, "find", lambda *_: programs.Search("/usr/bin/sandboxd"))
    assert starting.daemon_command(path) == ["/usr/bin/sandboxd"]


def test_another_interpreter_than_pythonexecutable_detaches(
    path: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable names the interpreter of each Python, and its file may have come later."""
    daemon, planted = starting.daemon_command(path), tmp_path / "python3"
    planted.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    planted.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(planted))
    monkeypatch.setattr(starting, "daemon_command", lambda path: daemon)
    with Client(path) as box:
        assert box.status().socket == path
    assert not (tmp_path / "ran").exists()
    monkeypatch.setattr(programs, "find", lambda *_: programs.Search(None))
    monkeypatch.setattr(programs, "opened_place", lambda *paths: str(tmp_path))
    with pytest.raises(DaemonStartFailed, match="commands could write"):
        starting.connect_or_start(f"{path}2")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("spoil", ["link", "long", "closed"])
def test_a_record_that_cannot_be_read_stops_the_start(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    record = Path(opened_file(str(tmp_path)))
    record.parent.mkdir(parents=True)
    if spoil == "link":
        record.symlink_to("/etc/passwd")
    elif spoil == "long":
        record.write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    else:
        record.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert programs.opened_place([sys.executable]) == "/"
    assert programs.opened_place([]) == ""


def test_a_connection_of_a_single_thread_is_given(path: str, serve: Serve) -> None:
    connection = starting.connect_or_start(path)
    assert connection.call("hello", {})["server"] == "sandboxd-fake"
    connection.close()
    open_connection(path).close()
