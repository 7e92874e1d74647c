"""Symlinks at protected names stay what they are: they are pinned before the command starts."""

from __future__ import annotations

import os

from support.daemons import DaemonProcess

REPLACE = (
    "rm .vscode; mv .vscode other; ln -sfn /tmp .vscode; own=$(mktemp -d); mv -T $own .vscode; "
    "touch .vscode/tasks.json; "
)


def test_a_link_at_a_protected_name_cannot_be_replaced(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    (workspace / "editor").mkdir()
    (workspace / ".vscode").symlink_to("editor")
    daemon.identity.own(workspace / "editor")
    done = daemon.run("run", "-c", REPLACE + "touch allowed")
    assert os.readlink(workspace / ".vscode") == "editor"
    assert list((workspace / "editor").iterdir()) == []
    assert (workspace / "allowed").exists(), done.stderr


def test_an_ordinary_link_can(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    (workspace / "editor").mkdir()
    (workspace / "link").symlink_to("editor")
    daemon.identity.own(workspace / "editor")
    assert daemon.run("run", "-c", "ln -sfn /tmp link && rm link && ln -s editor link && touch link/f").returncode == 0
    assert (workspace / "editor" / "f").exists()


def test_a_sandbox_whose_link_cannot_be_pinned_does_not_start(daemon: DaemonProcess) -> None:
    """The link goes away between the plan and the start: what was promised cannot be kept, so nothing runs."""
    workspace = daemon.identity.workspace
    (workspace / "editor").mkdir()
    (workspace / ".vscode").symlink_to("editor")
    daemon.identity.own(workspace / "editor")
    code = """
import os, subprocess
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(argv=["touch", "ran"], cwd=".")
    os.unlink(".vscode")
    done = subprocess.run(launch.argv, cwd=launch.cwd, stderr=subprocess.PIPE, text=True)
    print(done.returncode, box.wrap_outcome(wrap_id=launch.wrap_id).started)
"""
    done = daemon.python(code, cwd=workspace)
    assert done.stdout.split() == ["125", "False"], done.stderr
    assert not (workspace / "ran").exists()
