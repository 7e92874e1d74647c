"""`sandboxd serve` as a process: how it starts and how it ends. As root and as a user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, accepts
from support.processes import descendants
from support.users import Identity
from support.waiting import wait_until

CANNOT_START = 125


def ask(daemon: DaemonProcess, method: str, params: dict[str, Any] | None = None) -> Any:
    """One call, made by the identity itself: the daemon serves no other user."""
    code = (
        "import json,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(sys.argv[2].encode()+b'\\n')\n"
        "f=s.makefile(); print(f.readline(), end=''); sys.stdout.flush()\n"
        "if sys.argv[3:]: f.readline(); print('hung up')\n"
    )
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}})
    done = daemon.identity.run(daemon.identity.python("-c", code, str(daemon.socket), call), check=True)
    return json.loads(done.stdout)["result"]


def entries(identity: Identity) -> list[str]:
    return sorted(str(path.relative_to(identity.runtime)) for path in identity.runtime.rglob("*"))


OF_OTHERS = (
    "caller refused",  # the test process that looked whether it accepts, as another user perhaps
    # what a daemon of the same user has left that was killed, in another test that runs beside
    "removed a placeholder of an earlier daemon",
    "ended an orphan of an incomplete sandbox",
)


def events(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """Its log, as far as it is about itself."""
    records = [json.loads(line) for line in daemon.output().splitlines()]
    return [record for record in records if record["event"] not in OF_OTHERS]


def temporary_directory(daemon: DaemonProcess) -> Path:
    """That of this daemon, which it holds a lock in; other daemons of the same user have theirs beside it."""
    links = []
    for descriptor in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the directory was listed
            links.append(os.readlink(descriptor))
    (lock,) = [link for link in links if link.startswith(f"/var/tmp/sandboxd-{daemon.identity.uid}/d-")]
    return Path(lock).parent


def test_its_files_are_its_owner_s_alone(daemon: DaemonProcess) -> None:
    directory = daemon.socket.parent
    assert sorted(path.name for path in directory.iterdir()) == ["bridge.sock", "lock", "sandboxd.sock"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert path.stat().st_uid == daemon.identity.uid


def test_it_answers_and_says_that_it_is_ready(daemon: DaemonProcess) -> None:
    status = ask(daemon, "status")
    assert status["pid"] == daemon.pid
    assert status["warnings"] == []
    said = wait_until(lambda: [event for event in events(daemon) if event["event"] == "ready"], "it is ready")
    assert [(ready["socket"], ready["pid"]) for ready in said] == [(str(daemon.socket), daemon.pid)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_left(daemon: DaemonProcess, number: signal.Signals) -> None:
    temporary = temporary_directory(daemon)
    assert temporary.is_dir()
    assert daemon.stop(number) == 0
    assert entries(daemon.identity) == []
    assert not temporary.exists()
    assert [event["event"] for event in events(daemon)] == ["ready", "stopping", "stopped"]


def test_shutdown_hangs_up_when_another_can_be_started(daemon: DaemonProcess, start_daemon: Any) -> None:
    code = (
        "import json,os,socket,sys\n"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f=s.makefile()\n"
        "s.sendall(json.dumps({'jsonrpc':'2.0','id':1,'method':'shutdown'}).encode()+b'\\n')\n"
        "print(json.loads(f.readline())['result']['pid'])\n"
        "assert f.readline() == ''\n"
        "print(os.path.exists(os.path.dirname(sys.argv[1])))\n"
    )
    done = daemon.identity.run(daemon.identity.python("-c", code, str(daemon.socket)), check=True)
    assert done.stdout.splitlines() == [str(daemon.pid), "False"]
    assert daemon.process.wait(30) == 0


def test_a_killed_daemon_is_taken_over(daemon: DaemonProcess, start_daemon: Any) -> None:
    temporary = temporary_directory(daemon)
    daemon.process.kill()
    daemon.process.wait()
    left = entries(daemon.identity)
    assert "sandboxd/sandboxd.sock" in left
    assert "sandboxd/bridge.sock" in left
    second = start_daemon()
    assert ask(second, "status")["pid"] == second.pid
    assert not temporary.exists()
    assert second.stop() == 0
    assert entries(daemon.identity) == []


def test_of_daemons_that_start_at_once_one_remains(identity: Identity) -> None:
    path = identity.runtime / "sandboxd" / "sandboxd.sock"
    racers = [
        identity.popen(identity.command("serve"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    wait_until(lambda: sum(racer.poll() is not None for racer in racers) == 2 and accepts(path), "two give up")
    (winner,) = [racer for racer in racers if racer.poll() is None]
    for racer in racers:
        if racer is not winner:
            _, said = racer.communicate()
            assert racer.returncode == CANNOT_START
            assert "already running" in said
            assert "hint: " in said
    winner.terminate()
    winner.communicate()
    assert winner.returncode == 0
    assert entries(identity) == []


if os.geteuid() == 0:

    def test_another_user_is_refused(daemon: DaemonProcess) -> None:
        other = 65534 if daemon.identity.uid != 65534 else 65533
        for path in (daemon.identity.runtime, daemon.socket.parent, daemon.socket):
            path.chmod(0o777)  # what the modes would have prevented
        code = "import socket,sys\ns=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.makefile().read())"
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-S", "-c", code, str(daemon.socket)],
            user=other, group=other, extra_groups=[], capture_output=True, text=True, cwd="/",
        )  # fmt: skip
        answer = json.loads(done.stdout)
        assert answer["error"]["data"]["slug"] == "peer_other_user"
        assert answer["id"] is None


def test_a_sandboxed_process_is_refused(daemon: DaemonProcess) -> None:
    """Even when the socket is bound into its view."""
    code = "import socket,sys\ns=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.makefile().read())"
    argv = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--unshare-net", "--die-with-parent"]
    for name in ("sandboxd.sock", "bridge.sock"):
        path = daemon.socket.with_name(name)
        done = daemon.identity.run([*argv, "/usr/bin/python3", "-I", "-S", "-c", code, str(path)])
        if name == "sandboxd.sock":
            assert json.loads(done.stdout)["error"]["data"]["slug"] == "peer_other_namespace"
        else:
            assert done.stdout.strip() == ""


def test_a_hang_up_signal_reads_the_settings_again(start_daemon: Any) -> None:
    daemon = start_daemon()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.identity.write(daemon.identity.home / ".claude" / "settings.json", '{"sandbox": {"enabled": true}}')
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: ask(daemon, "status")["enabled"], "the new settings hold")
    assert daemon.process.poll() is None


def test_the_service_manager_is_told(identity: Identity) -> None:
    """sd_notify(3): READY once it serves, STOPPING when it ends; and a socket that was passed is used and left."""
    path = identity.base / "passed" / "sandboxd.sock"
    path.parent.mkdir(mode=0o700)
    identity.own(path.parent)
    notify = identity.base / "notify.sock"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        manager.bind(str(notify))
        notify.chmod(0o666)
        manager.settimeout(30)
        listener.bind(str(path))
        identity.own(path)
        listener.listen()
        passing = (
            f"import os; os.dup2({listener.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
            f"os.execv({identity.command()[0]!r}, [{identity.command()[0]!r}, 'serve'])"
        )
        process = identity.popen(
            identity.python("-c", passing),
            env=identity.environment(NOTIFY_SOCKET=str(notify), LISTEN_FDS="1"),
            pass_fds=[listener.fileno()],
            stderr=subprocess.DEVNULL,
        )
        ready, status = manager.recv(1000).decode().splitlines()
        assert (ready, status) == ("READY=1", f"STATUS=listening at {path}, settings generation 1")
        daemon = DaemonProcess(identity, process, path, identity.base / "daemon.log")
        assert ask(daemon, "status")["socket"] == str(path)
        process.send_signal(signal.SIGHUP)
        assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(1000).startswith(b"READY=1\n")
        process.terminate()
        assert manager.recv(1000).startswith(b"STOPPING=1\n")
        assert process.wait(30) == 0
        assert path.exists()


def test_it_starts_nothing_by_itself(daemon: DaemonProcess) -> None:
    """But the program of the helper that enters namespaces, where it can: it sleeps until it is asked."""
    started = [process for process in descendants(daemon.pid) if process.pid != daemon.pid]
    assert [Path(process.command[0]).name for process in started] in ([], ["namespaces"])
