"""The real packages of frameworks, each with its own loop and a model of the tests, as root and as a user.

`./dev integrations` installs them, in environments of their own, and runs this. The scripts also run the examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from integrations.checks import LONG
from support.daemons import DaemonProcess, StartDaemon
from support.model_server import Model, served
from support.users import CHECKOUT

ENVIRONMENTS = Path(os.environ["SANDBOXD_INTEGRATIONS"])
HERE = Path(__file__).parent
SCRIPTS = {
    "with_langchain": "frameworks",
    "with_deepagents": "frameworks",
    "with_openai_agents": "frameworks",
    "with_openai_sandbox": "frameworks",
    "with_pydantic_ai": "frameworks",
    "with_smolagents": "frameworks",
    "with_crewai": "crewai",
}


def ran(script: str, daemon: DaemonProcess, environment: str, *arguments: str, **variables: str) -> str:
    python = ENVIRONMENTS / environment / "bin" / "python"
    path = ":".join(map(str, (CHECKOUT / "client", CHECKOUT / "tests", CHECKOUT)))
    done = daemon.identity.run(
        [str(python), str(HERE / f"{script}.py"), *arguments],
        env=daemon.environment(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **variables),
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_framework_runs_its_commands_inside(script: str, daemon: DaemonProcess) -> None:
    ran(script, daemon, SCRIPTS[script], SECRET_API_KEY="of-the-agent")


def test_claude_code_of_the_sdk_runs_bash_inside(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"excludedCommands": ["id"]}, "permissions": {"deny": ["Bash(nl:*)"]}})
    outside = daemon.identity.home / "outside"
    commands: list[dict[str, Any]] = [
        {"command": "echo \"it's $SANDBOX_RUNTIME\" >/tmp/kept; touch here; cat <<'END'\n$HOME `x` é\nEND"},
        {"command": "cat /tmp/kept"},
        {"command": f"touch {outside}"},
        {"command": "nl here"},
        {"command": "until [ -e go-on ]; do sleep 0.05; done; echo $SANDBOX_RUNTIME >late", "timeout": 1000},
        {"command": "touch go-on; until [ -e late ]; do sleep 0.05; done"},
        {"command": f"touch {outside}", "dangerouslyDisableSandbox": True},
    ]
    model = Model([{"description": "d", **one} for one in commands])
    said = claude(daemon, model)
    first, second, blocked, denied, late, _, asked = model.results
    assert "background" in late, "after its time-out it goes on there"
    assert (daemon.identity.workspace / "late").read_text() == "1\n"
    assert "$HOME `x` \\u00e9" in first and (daemon.identity.workspace / "here").exists()
    assert "it's 1" in second, "the commands of one agent share /tmp"
    assert "<sandbox_violations>" in blocked and str(outside) in blocked
    assert "denied by Bash(nl:*)" in denied
    assert "touch" in said and "the user has not allowed it" in asked and not outside.exists(), said


def test_an_interrupt_of_claude_code_ends_the_tree(daemon: DaemonProcess) -> None:
    claude(daemon, Model([{"description": "d", "command": f"setsid {LONG} & wait"}]), INTERRUPTED=LONG)


def claude(daemon: DaemonProcess, model: Model, **variables: str) -> str:
    with served(model) as address:
        variables |= {"ANTHROPIC_API_KEY": "sk-ant-x", "ANTHROPIC_BASE_URL": address}
        variables |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        return ran("with_claude_agent", daemon, "frameworks", **variables)


def test_recipes_of_just_run_inside(daemon: DaemonProcess) -> None:
    text = (CHECKOUT / "examples" / "make" / "justfile").read_text() + "\noutside:\n    touch ~/outside.txt\n"
    daemon.identity.write(daemon.identity.workspace / "justfile", text)
    just = str(ENVIRONMENTS / "frameworks" / "bin" / "just")
    assert daemon.identity.run([just, "build"], env=daemon.environment()).returncode == 0
    assert (daemon.identity.workspace / "built.txt").read_text() == "built\n"
    assert daemon.identity.run([just, "outside"], env=daemon.environment()).returncode == 1
    assert not (daemon.identity.home / "outside.txt").exists()


def test_every_example_is_short_and_run() -> None:
    scripts = "".join(file.read_text() for file in HERE.glob("with_*.py"))
    for file in (CHECKOUT / "examples" / "frameworks").glob("*.py"):
        assert len(file.read_text().splitlines()) < 20, file.name
        assert f"from examples.frameworks.{file.stem} import answer" in scripts, file.name
