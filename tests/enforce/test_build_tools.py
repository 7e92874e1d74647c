"""The examples for build tools and editors: what they start, and one session for each project."""

from __future__ import annotations

import json
import re
import secrets
import shlex

from support.daemons import DaemonProcess
from support.users import CHECKOUT

EXAMPLES = CHECKOUT / "examples" / "make"


def test_recipes_of_make_run_inside(shared_daemon: DaemonProcess) -> None:
    identity, env = shared_daemon.identity, shared_daemon.environment()
    identity.write(identity.workspace / "Makefile", (EXAMPLES / "Makefile").read_text())
    done = identity.run(["make", "build"], env=env)
    assert done.returncode == 0 and (identity.workspace / "built.txt").read_text() == "built\n", done
    refused = identity.run(["make", "outside"], env=env)
    assert refused.returncode == 2 and not (identity.home / "outside.txt").exists(), refused


def test_tasks_of_editors_run_inside(shared_daemon: DaemonProcess) -> None:
    identity, built = shared_daemon.identity, shared_daemon.identity.workspace / "built.txt"
    editors = {file.stem: json.loads(file.read_text()) for file in (CHECKOUT / "examples" / "editors").iterdir()}
    for [task] in (editors["zed-tasks"], editors["vscode-tasks"]["tasks"]):
        built.unlink(missing_ok=True)
        done = identity.run([task["command"], *task["args"]], env=shared_daemon.environment())
        assert done.returncode == 0 and built.read_text() == "built\n", done
        assert task["args"][:2] == ["run", "-c"], "the line is of the sandbox, as the outside one of make"


def test_the_steps_of_a_workflow_are_understood(shared_daemon: DaemonProcess) -> None:
    """With another command in place of pip and pytest; the container itself is not tried."""
    text = (CHECKOUT / "examples" / "github-actions.yml").read_text()
    steps = [shlex.split(line) for line in re.findall(r"- run: (sandboxd .*)", text)]
    assert [step[1] for step in steps] == ["check", "run", "run"]
    for step in steps:
        mark = next((step.index(word) for word in ("--", "-c") if word in step), len(step))
        words = [*step[: mark + 1], "true"] if step[1] == "run" else step
        done = shared_daemon.identity.run(words, env=shared_daemon.environment())
        assert done.returncode == 0, done


def test_a_project_has_one_session_by_its_variable(shared_daemon: DaemonProcess) -> None:
    identity, env = shared_daemon.identity, shared_daemon.environment()
    kept = f"/tmp/sdt-{secrets.token_hex(8)}"
    lines = f"sandboxd run -c 'echo kept >{kept}'; sandboxd run cat {kept}"
    identity.write(identity.workspace / ".envrc", (EXAMPLES / "envrc").read_text())
    assert identity.run(["direnv", "allow", "."], env=env).returncode == 0
    done = identity.run(["direnv", "exec", ".", "sh", "-c", lines], env=env)
    assert done.stdout == "kept\n", done
    assert identity.run(["sh", "-c", f"sandboxd run cat {kept}"], env=env).returncode == 1
