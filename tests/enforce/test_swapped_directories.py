"""A directory that another sandbox swaps for a link while one is being made opens nothing outside."""

from __future__ import annotations

import pytest

from support.daemons import DaemonProcess

# Between the wrap and the start, as a command that runs beside would do it. `a` holds a repository, so it is a mount.
SWAP = """
import os, subprocess, sys
from sandboxd_client import Client
swap = sys.argv[1] == "swap"
with Client(autostart=False) as box:
    launch = box.wrap(argv=["sh", "-c", "touch inside; touch ../outside/escaped"], cwd=".")
    if swap:
        os.rename("a", "b")
        os.symlink("../outside", "a")
    done = subprocess.run(launch.argv, cwd=launch.cwd, stderr=subprocess.PIPE, text=True)
    print(done.returncode, box.wrap_outcome(wrap_id=launch.wrap_id).started)
"""


@pytest.mark.parametrize("how", ["swap", "leave"])
def test_a_swapped_directory_does_not_open_what_the_link_names(daemon: DaemonProcess, how: str) -> None:
    identity = daemon.identity
    outside = identity.workspace.parent / "outside"
    for place in (outside, identity.workspace / "a"):
        place.mkdir()
        identity.own(place)
        identity.run(["git", "init", "-q", str(place)])
    done = daemon.python(SWAP, how, cwd=identity.workspace)
    assert not (outside / "escaped").exists()
    assert (identity.workspace / "inside").exists(), done.stdout + done.stderr
    assert done.stdout.split()[1] == "True", "what only a search has found may be gone"
