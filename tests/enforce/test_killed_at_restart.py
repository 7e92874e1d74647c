"""The daemon is killed in the middle of a restart: its commands keep their protection, and the next one cleans up
(docs/restarts.md)."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.processes import descendants
from support.snapshot import HostWatch
from support.users import Identity
from support.waiting import wait_until

LATER = """
echo running; read line; exec 2>/dev/null
mkdir .vscode && echo made
for file in .mcp.json .git/hooks/pre-commit ~/outside; do echo >$file && echo "wrote $file"; done
curl -sSf http://denied.test:$1/ && echo connected
curl -sSf --noproxy '*' http://127.0.0.1:$1/ && echo connected directly
echo >allowed && echo end
"""


RESTART = """
from sandboxd_client import Client
with Client(autostart=False) as box: box.restart()
"""


def environment_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def is_tried(daemon: DaemonProcess) -> bool:
    return any(b"SANDBOXD_TRIAL=" in environment_of(one.pid) for one in descendants(daemon.pid))


def is_executed(daemon: DaemonProcess) -> bool:
    return b"SANDBOXD_HANDOVER=" in environment_of(daemon.pid)


def is_loaded(daemon: DaemonProcess) -> bool:
    """The new program has read nearly all of itself: this is the last library that it needs."""
    with contextlib.suppress(OSError):
        return is_executed(daemon) and "tree_sitter" in Path(f"/proc/{daemon.pid}/maps").read_text()
    return False


def git_alone(identity: Identity) -> bool:
    return [path.name for path in identity.workspace.iterdir()] == [".git"]


STAGES: dict[str, Callable[[DaemonProcess], bool]] = {
    "the new program is tried": is_tried,
    "it lets go": lambda daemon: '"restarting"' in daemon.output(),
    "executed": is_executed,
    "loaded": is_loaded,
    "it has taken over": lambda daemon: '"taken over from the daemon before"' in daemon.output(),
}


@pytest.mark.parametrize("stage", STAGES)
def test_whatever_it_was_doing(start_daemon: StartDaemon, host_snapshot: HostWatch, origin: Origin, stage: str) -> None:
    identity = host_snapshot.identity
    identity.run(["git", "init", "-q", str(identity.workspace)], check=True)
    with host_snapshot.assert_unchanged():
        first = start_daemon(resolve={"denied.test": "127.0.0.1"})
        argv = ["run", "--", "bash", "-c", LATER, "bash", str(origin.port)]
        client = first.popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert client.stdin is not None and client.stdout is not None
        assert client.stdout.readline() == b"running\n"
        restart = identity.popen(identity.python("-c", RESTART), env=first.environment(), stderr=subprocess.DEVNULL)
        wait_until(lambda: STAGES[stage](first) or restart.poll() is not None, stage)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        restart.wait(60)
        second = start_daemon()
        assert json.loads(second.run("status", "--json").stdout)["restarts"] == 0
        output, _ = client.communicate(b"go on\n", timeout=60)
        assert output.startswith(b"end\nsandboxd: the repository clean-up after the command did not finish; ")
        assert client.returncode == 125 and origin.connections == []
        (identity.workspace / "allowed").unlink()
        wait_until(lambda: git_alone(identity), "nothing is left, while the second one runs")
        assert second.run("run", "--", "true").returncode == 0
        assert second.stop() == 0
