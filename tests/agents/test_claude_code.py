"""Claude Code as its package has it, with a model of the tests: its hooks put each command into the sandbox.

`./dev agents` installs the package and runs this; it needs no account and reaches nothing but this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.daemons import DaemonProcess, StartDaemon

PROGRAM = next(Path(os.environ["SANDBOXD_AGENTS"]).glob("node_modules/@anthropic-ai/claude-code-*/claude"))
USAGE = {"input_tokens": 1, "output_tokens": 1}


class Model:
    """A server of the Messages API: it calls the tool Bash with each of `commands`, then ends the turn."""

    def __init__(self, commands: list[dict[str, Any]]) -> None:
        self._waiting = list(commands)
        self.results: list[str] = []
        """The result that the agent sent for each call, with the text of its hooks."""

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        last = body["messages"][-1]["content"]
        if isinstance(last, list) and any(part["type"] == "tool_result" for part in last):
            self.results.append(json.dumps(last))
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta: dict[str, Any] = {"type": "text_delta", "text": "done"}
        reason = "end_turn"
        if self._waiting and any(tool["name"] == "Bash" for tool in body.get("tools", ())):
            block = {"type": "tool_use", "id": f"toolu_{len(self._waiting)}", "name": "Bash", "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(self._waiting.pop(0))}
            reason = "tool_use"
        head = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        message = {**head, "stop_reason": None, "stop_sequence": None, "usage": USAGE}
        end = {"stop_reason": reason, "stop_sequence": None}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": USAGE},
            {"type": "message_stop"},
        ]
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")


async def _empty(request: web.Request) -> web.Response:
    return web.json_response({})


@contextlib.contextmanager
def served(model: Model) -> Iterator[str]:
    """Serves on a free port of the loopback, in a thread."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()
    address: list[str] = []

    async def run() -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/messages", model.messages)
        app.router.add_route("*", "/{rest:.*}", _empty)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(30)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


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
