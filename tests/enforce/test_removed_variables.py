"""Variables that the settings name do not reach a command, however its argv was come by."""

from __future__ import annotations

import pytest

from support.daemons import StartDaemon
from support.users import Identity

GIVEN = {"AWS_SECRET_ACCESS_KEY": "hush", "MY_TOKEN": "hush", "MY_TOKENS": "kept", "TOKEN": "kept", "AWS": "kept"}
CODE = """
import os, subprocess, sys
from sandboxd_client import Client
with Client() as box:
    launch = box.wrap(argv=["/usr/bin/env"])
print(subprocess.run(launch.argv, capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("bare", [False, True], ids=["run", "only the argv"])
def test_they_are_gone(start_daemon: StartDaemon, identity: Identity, bare: bool) -> None:
    daemon = start_daemon(settings={"sandbox": {"environment": {"remove": ["AWS_*", "M?_*KEN"]}}})
    if bare:
        done = identity.run(identity.python("-c", CODE), env=daemon.environment(**GIVEN), cwd=identity.workspace)
    else:
        done = daemon.run("run", "--", "env", env=GIVEN)
    assert done.returncode == 0, done.stderr
    assert "hush" not in done.stdout and done.stdout.count("=kept\n") == 3


def test_without_a_setting_they_are_there(start_daemon: StartDaemon) -> None:
    assert start_daemon().run("run", "--", "env", env=GIVEN).stdout.count("hush") == 2
