"""The real packages of frameworks, each with its own loop and a model of the tests, as root and as a user.

`./dev integrations` installs them, in environments of their own, and runs this. The scripts also run the examples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.daemons import DaemonProcess
from support.users import CHECKOUT

ENVIRONMENTS = Path(os.environ["SANDBOXD_INTEGRATIONS"])
HERE = Path(__file__).parent
SCRIPTS = {
    "with_langchain": "frameworks",
    "with_deepagents": "frameworks",
    "with_openai_agents": "frameworks",
    "with_pydantic_ai": "frameworks",
    "with_smolagents": "frameworks",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_framework_runs_its_commands_inside(script: str, daemon: DaemonProcess) -> None:
    python = ENVIRONMENTS / SCRIPTS[script] / "bin" / "python"
    path = ":".join(map(str, (CHECKOUT / "client", CHECKOUT / "tests", CHECKOUT)))
    done = daemon.identity.run(
        [str(python), str(HERE / f"{script}.py")],
        env=daemon.environment(PYTHONPATH=path, SECRET_API_KEY="of-the-agent", PYTHONDONTWRITEBYTECODE="1"),
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_is_short_and_run() -> None:
    scripts = "".join(file.read_text() for file in HERE.glob("with_*.py"))
    for file in (CHECKOUT / "examples" / "frameworks").glob("*.py"):
        assert len(file.read_text().splitlines()) < 20, file.name
        assert f"from examples.frameworks.{file.stem} import answer" in scripts, file.name
