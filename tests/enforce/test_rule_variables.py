"""`$VAR` in a rule is the caller's, whatever the daemon was started with: with a real daemon and real sandboxes."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity


def run(daemon: DaemonProcess, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    identity = daemon.identity
    environment = daemon.environment(**variables)
    return identity.run(identity.command(*arguments), cwd=identity.workspace, env=environment)


def directory(path: Path, identity: Identity) -> Path:
    path.mkdir()
    identity.own(path)
    return path


def test_what_opens_is_read_in_the_callers_environment(start_daemon: StartDaemon, identity: Identity) -> None:
    mine, theirs = (directory(identity.home / name, identity) for name in ("mine", "theirs"))
    settings = {"sandbox": {"filesystem": {"allowWrite": ["$OUT_DIR/"]}}}
    daemon = start_daemon(settings=settings, env={"OUT_DIR": str(theirs)})
    assert run(daemon, "run", "--", "touch", f"{mine}/x", OUT_DIR=str(mine)).returncode == 0
    assert run(daemon, "run", "--", "touch", f"{theirs}/x", OUT_DIR=str(mine)).returncode != 0
    assert run(daemon, "run", "--", "touch", f"{theirs}/y").returncode == 0, "without one, the daemon's counts"
    assert (mine / "x").exists() and (theirs / "y").exists() and not (theirs / "x").exists()
    explained = run(daemon, "explain", "path", "--write", f"{mine}/z", OUT_DIR=str(mine)).stdout
    assert explained.startswith("allowed"), explained
    assert run(daemon, "explain", "path", "--write", f"{mine}/z").stdout.startswith("denied")


def test_an_entry_without_effect_is_told_by_run_once(start_daemon: StartDaemon, identity: Identity) -> None:
    out = directory(identity.home / "out", identity)
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": ["$OUT_DIR"]}}})
    assert run(daemon, "run", "--", "true", OUT_DIR=str(out)).stderr == ""
    first = run(daemon, "run", "--", "true").stderr
    assert "$OUT_DIR, which is not set" in first and "no effect" in first
    assert run(daemon, "run", "--", "true").stderr == ""
    done = run(daemon, "settings", "lint", OUT_DIR=str(out))
    assert done.returncode == 0, done.stdout
    assert "$OUT_DIR, which is not set" in run(daemon, "settings", "lint").stdout


def test_what_closes_is_closed_in_both(start_daemon: StartDaemon, identity: Identity) -> None:
    mine, theirs = (identity.write(identity.home / name / "k", "secret\n") for name in ("mine", "theirs"))
    rules: dict[str, Any] = {
        "permissions": {"deny": ["Read($KEYS/**)"]}, "sandbox": {"filesystem": {"denyRead": ["$OTHER"]}}
    }  # fmt: skip
    daemon = start_daemon(settings=rules, env={"KEYS": str(theirs.parent), "OTHER": str(theirs.parent)})
    for name in ("KEYS", "OTHER"):
        for secret in (mine, theirs):
            done = run(daemon, "run", "--", "cat", str(secret), **{name: str(mine.parent)})
            assert done.returncode != 0 and not done.stdout, (name, secret)
    assert run(daemon, "run", "--", "cat", str(mine)).stdout == "secret\n"


def test_the_agent_of_a_login_session_can_be_allowed(start_daemon: StartDaemon, identity: Identity) -> None:
    """As under a service manager, which knows nothing of it."""
    path = directory(identity.home / "agent", identity) / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": ["$SSH_AUTH_SOCK"]}}})
        code = "import os, socket; socket.socket(socket.AF_UNIX).connect(os.environ['SSH_AUTH_SOCK']); print('in')"
        done = run(daemon, "run", "--", "python3", "-c", code, SSH_AUTH_SOCK=str(path))
        assert done.stdout == "in\n", done
        blocked = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        assert run(daemon, "run", "--", "python3", "-c", blocked).returncode != 0


@pytest.mark.parametrize("forbidden", [True, False])
def test_no_value_opens_more_where_a_caller_may_not(
    start_daemon: StartDaemon, identity: Identity, forbidden: bool
) -> None:
    outside = directory(identity.home / "outside", identity)
    settings: dict[str, Any] = {"sandbox": {"filesystem": {"allowWrite": ["$OUT_DIR"]}}}
    if forbidden:
        settings["sandbox"]["allowOverrides"] = False
    else:
        identity.write(identity.workspace / ".claude" / "settings.json", json.dumps(settings))
        settings = {}
    daemon = start_daemon(settings=settings)
    assert run(daemon, "run", "--", "touch", f"{outside}/x", OUT_DIR=str(outside)).returncode != 0
    assert not list(outside.iterdir())
