"""A command's whole tree ends with its owner, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import DaemonProcess, StartDaemon
from support.processes import descendants, is_alive
from support.snapshot import HostWatch
from support.waiting import time_limits, wait_until

TREE = (
    "(setsid sleep 987 &) ; (nohup sleep 987 >/dev/null 2>&1 &) ; "
    "trap '' TERM INT HUP; touch running; sleep 987; sleep 987"
)


def sleepers() -> list[int]:
    return [p.pid for p in descendants() if p.command[:2] == ("sleep", "987")]


def start_tree(daemon: DaemonProcess) -> subprocess.Popen[bytes]:
    client = daemon.popen("run", "-c", TREE)
    wait_until(lambda: (daemon.identity.workspace / "running").exists(), "the tree runs")
    wait_until(lambda: len(sleepers()) >= 3, "all of the tree runs")
    return client


@each_bubblewrap
def test_the_tree_dies_with_its_client(shared_daemon: DaemonProcess) -> None:
    client = start_tree(shared_daemon)
    client.kill()
    client.wait()
    wait_until(lambda: not sleepers(), "the tree has died with its client")


def test_a_client_asked_to_end_passes_it_on_and_then_insists(shared_daemon: DaemonProcess) -> None:
    client = start_tree(shared_daemon)
    client.send_signal(signal.SIGTERM)
    assert client.wait() == 128 + signal.SIGKILL
    wait_until(lambda: not sleepers(), "the tree is gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_command(shared_daemon: DaemonProcess, number: signal.Signals) -> None:
    client = shared_daemon.popen(
        "run", "-c", f"trap 'echo got; exit 3' {number.name[3:]}; touch ready; sleep 987 & wait", stdout=subprocess.PIPE
    )
    wait_until(lambda: (shared_daemon.identity.workspace / "ready").exists(), "the command runs")
    client.send_signal(number)
    output, _ = client.communicate()
    assert (output, client.returncode) == (b"got\n", 3)
    wait_until(lambda: not sleepers(), "its child is gone")


@each_bubblewrap
def test_the_tree_dies_with_bubblewrap(shared_daemon: DaemonProcess) -> None:
    client = start_tree(shared_daemon)
    outer = [p for p in descendants(client.pid) if p.parent == client.pid]
    assert len(outer) == 1
    outer_pid = outer[0].pid
    subprocess.run(["kill", "-KILL", str(outer_pid)], check=True)
    assert client.wait() == 128 + signal.SIGKILL
    wait_until(lambda: not sleepers(), "the tree is gone")


@each_bubblewrap
def test_the_tree_dies_when_the_daemon_is_stopped(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    client = start_tree(daemon)
    assert daemon.stop() == 0
    client.wait()
    wait_until(lambda: not sleepers(), "the tree is gone")


def test_the_tree_dies_with_its_session_and_with_the_connection(shared_daemon: DaemonProcess) -> None:
    code = """
import sys
from sandboxd_client import Client
box = Client(autostart=False)
session = box.session_open(cwd=".") if hasattr(box, "session_open") else None
from sandboxd_client.wire.messages import sessions
opened = session
child = box.spawn(sys.argv[1], session_id=opened.session_id)
import os, time
while not os.path.exists("running"):
    time.sleep(0.01)
if sys.argv[2] == "close":
    box.session_close(session_id=opened.session_id)
else:
    box.close()
print(child.wait())
"""
    for how in ("close", "disconnect"):
        done = shared_daemon.python(code, TREE, how)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() in ("-9", "137"), done.stdout
        wait_until(lambda: not sleepers(), "the tree is gone")
        (shared_daemon.identity.workspace / "running").unlink()


def test_a_thread_that_ends_does_not_take_its_command_along(shared_daemon: DaemonProcess) -> None:
    code = """
import threading
from sandboxd_client import Client
with Client(autostart=False) as box:
    started = []
    thread = threading.Thread(target=lambda: started.append(box.spawn("read line; echo ok", stdin=-1, stdout=-1)))
    thread.start()
    thread.join()
    child = started[0]
    out, _ = child.communicate(b"go\\n")
    print(out.decode().strip(), child.returncode)
"""
    done = shared_daemon.python(code)
    assert done.stdout == "ok 0\n", done.stderr


def test_a_timeout_ends_the_tree_and_keeps_the_output(shared_daemon: DaemonProcess) -> None:
    code = """
import subprocess, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    try:
        box.run("echo partial; " + sys.argv[1], timeout=float(sys.argv[2]), capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        output = error.stdout
        print("timeout", output if isinstance(output, str) else output.decode())
"""
    for limit in time_limits(1.5, (shared_daemon.identity.workspace / "running").exists):
        done = shared_daemon.python(code, TREE, str(limit))
    assert done.stdout.split() == ["timeout", "partial"], done.stderr
    wait_until(lambda: not sleepers(), "the tree is gone")


def test_background_processes_end_with_the_command(shared_daemon: DaemonProcess) -> None:
    assert shared_daemon.run("run", "-c", "sleep 987 & setsid sleep 987 & exit 0").returncode == 0
    wait_until(lambda: not sleepers(), "nothing outlives the command")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--", "true"),
        ("run", "--", "false"),
        ("run", "-c", "kill -KILL $$"),
        ("run", "-c", "echo x >$(mktemp); chmod 0 $(mktemp -d)"),
        ("run", "--", "absent"),
        ("run", "-c", "touch ~/refused; cat /etc/shadow; rm -rf /usr/bin"),
    ],
)
def test_the_host_is_as_before(daemon: DaemonProcess, host_snapshot: HostWatch, arguments: tuple[str, ...]) -> None:
    daemon.run("run", "--", "true")  # what a daemon keeps for itself while it lives is there from the first command on
    wait_until(lambda: not list(daemon.identity.workspace.iterdir()), "the placeholders of the first command are gone")
    with host_snapshot.assert_unchanged():
        daemon.run(*arguments)


def test_the_host_is_as_before_a_killed_client(daemon: DaemonProcess, host_snapshot: HostWatch) -> None:
    marker = Path(daemon.identity.workspace / "running")
    daemon.run("run", "--", "true")
    wait_until(lambda: not list(daemon.identity.workspace.iterdir()), "the placeholders of the first command are gone")
    with host_snapshot.assert_unchanged():
        client = start_tree(daemon)
        client.kill()
        client.wait()
        wait_until(lambda: not sleepers(), "the tree is gone")
        marker.unlink()


def test_the_host_is_as_before_a_killed_daemon(start_daemon: StartDaemon, host_snapshot: HostWatch) -> None:
    with host_snapshot.assert_unchanged():
        daemon = start_daemon()
        daemon.run("run", "--", "sh", "-c", "echo x >$(mktemp)")
        daemon.stop(signal.SIGKILL)
        assert not is_alive(daemon.pid)
        start_daemon().stop()
