"""`sandboxd mcp` with the client of the protocol's own package, a real daemon and real sandboxes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin

CLIENT = """
import asyncio, json, os, sys
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult
ARGS = ["mcp", "--output-limit", "1000"]
mode, asked, progress, found = sys.argv[1], [], [], {}
calls, answers = json.loads(sys.argv[2]), iter(json.loads(sys.argv[3]))
async def elicit(ctx, params):
    asked.append(params.message)
    return ElicitResult(**next(answers))
async def tell(at, limit, text):
    progress.append(at)
async def main():
    argv = json.loads(sys.argv[4])
    server = StdioServerParameters(command=argv[0], args=argv[1:] + ARGS, env=dict(os.environ))
    form = {"elicitation_callback": elicit} if sys.argv[3] != "[]" else {}
    async with Client(server, mode=mode, **form) as client:
        found["tools"] = [one.name for one in (await client.list_tools()).tools]
        for name, arguments in calls:
            if name == "cancel":
                call = asyncio.create_task(client.call_tool("run", arguments))
                while not os.path.exists("begun"):
                    await asyncio.sleep(0.05)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                print(json.dumps(None))
            elif name == "resource":
                print(json.dumps((await client.read_resource(arguments)).contents[0].text))
            else:
                done = await client.call_tool(name, arguments, progress_callback=tell)
                text = " ".join(one.text for one in done.content)
                print(json.dumps([done.is_error, done.structured_content if not done.is_error else text]))
    print(json.dumps([found["tools"], asked, len(progress)]))
asyncio.run(main())
"""
TOOLS = ["run", "start", "read", "stop", "explain", "request_permission"]
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
YES: dict[str, Any] = {"action": "accept", "content": {"allow": True, "scope": "session"}}


def play(daemon: DaemonProcess, mode: str, *calls: tuple[str, Any], answers: tuple[Any, ...] = ()) -> list[Any]:
    argv = json.dumps([str(word) for word in daemon.identity.command()])
    done = daemon.python(CLIENT, mode, json.dumps(calls), json.dumps(answers), argv)
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


@MODES
def test_tools_run_in_one_session(start_daemon: StartDaemon, mode: str) -> None:
    daemon = start_daemon()
    outside = daemon.identity.home / "outside"
    here, kept = str(daemon.identity.workspace), f"/tmp/sdt-{secrets.token_hex(8)}"
    first, second, late, started, read, stopped, gone, why, words, refused, end = play(
        daemon,
        mode,
        ("run", {"command": f"echo kept >{kept}; pwd; touch {outside}; exit 3"}),
        ("run", {"command": f"cat {kept}; seq 5000 >&2"}),
        ("run", {"command": "sleep 600 & sleep 600", "timeout_s": 1}),
        ("start", {"command": "echo up; cat; touch ended; exec sleep 600"}),
        ("read", {"command_id": "4", "wait_s": 30}),
        ("stop", {"command_id": "4"}),
        ("read", {"command_id": "99"}),
        ("explain", {"kind": "path", "target": str(outside), "write": True}),
        ("resource", "sandboxd://restrictions"),
        ("resource", "sandboxd://violations"),
    )
    assert first[1]["status"] == 3 and first[1]["stdout"] == f"{here}\n" and not outside.exists()
    assert [one["target"] for one in first[1]["violations"]] == [str(outside)]
    assert second[1]["stdout"] == "kept\n" and not Path(kept).exists()
    assert "bytes are left out here" in second[1]["stderr"]
    assert second[1]["stderr"].startswith("1\n2\n") and second[1]["stderr"].endswith("4999\n5000\n")
    assert late[1]["timed_out"] and late[1]["status"] is None
    assert started[1]["result"] == "4" and read[1]["stdout"] == "up\n" and read[1]["status"] is None
    assert stopped[1]["status"] is not None and gone[0] and "no command '99'" in gone[1]
    assert why[1]["result"].startswith("deny: ") and here in words and str(outside) in refused
    assert end[0] == TOOLS and end[1] == []
    assert daemon.run("ps", "--json").stdout.count('"wrap_id"') == 0, "nothing of the session runs on"


@MODES
def test_a_question_reaches_the_user_of_the_client(start_daemon: StartDaemon, origin: Origin, mode: str) -> None:
    daemon = start_daemon(resolve={"ok.test": "127.0.0.1", "no.test": "127.0.0.1"})
    line = "curl -s -o /dev/null -w '%{http_code}' http://HOST:PORT/".replace("PORT", str(origin.port))
    calls = [("run", {"command": line.replace("HOST", host)}) for host in ("ok.test", "ok.test", "no.test")]
    no = {"action": "decline"}
    first, second, third, end = play(daemon, mode, *calls, answers=(YES, no))
    assert [first[1]["stdout"], second[1]["stdout"], third[1]["stdout"]] == ["200", "200", "403"]
    assert len(end[1]) == 2 and "ok.test" in end[1][0] and "no.test" in end[1][1]
    assert len(origin.connections) == 2
    [unseen, _] = play(daemon, mode, calls[2])
    assert unseen[1]["stdout"] == "403", "without a client that shows forms it is refused at once"


def test_a_cancelled_call_ends_all_processes(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    line = "sleep 600 & echo $! >pids; touch begun; sleep 600"
    play(daemon, "auto", ("cancel", {"command": line}))
    listed = json.loads(daemon.run("ps", "--json").stdout)
    assert listed["commands"] == []


def test_another_server_runs_inside(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    outside = daemon.identity.home / "outside"
    server = f'read line; echo "got $line"; touch {outside} || echo refused; touch inside'
    done = daemon.run("mcp", "--wrap", "--", "sh", "-c", server, input='{"id": 1}\n')
    assert done.returncode == 0 and done.stdout == 'got {"id": 1}\nrefused\n', done
    assert not outside.exists() and (daemon.identity.workspace / "inside").exists()
    daemon.identity.write(outside, "")
    wide = daemon.run("mcp", "--wrap", "--allow-write", str(outside), "sh", "-c", f"echo x >{outside}")
    assert wide.returncode == 0 and outside.read_text() == "x\n"
