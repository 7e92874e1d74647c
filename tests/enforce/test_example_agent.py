"""The example agent, its questions, and the process that answers them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.daemons import DaemonProcess
from support.users import CHECKOUT

FLAG = "dangerously_disable_sandbox"


def agent(daemon: DaemonProcess, *commands: str) -> list[Any]:
    code = (CHECKOUT / "examples" / "agent.py").read_text()
    done = daemon.python(code, *commands)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_example_asks_retries_outside_and_remembers(daemon: DaemonProcess) -> None:
    home, identity = daemon.identity.home, daemon.identity
    first, second = f"touch {home}/first", f"touch {home}/second"
    [[refused, retried]] = agent(daemon, first)
    assert (refused["sandboxed"], refused["call"]) == (True, {"command": first})
    assert f"{home}/first" in refused["output"].partition("<sandbox_violations>")[2]
    assert (retried["status"], retried["call"]) == (None, {"command": first, FLAG: True})
    assert "no client answers prompts" in retried["output"] and not (home / "first").exists()
    code = (CHECKOUT / "examples" / "approve.py").read_text()
    answering = identity.popen(
        identity.python("-c", code, "always", "1"), env=daemon.environment(), stdout=subprocess.PIPE, text=True
    )
    with answering:
        assert answering.stdout is not None and answering.stdout.readline() == "waiting for questions\n"
        [[inside, outside]] = agent(daemon, second)
        assert answering.stdout.read() == f"sandbox_override: {second}: always, {second}\n"
    assert (inside["sandboxed"], outside["sandboxed"], outside["status"]) == (True, False, 0)
    assert (home / "second").exists()
    written = json.loads((home / ".claude" / "settings.local.json").read_text())
    assert written == {"sandbox": {"excludedCommands": [second]}}
    (home / "second").unlink()
    [[again], [other]] = agent(daemon, second, "echo $TMPDIR")
    assert (again["sandboxed"], again["status"], other["sandboxed"]) == (False, 0, True)
    assert (home / "second").exists()
