"""A client that has waited for the end of a command finds what it has planted made harmless, however the command
was run: nothing that acts upon the end, as a `git commit` behind `&&`, is earlier."""

from __future__ import annotations

import json

import pytest

from support.daemons import DaemonProcess

WAYS = r"""
import asyncio, json, os, subprocess, sys
from sandboxd_client import AsyncClient, Client
way, command, *looked_at = sys.argv[1:]

def run():
    if way == "run":
        with Client(autostart=False) as box:
            return box.run(command).returncode
    if way == "spawn":
        with Client(autostart=False) as box:
            return box.spawn(command, start_new_session=True).wait()
    if way == "argv":
        with Client(autostart=False) as box:
            launch = box.wrap(command)
            return subprocess.call(launch.argv, cwd=launch.cwd, env={**os.environ, **launch.env.set})
    if way == "async":
        async def main():
            async with AsyncClient(autostart=False) as box:
                return (await box.run(command)).returncode
        return asyncio.run(main())
    return subprocess.call([os.environ["SBX"], "run", "-c", command])

status = run()
print(json.dumps([status, sum((os.listdir(path) for path in looked_at), [])]))
"""
PLANT = "git init -q new; printf '#!/bin/sh\n' > new/.git/hooks/pre-commit; chmod +x new/.git/hooks/pre-commit; exit {}"


@pytest.mark.parametrize("way", ["command line", "run", "spawn", "argv", "async"])
@pytest.mark.parametrize("status", [0, 3])
def test_what_was_planted_is_harmless_at_the_end(shared_daemon: DaemonProcess, way: str, status: int) -> None:
    identity = shared_daemon.identity
    code = f"import os; os.environ['SBX'] = {str(identity.base / 'bin' / 'sandboxd')!r}\n{WAYS}"
    done = shared_daemon.python(code, way, PLANT.format(status), "new/.git/hooks")
    assert done.returncode == 0, done.stderr
    ended, found = json.loads(done.stdout)
    assert ended == status
    assert "pre-commit" not in found and "pre-commit.sample" in found
    assert [name for name in found if name.startswith("pre-commit.refused-")]
