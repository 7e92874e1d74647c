"""The decision table of docs/commands.md in real sandboxes: both clients, and the command line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.daemons import DaemonProcess
from support.pages import decision_table

PERMISSIONS = {"ask": ["Bash(date:*)"], "deny": ["Bash(rm:*)"]}
STAND_INS = {"`ls`": "echo", "`docker ps`": "printenv PATH", "`git push`": "date", "`rm x`": "rm x", "nothing": ""}
"""Programs that are on every machine in place of those of the page."""
SITUATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "defaults": ({}, "prompt"),
    "`autoAllowBashIfSandboxed: false`": ({"autoAllowBashIfSandboxed": False}, "prompt"),
    "`allowUnsandboxedCommands: false`": ({"allowUnsandboxedCommands": False}, "prompt"),
    "mode `open`": ({}, "open"),
    "mode `plan`": ({}, "plan"),
    "mode `none`": ({}, "none"),
    "`enabled: false`": ({"enabled": False}, "prompt"),
}
EVERY_CELL = """
import asyncio, json, os, sys, warnings
from sandboxd_client import ApprovalRequired, AsyncClient, Client, CommandDenied

warnings.simplefilter("ignore")
os.environ["IS_SANDBOX"] = "1"  # for root in the mode open
mode, *commands = json.loads(sys.argv[1])
OPTIONS = dict(decide=True, capture_output=True)

def end(done):
    return "inside" if done.sandboxed else "outside"

async def decided(session, command, **wish):
    try:
        return end(await session.run(command, **OPTIONS, **wish))
    except (ApprovalRequired, CommandDenied) as refusal:
        return type(refusal).__name__

async def main():
    async with AsyncClient(autostart=False) as box, box.session(permission_mode=mode) as session:
        wishes = {}, {"dangerously_disable_sandbox": True}
        return [[await decided(session, command, **wish) for wish in wishes] for command in commands]

found = []
with Client(autostart=False) as box, box.session(permission_mode=mode) as session:
    for command in commands:
        found.append([])
        for wish in ({}, {"dangerouslyDisableSandbox": True}):
            try:
                found[-1].append(end(session.run(command, **OPTIONS, **wish)))
            except (ApprovalRequired, CommandDenied) as refusal:
                found[-1].append(type(refusal).__name__)
print(json.dumps([found, asyncio.run(main())]))
"""
OUTCOMES = {
    "inside, allow": "inside",
    "outside, allow": "outside",
    "inside, ask": "ApprovalRequired",
    "outside, ask": "ApprovalRequired",
    "deny": "CommandDenied",
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_cell(shared_daemon: DaemonProcess, situation: str) -> None:
    daemon, (switches, mode) = shared_daemon, SITUATIONS[situation]
    daemon.identity.write(daemon.identity.workspace / "x", "")
    settings = {"permissions": PERMISSIONS, "sandbox": {"excludedCommands": ["printenv"], **switches}}
    daemon.identity.write(daemon.identity.home / ".claude" / "settings.json", json.dumps(settings))
    try:
        table = decision_table()
        wanted = [[OUTCOMES[table[row + wish][situation]] for wish in ("", " with a wish")] for row in STAND_INS]
        done = daemon.python(EVERY_CELL, json.dumps([mode, *STAND_INS.values()]))
        assert done.returncode == 0, done.stderr
        blocking, asynchronous = json.loads(done.stdout)
        assert blocking == wanted and asynchronous == wanted
        if situation not in ("defaults", "`allowUnsandboxedCommands: false`", "mode `none`"):
            return
        (session,) = re.findall(r"s-\w+", daemon.run("session", "start", "--permission-mode", mode).stdout)
        show = "echo ${SANDBOX_RUNTIME-bare}"
        for row, line in ((0, show), (1, "printenv SANDBOX_RUNTIME"), (3, "rm x")):
            for column, option in enumerate(("--decide", "--disable-sandbox")):
                ran = daemon.run("run", "--session", session, option, "-c", line)
                outcome = {"1\n": "inside", "bare\n": "outside", "": "refused"}[ran.stdout]
                if row == 1 and ran.returncode == 1:
                    outcome = "outside"  # the variable is not set there
                expected = wanted[row][column]
                assert outcome == (expected if expected in ("inside", "outside") else "refused"), (line, option, ran)
                assert outcome != "refused" or ran.returncode == 125
        daemon.run("session", "end", session)
    finally:
        (daemon.identity.home / ".claude" / "settings.json").unlink()
    assert (daemon.identity.workspace / "x").exists()
