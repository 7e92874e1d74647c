"""Whatever dies, and however many work at once: the host is as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import DaemonProcess, StartDaemon, accepts
from support.processes import descendants
from support.snapshot import HostWatch
from support.users import Identity
from support.waiting import wait_until

WAITS = "echo running; trap '' TERM INT; read line; sleep 987"


def start(identity: Identity, daemon: DaemonProcess) -> subprocess.Popen[bytes]:
    """A command that runs until a process of it is killed."""
    client = daemon.popen("run", "-c", WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert client.stdout is not None and client.stdout.readline() == b"running\n"
    if os.environ.get("SANDBOXD_TEST_PLACEHOLDERS"):
        assert (identity.workspace / ".vscode").is_dir(), "what keeps a protected name absent is there"
    return client


def is_clean(identity: Identity) -> bool:
    return {path.name for path in identity.workspace.iterdir()} <= {".git"}


def run_once(daemon: DaemonProcess) -> None:
    """What a daemon keeps for itself while it lives is there from the first command on."""
    assert daemon.run("run", "--", "true").returncode == 0
    wait_until(lambda: is_clean(daemon.identity), "the first command's placeholders are gone")


def finish(client: subprocess.Popen[bytes]) -> None:
    client.communicate()


def chain(client: subprocess.Popen[bytes]) -> list[int]:
    """Client, bubblewrap, the helper as process 1, and the command."""
    pids = [client.pid]
    while below := [one for one in descendants(pids[-1]) if one.parent == pids[-1]]:
        pids.append(below[0].pid)
    return pids


@each_bubblewrap
def test_whoever_is_killed(daemon: DaemonProcess, host_snapshot: HostWatch) -> None:
    """The same for each killed process."""
    identity = daemon.identity
    identity.run(["git", "init", "-q", str(identity.workspace)])
    run_once(daemon)
    with host_snapshot.assert_unchanged():
        for victim in range(4):
            client = start(identity, daemon)
            pids = chain(client)
            assert len(pids) >= 4, pids
            os.kill(pids[victim], signal.SIGKILL)
            finish(client)
            wait_until(lambda: is_clean(identity), f"all is cleaned up after victim {victim}")


@each_bubblewrap
@pytest.mark.parametrize("power", ["stays", "fails"])
def test_the_daemon_is_killed(start_daemon: StartDaemon, host_snapshot: HostWatch, power: str) -> None:
    """With a power cut everything dies at once, and what is in memory (the runtime directory) is gone."""
    with host_snapshot.assert_unchanged():
        daemon = start_daemon()
        identity = daemon.identity
        client = start(identity, daemon)
        if power == "fails":
            os.kill(chain(client)[2], signal.SIGKILL)
        daemon.stop(signal.SIGKILL)
        if power == "stays":
            client.kill()
        finish(client)
        wait_until(lambda: len(chain(client)) == 1, "the command is gone")
        if power == "fails":
            shutil.rmtree(identity.runtime / "sandboxd")
        start_daemon().stop()


MANY = """
import json, subprocess, sys, threading
from sandboxd_client import Client
script = "mkdir .vscode 2>/dev/null && echo made; touch .mcp.json/x 2>/dev/null && echo written; git status --porcelain"
said, failed = [], []
def work():
    with Client(autostart=False) as box:
        for _ in range(25):
            done = box.run(script, capture_output=True, text=True)
            said.append(done.stdout)
            if done.returncode: failed.append(done.stderr)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([len(said), sorted(set(said)), failed[:3]]))
"""


def test_two_hundred_commands_of_eight_clients(daemon: DaemonProcess, host_snapshot: HostWatch) -> None:
    identity = daemon.identity
    identity.run(["git", "init", "-q", str(identity.workspace)])
    run_once(daemon)
    with host_snapshot.assert_unchanged():
        done = daemon.python(MANY, cwd=identity.workspace)
        assert json.loads(done.stdout) == [200, [""], []], done.stderr


@pytest.mark.usefixtures("placeholders")
def test_two_daemons_in_one_directory(daemon: DaemonProcess, host_snapshot: HostWatch) -> None:
    """Each keeps what the other needs, and the last takes it away."""
    identity = daemon.identity
    other = identity.base / "other" / "run"
    other.mkdir(parents=True, mode=0o700)
    for path in (other.parent, other):
        identity.own(path)
    address = str(other / "sandboxd.sock")
    run_once(daemon)
    with host_snapshot.assert_unchanged():
        second = identity.popen(
            identity.command("serve", "--socket", address), cwd=identity.home, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: accepts(Path(address)), "the other daemon listens")
        client = start(identity, daemon)
        for _ in range(2):
            attempt = ["--socket", address, "-c", "mkdir .vscode || touch .vscode/x || echo closed"]
            done = identity.run(
                identity.command("run", *attempt[2:]), cwd=identity.workspace,
                env=identity.environment(SANDBOXD_SOCKET=address),
            )  # fmt: skip
            assert done.stdout == "closed\n", done.stderr
            assert (identity.workspace / ".vscode").is_dir()
        second.terminate()
        second.wait()
        assert (identity.workspace / ".vscode").is_dir(), "the first daemon's command still needs it"
        client.kill()
        finish(client)
