"""A command in the home directory creates no absent settings of the user, and hinders no other program."""

from __future__ import annotations

import subprocess

from support.daemons import DaemonProcess
from support.waiting import wait_until


def test_others_run_beside_it(daemon: DaemonProcess) -> None:
    identity = daemon.identity
    (identity.home / ".claude").mkdir(exist_ok=True)
    identity.own(identity.home / ".claude")
    first = daemon.popen("run", "-c", "touch here; exec sleep 987", cwd=identity.home, stderr=subprocess.DEVNULL)
    wait_until(lambda: (identity.home / "here").exists(), "the command at home runs")
    assert (identity.home / ".claude" / "settings.local.json").is_dir()
    done = daemon.run("run", "--", "echo", "fine", cwd=identity.workspace)
    first.kill()
    first.wait()
    assert done.stdout == "fine\n", done.stderr
