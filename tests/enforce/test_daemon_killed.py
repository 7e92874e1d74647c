"""A command outlives a daemon that is killed, and keeps its protection when the next one cleans up (FS-44, PR-03)."""

from __future__ import annotations

import signal
import subprocess

from support.daemons import StartDaemon
from support.waiting import wait_until

LATER = "touch started; until test -e next; do sleep 0.05; done; mkdir .vscode; touch .vscode/tasks.json; touch tried"


def test_the_next_daemon_takes_no_protection_from_a_running_command(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    workspace = first.identity.workspace
    client = first.popen("run", "-c", LATER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (workspace / "started").exists(), "the command runs")
    first.process.kill()
    first.process.wait()
    second = start_daemon()
    first.identity.write(workspace / "next", "")
    wait_until(lambda: (workspace / "tried").exists(), "the command has tried")
    assert not (workspace / ".vscode" / "tasks.json").exists()
    client.wait()
    assert second.stop(signal.SIGTERM) == 0
    assert {path.name for path in workspace.iterdir()} == {"started", "next", "tried"}
