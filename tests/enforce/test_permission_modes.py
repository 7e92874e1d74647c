"""Permission modes and explicit denials in real sandboxes: what may run, and what it can write."""

from __future__ import annotations

import json

import pytest

from support.daemons import DaemonProcess

RULES = {"permissions": {"deny": ["Bash(rm:*)"]}, "sandbox": {"excludedCommands": ["docker"]}}
PLANNING = """
import json, os
from sandboxd_client import Client
OWN = "sdt-" + os.urandom(8).hex()
WAYS = f"new sub/new ../outside /var/tmp/{OWN} $TMPDIR/{OWN}-new /tmp/{OWN}"
HOME = os.path.expanduser("~")
os.makedirs("sub")
with Client(autostart=False) as box:
    print(json.dumps({mode: [
        box.run(
            f"for way in {WAYS}; do (: > $way) 2>/dev/null && echo yes || echo no; done",
            session_id=session.id, cwd=os.getcwd(), capture_output=True, text=True,
            overrides={"allow_write": [HOME]} if more else None,
        ).stdout.split()
        for session in [box.session(permission_mode=mode, settings=SETTINGS)] for more in (False, True)
    ] for mode in ("prompt", "plan")}))
"""


def test_the_mode_plan_writes_temporary_files_alone(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    allowed = daemon.run("allow", "path", str(workspace.parent / "outside"), "--yes")
    assert allowed.returncode == 0, allowed.stderr
    settings = f"SETTINGS = {{'sandbox': {{'filesystem': {{'allowWrite': [{str(daemon.identity.home)!r}]}}}}}}\n"
    done = daemon.python(settings + PLANNING)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    (workspace.parent / "outside").unlink(missing_ok=True)
    assert answers["plan"] == [["no", "no", "no", "no", "yes", "yes"]] * 2
    assert [answer[:2] + answer[4:] for answer in answers["prompt"]] == [["yes"] * 4] * 2


RUNS = """
import asyncio, json
from sandboxd_client import AsyncClient, Client, SandboxdError

def slug(call):
    try:
        done = call()
        return [done.returncode, getattr(done, "sandboxed", None)]
    except SandboxdError as error:
        return error.slug

async def outcome(call):
    try:
        return [(await call()).returncode]
    except SandboxdError as error:
        return error.slug

async def main(answers):
    async with AsyncClient(autostart=False) as box:
        answers["async denied"] = await outcome(lambda: box.run("rm del"))
        answers["async spawn"] = await outcome(lambda: box.spawn(["rm", "del"]))
        async with box.session(permission_mode="none") as session:
            answers["async none"] = await outcome(lambda: session.run("true"))

with Client(autostart=False) as box:
    answers = {
        "denied": slug(lambda: box.run("rm del")),
        "spawn": slug(lambda: box.spawn(["rm", "del"])),
        "wrap": slug(lambda: box.wrap("sh -c 'rm del'")),
        "allowed": slug(lambda: box.run("true", capture_output=True)),
    }
    with box.session(permission_mode="none") as session:
        answers["none"] = slug(lambda: session.run("true"))
        answers["none, decided"] = slug(lambda: session.run("true", decide=True))
    asyncio.run(main(answers))
print(json.dumps(answers))
"""


@pytest.mark.parametrize("command", ["rm del", "ls && 'rm' del", "sh -c '/bin/rm del'"])
def test_an_explicit_denial_binds_every_way_to_run(daemon: DaemonProcess, command: str) -> None:
    victim = daemon.identity.workspace / "del"
    daemon.identity.write(daemon.identity.home / ".claude" / "settings.json", json.dumps(RULES))
    daemon.identity.write(victim, "x")
    refused = daemon.run("run", "-c", command)
    assert refused.returncode == 125 and "Bash(rm:*)" in refused.stderr and victim.exists()
    assert daemon.run("run", "-c", "unlink del").returncode == 0 and not victim.exists()


def test_the_mode_none_and_a_denial_bind_both_clients(daemon: DaemonProcess) -> None:
    daemon.identity.write(daemon.identity.home / ".claude" / "settings.json", json.dumps(RULES))
    daemon.identity.write(daemon.identity.workspace / "del", "x")
    done = daemon.python(RUNS)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers.pop("allowed") == [0, True]
    assert {way: answers.pop(way) for way in ("none", "async none")} == {"none": "mode_none", "async none": "mode_none"}
    assert set(answers.values()) == {"command_denied"}
    assert (daemon.identity.workspace / "del").exists()
