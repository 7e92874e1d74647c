"""Claude Code as its package has it, with a model of the tests: its hooks put each command into the sandbox.

`./dev agents` installs the package and runs this; it needs no account and reaches nothing but this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.messages_api import Model, served

PROGRAM = next(Path(os.environ["SANDBOXD_AGENTS"]).glob("node_modules/@anthropic-ai/claude-code-*/claude"))


def played(daemon: DaemonProcess, *commands: dict[str, Any], options: tuple[str, ...] = ()) -> list[str]:
    model = Model([{"description": "d", **command} for command in commands])
    with served(model) as address:
        environment = daemon.environment(
            ANTHROPIC_API_KEY="sk-ant-x",
            ANTHROPIC_BASE_URL=address,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )
        done = daemon.identity.run(
            [str(PROGRAM), "-p", "go", "--output-format", "json", *options], env=environment, input=""
        )
    assert done.returncode == 0, done
    assert len(model.results) == len(commands), model.results
    return model.results


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    daemon = start_daemon(settings={"sandbox": {"excludedCommands": ["id"]}, "permissions": {"deny": ["Bash(nl:*)"]}})
    done = daemon.run("hook", "install", "claude")
    assert done.returncode == 0, done
    return daemon


def test_commands_of_the_agent_run_inside(daemon: DaemonProcess) -> None:
    outside = daemon.identity.home / "outside"
    script = "echo \"it's $SANDBOX_RUNTIME\" >/tmp/kept; touch here; cat <<'END'\n$HOME `x` !1 é\nEND"
    first, second, blocked, denied, failed = played(
        daemon,
        {"command": script},
        {"command": "cat /tmp/kept"},
        {"command": f"touch {outside}"},
        {"command": "nl here"},
        {"command": "echo out; exit 3"},
    )
    assert "$HOME `x` !1 \\u00e9" in first and (daemon.identity.workspace / "here").exists()
    assert "it's 1" in second, "the commands of one agent share /tmp"
    assert not outside.exists() and "<sandbox_violations>" in blocked and str(outside) in blocked
    assert "denied by Bash(nl:*)" in denied and "Exit code 3" in failed
    assert json.loads(daemon.run("session", "list", "--json").stdout)["sessions"] == [], "it ended with the agent"


def test_nothing_runs_outside_without_a_yes(daemon: DaemonProcess) -> None:
    outside = daemon.identity.home / "outside"
    options = () if daemon.identity.uid == 0 else ("--dangerously-skip-permissions",)  # root may not skip
    [asked] = played(daemon, {"command": f"touch {outside}", "dangerouslyDisableSandbox": True}, options=options)
    assert not outside.exists() and "sandboxd:" in asked


def test_without_a_daemon_nothing_runs(daemon: DaemonProcess) -> None:
    assert daemon.stop() == 0
    daemon.socket.unlink(missing_ok=True)
    daemon.socket.mkdir(parents=True)  # none can be started either
    try:
        [denied] = played(daemon, {"command": "touch ran"}, options=("--allowedTools", "Bash"))
    finally:
        daemon.socket.rmdir()
    assert "sandboxd:" in denied and not (daemon.identity.workspace / "ran").exists()
