"""What a command closes before it ends (chmod): no placeholder stays in it, what it has planted there is found, and
the next command runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.daemons import DaemonProcess
from support.users import Identity
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("placeholders")

PLANT = "printf '#!/bin/sh\\n' > r/.git/hooks/post-checkout; chmod 755 r/.git/hooks/post-checkout"


def open_again(identity: Identity, *paths: Path) -> None:
    for path in paths:
        assert identity.run(["chmod", "755", str(path)], cwd=identity.base).returncode == 0


def below(path: Path) -> set[str]:
    """Also while something in it comes and goes."""
    return {os.path.relpath(os.path.join(at, name), path) for at, dirs, files in os.walk(path) for name in dirs + files}


@pytest.mark.parametrize("closed", ["000", "555", "311"])
@pytest.mark.parametrize("which", [".", "r", "r/.git"])
def test_nothing_stays_in_a_directory_that_was_closed(daemon: DaemonProcess, which: str, closed: str) -> None:
    identity = daemon.identity
    workspace = identity.workspace
    identity.run(["git", "init", "-q", "r"])
    before = below(workspace)
    done = daemon.run("run", "--", "sh", "-c", f"test -d .vscode && echo ran; chmod {closed} {which}")
    assert done.stdout == "ran\n", done
    mode = (workspace / which).stat().st_mode & 0o777 if os.geteuid() == 0 else None
    assert mode in (None, int(closed, 8))

    def is_clean() -> bool:
        return below(workspace) == before

    if os.geteuid() != 0:  # else everything can be seen as it is
        open_again(identity, workspace, workspace / "r", workspace / "r" / ".git")
    wait_until(is_clean, "what kept names absent is gone")
    assert "Traceback" not in daemon.output()
    assert mode is None or (workspace / which).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("which", ["r", "r/.git", "r/.git/hooks"])
def test_planted_files_are_found_and_the_next_command_runs(daemon: DaemonProcess, which: str) -> None:
    identity = daemon.identity
    hooks = identity.workspace / "r" / ".git" / "hooks"
    done = daemon.run("run", "--", "sh", "-c", f"git init -q r; {PLANT}; chmod 000 {which}; echo ran")
    assert done.stdout == "ran\n", done
    done = daemon.run("run", "--", "sh", "-c", f"chmod 755 r r/.git r/.git/hooks; {PLANT}; echo ran")
    assert done.stdout == "ran\n", done
    open_again(identity, hooks.parent.parent, hooks.parent, hooks)
    assert not (hooks / "post-checkout").exists()
    assert list(hooks.glob("post-checkout.refused-*"))
    done = daemon.run("run", "--", "sh", "-c", "touch r/free && echo ran")
    assert done.stdout == "ran\n", done
