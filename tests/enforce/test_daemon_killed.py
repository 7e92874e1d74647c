"""A command outlives a daemon that is killed, and keeps its protection when the next one cleans up."""

from __future__ import annotations

import subprocess

import pytest

from support.daemons import StartDaemon, accepts
from support.waiting import wait_until

LATER = "touch started; until test -e next; do sleep 0.05; done; mkdir .vscode; touch .vscode/tasks.json; touch tried"


@pytest.mark.parametrize("other", ["starts later", "is there already"])
def test_another_daemon_keeps_protection_of_a_running_command(start_daemon: StartDaemon, other: str) -> None:
    """In a directory whose name has other ends of a line than the one that the kernel escapes in mountinfo."""
    first = start_daemon()
    workspace = first.identity.write(first.identity.workspace / "a\rb\x0bc\x85d" / "file", "").parent
    client = first.popen("run", "-c", LATER, cwd=workspace, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (workspace / "started").exists(), "the command runs")
    if other == "is there already":
        place = first.identity.runtime / "other" / "sandboxd.sock"
        argv = first.identity.command("serve", "--socket", str(place))
        there = first.identity.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: accepts(place), "the other one listens")
    first.process.kill()
    first.process.wait()
    if other == "starts later":
        there = start_daemon().process
    first.identity.write(workspace / "next", "")
    wait_until(lambda: (workspace / "tried").exists(), "the command has tried")
    assert not (workspace / ".vscode" / "tasks.json").exists()
    client.wait()
    # by the second, or by whichever daemon of this user has looked first (or, when that ends as well, the next)
    left = {"file", "started", "next", "tried"}
    wait_until(lambda: {path.name for path in workspace.iterdir()} == left, "nothing is left, while daemons run")
    there.terminate()
    assert there.wait(60) == 0
