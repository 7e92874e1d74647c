"""The examples for build tools: what make starts, and one session for each project."""

from __future__ import annotations

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


def test_a_project_has_one_session_by_its_variable(shared_daemon: DaemonProcess) -> None:
    identity, env = shared_daemon.identity, shared_daemon.environment()
    lines = "sandboxd run -c 'echo kept >/tmp/shared'; sandboxd run cat /tmp/shared"
    done = identity.run(["sh", "-c", f". {EXAMPLES}/envrc; {lines}"], env=env)
    assert done.stdout == "kept\n", done
    assert identity.run(["sh", "-c", "sandboxd run cat /tmp/shared"], env=env).returncode == 1
