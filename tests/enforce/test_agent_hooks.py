"""The hooks of an agent with a real daemon: the line that a hook returns, run by a shell, and what is told of it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon

# An agent: it asks the hook about each command, runs the line that it gets, and reports the end.
AGENT = """
import json, subprocess, sys
def hook(event, command, fields):
    document = {"hook_event_name": event, "session_id": "s", "cwd": sys.argv[1], "permission_mode": "default",
                "tool_name": "Bash", "tool_input": {"command": command, **fields}, "tool_use_id": "call-" + str(number)}
    done = subprocess.run(["sh", "-c", "sandboxd hook run claude || exit 2"], input=json.dumps(document), text=True,
                          capture_output=True)
    return json.loads(done.stdout)["hookSpecificOutput"] if done.stdout.strip() not in ("", "{}") else {}
for number, (command, fields) in enumerate(json.loads(sys.argv[2])):
    before = hook("PreToolUse", command, fields)
    ran = after = None
    if "updatedInput" in before:
        done = subprocess.run(["bash", "-c", before["updatedInput"]["command"]], capture_output=True, text=True)
        ran = [done.returncode, done.stdout, done.stderr]
        after = hook("PostToolUse", command, fields).get("additionalContext", "")
    print(json.dumps([before.get("permissionDecision"), before.get("permissionDecisionReason", ""), ran, after]))
"""


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon(settings={"sandbox": {"excludedCommands": ["id"]}, "permissions": {"deny": ["Bash(nl:*)"]}})


def played(daemon: DaemonProcess, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    done = daemon.python(AGENT, str(daemon.identity.workspace), json.dumps(calls))
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_agents_commands_run_inside_its_session(daemon: DaemonProcess) -> None:
    outside = daemon.identity.home / "outside"
    big, kept = "x" * 100_000, f"/tmp/sdt-{secrets.token_hex(8)}"
    first, second, blocked, denied, excluded, asked, long = played(
        daemon,
        (f"echo kept >{kept}; touch here; exit 3", {}),
        (f"cat {kept}; echo $SANDBOX_RUNTIME", {}),
        ("touch ~/outside", {}),
        ("nl here", {}),
        ("id -u >/dev/null; echo $SANDBOX_RUNTIME", {}),
        ("touch ~/outside", {"dangerouslyDisableSandbox": True}),
        (f"printf %s '{big}'", {}),
    )
    assert first[0] == "allow" and first[2][0] == 3 and (daemon.identity.workspace / "here").exists()
    assert second[2][:2] == [0, "kept\n1\n"], "commands of one agent share /tmp"
    assert not Path(kept).exists()
    assert blocked[0] == "allow" and blocked[2][0] == 1 and not outside.exists()
    assert "<sandbox_violations>" in blocked[3] and str(outside) in blocked[3] and first[3] == ""
    assert denied[0] == "deny" and "nl" in denied[1] and denied[2] is None
    assert excluded[0] == "allow" and excluded[2][1] == "1\n", "only a part of the line is excluded"
    assert asked[0] == "ask" and asked[2] is None and not outside.exists()
    assert long[2][:2] == [0, big]


def test_an_excluded_command_is_left_to_the_agents_rules(daemon: DaemonProcess) -> None:
    [[decision, _, ran, _]] = played(daemon, ("id -u", {}))
    assert decision is None and ran[:2] == [0, f"{daemon.identity.uid}\n"]


# What opencode does with its plug-in: it may throw, or change the arguments before and the output after a call.
OPENCODE = """
import { spawnSync } from "node:child_process";
const plugin = process.env.HOME + "/.config/opencode/plugins/sandboxd.mjs";
const hooks = await (await import(plugin)).Sandboxd({ directory: process.cwd() });
const all = [];
for (const [number, command] of JSON.parse(process.env.CALLS).entries()) {
  const input = { tool: "bash", sessionID: "s", callID: `call-${number}` };
  const output = { args: { command, description: "d" } };
  try {
    await hooks["tool.execute.before"](input, output);
    const done = spawnSync("bash", ["-c", output.args.command]);
    const after = { output: String(done.stdout) };
    await hooks["tool.execute.after"]({ ...input, args: output.args }, after);
    all.push([done.status, after.output]);
  } catch (error) {
    all.push([null, error.message]);
  }
}
const read = { args: { filePath: "x" } };
await hooks["tool.execute.before"]({ tool: "read", callID: "r" }, read);
console.log(JSON.stringify([...all, read.args]));
"""


def test_the_plug_in_of_opencode_puts_commands_inside(daemon: DaemonProcess) -> None:
    identity = daemon.identity
    assert daemon.run("hook", "install", "opencode").returncode == 0
    plugin = identity.home / ".config/opencode/plugins/sandboxd.js"
    identity.write(plugin.with_suffix(".mjs"), plugin.read_text())  # node takes no other file for a module
    calls = ["echo $SANDBOX_RUNTIME >here; cat here", "touch ~/outside", "nl here"]
    env = {**daemon.environment(), "CALLS": json.dumps(calls)}
    done = identity.run(["node", "--input-type=module", "-e", OPENCODE], env=env)
    assert done.returncode == 0, done
    inside, blocked, denied, read = json.loads(done.stdout)
    assert inside == [0, "1\n"] and (identity.workspace / "here").exists()
    assert blocked[0] == 1 and "<sandbox_violations>" in blocked[1] and not (identity.home / "outside").exists()
    assert denied[0] is None and "nl" in denied[1] and read == {"filePath": "x"}
    assert daemon.stop() == 0
    env["PATH"] = "/usr/bin:/bin"
    identity.write(plugin.with_suffix(".mjs"), plugin.read_text().replace(" hook run ", " no-such "))
    done = identity.run(["node", "--input-type=module", "-e", OPENCODE], env=env)
    assert all(status is None for status, _ in json.loads(done.stdout)[:3]), "without an answer nothing runs"


def test_the_hook_starts_the_daemon(daemon: DaemonProcess) -> None:
    assert daemon.stop() == 0
    [[decision, reason, ran, _]] = played(daemon, ("echo $SANDBOX_RUNTIME", {}))
    try:
        assert decision == "allow" and ran[:2] == [0, "1\n"], reason
    finally:
        assert daemon.run("stop").returncode == 0
