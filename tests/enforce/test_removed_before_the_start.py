"""A denied path that is removed between `wrap` and the start: bubblewrap would make it anew on the host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.users import Identity
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("placeholders")

# Wraps argv[2] in argv[1] with the settings of argv[3], removes the paths of argv[4:], spawns, tells what became of it.
REMOVING = """
import json, os, shutil, subprocess, sys
from sandboxd_client import Client
workspace, settings, line = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
with Client() as box:
    session = box.session_open(cwd=workspace, settings=settings)
    launch = box.wrap(command=line, cwd=workspace, session_id=session.session_id)
    for path in sys.argv[4:]:
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    environment = {**os.environ, **launch.env.set}
    done = subprocess.run(launch.argv, env=environment, cwd=launch.cwd, capture_output=True, text=True)
    outcome = box.wrap_outcome(launch.wrap_id)
    again = box.run(line, cwd=workspace, session_id=session.session_id, capture_output=True, text=True)
print(json.dumps([outcome.started, outcome.outdated, done.stderr, again.returncode]))
"""

RULES = {
    "a directory": ({"denyRead": ["{work}/x"]}, ["x/file"], ["x"]),
    "a file": ({"denyRead": ["{work}/f"]}, ["f"], ["f"]),
    "matches of a pattern": ({"denyRead": ["{work}/**/secret"]}, ["a/secret/s", "b/secret"], ["a/secret", "b/secret"]),
    "an open place in a denied one": (
        {"denyRead": ["{work}/x", "{work}/y"], "allowRead": ["{work}/x/in"]}, ["x/in/s", "y/s"], ["x", "y"],
    ),
    "in a place that a rule opens": (
        {"allowWrite": ["{home}/o"], "denyRead": ["{home}/o/p"]}, ["{home}/o/p/s"], ["{home}/o/p"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_nothing_denied_comes_back_empty(identity: Identity, rule: str) -> None:
    files, made, removed = RULES[rule]
    places = {"work": str(identity.workspace), "home": str(identity.home)}
    for name in made:
        identity.write(identity.workspace / name.format(**places), "secret")
    given = {key: [value.format(**places) for value in values] for key, values in files.items()}
    settings = json.dumps({"sandbox": {"filesystem": given}})
    gone = [str(identity.workspace / name.format(**places)) for name in removed]
    script = identity.python("-c", REMOVING, places["work"], settings, "true")
    done = identity.run([*script, *gone], check=True)
    started, outdated, said, again = json.loads(done.stdout)
    may_be_gone = rule == "matches of a pattern"  # a pattern covers what is there at the start
    assert (started, outdated, again) == (may_be_gone, not may_be_gone, 0), done
    # the second command keeps absent names absent by placeholders, which linger
    wait_until(lambda: not any(os.path.lexists(path) for path in gone), said)
    kept = [str(identity.workspace / name.format(**places)) for name in made]
    for path in kept:  # the twin: what is there stays, and the command runs
        identity.write(Path(path), "secret")
    started, outdated, said, _ = json.loads(identity.run(script, check=True).stdout)
    assert (started, outdated) == (True, False), said
    assert all(Path(path).read_text() == "secret" for path in kept)
