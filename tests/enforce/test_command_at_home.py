"""A command in the home directory creates no absent settings of the user, and hinders no other program."""

from __future__ import annotations

import subprocess

import pytest

from support.daemons import StartDaemon
from support.waiting import wait_until


@pytest.mark.parametrize("way", ["absent-names", "absent-names-placeholders"])
def test_others_run_beside_it(way: str, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(env={"SANDBOXD_TEST_PLACEHOLDERS": "1"} if way.endswith("placeholders") else {})
    identity = daemon.identity
    (identity.home / ".claude").mkdir(exist_ok=True)
    identity.own(identity.home / ".claude")
    settings = identity.home / ".claude" / "settings.local.json"
    line = "! echo {} > .claude/settings.local.json; echo $? > t; mv t here; exec sleep 987"
    first = daemon.popen("run", "-c", line, cwd=identity.home, stderr=subprocess.DEVNULL)
    wait_until(lambda: (identity.home / "here").exists(), "the command at home runs")
    assert settings.is_dir() if way.endswith("placeholders") else not settings.exists()
    done = daemon.run("run", "-c", "cat ~/here; echo fine", cwd=identity.workspace)
    first.kill()
    first.wait()
    assert done.stdout == "0\nfine\n", done
    assert f"{way}," in daemon.run("status").stdout
    wait_until(lambda: not settings.exists(), "the name is absent afterwards")
