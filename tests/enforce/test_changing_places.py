"""A command that makes and removes protected names all the time does not keep others from starting in its place."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity
from support.waiting import wait_until

# Twenty processes, each with a directory of its own, until `end` is there.
CHURN = """
import os, shutil
def repository(at):
    for name in ("objects", "refs", "hooks"): os.makedirs(at + "/.git/" + name)
    for name in ("HEAD", "config"): open(at + "/.git/" + name, "w").write("ref: refs/heads/m\\n" * (name == "HEAD"))
def name(at):
    for name in (".vscode", ".idea"): os.makedirs(at + "/" + name)
    open(at + "/.vscode/x", "w").close(); open(at + "/.mcp.json", "w").close(); open(at + "/.git", "w").close()
def link(at):
    os.mkdir(at); os.mkdir(at + "/d"); os.symlink("d", at + "/.vscode"); os.symlink("d", at + "/.git")
def swap(at):
    name(at); os.rename(at, at + "x"); os.symlink(at + "x", at)
def top(at):
    for name in (".vscode", ".zed"):
        try: os.rmdir(name)
        except OSError: pass
        try: os.mkdir(name)
        except OSError: pass
    os.makedirs(at + "/.claude/commands")
def secret(at):
    os.makedirs(at + "/d.key"); open(at + "/a.key", "w").close(); open(at + ".key", "w").close()
    os.unlink(at + ".key")
def gone(at):
    for one in (at, at + "x"):
        if os.path.islink(one): os.unlink(one)
        else: shutil.rmtree(one, ignore_errors=True)
for n in range(20):
    if not os.fork():
        while not os.path.exists("end"):
            try: (repository, name, link, swap, top, secret)[n % 6]("c%d" % n)
            except OSError: pass
            gone("c%d" % n)
        os._exit(0)
open("begun", "w").close()
for n in range(20): os.wait()
"""
STARTS = """
import json
from sandboxd_client import Client
failed = []
LINE = "! touch s/t/.vscode/x s/t/.git/hooks/x s/t/.mcp.json && ! cat s/t/a.key && ! ls s/t/d.key && touch s/t/y"
with Client(autostart=False) as box:
    for n in range(10):
        try: box.run(LINE, cwd=".", check=True)
        except Exception as error: failed.append(f"{type(error).__name__}: {error}")
print(json.dumps(failed))
"""
# Wraps, removes what the search has found, and starts a command that makes it anew.
MADE_ANEW = """
import os, shutil, subprocess
from sandboxd_client import Client
make = "mkdir -p s/t; git init -q s/t; cd s/t/.git; mkdir -p hooks; cp /usr/bin/true hooks/pre-commit"
with Client(autostart=False) as box:
    launch = box.wrap(command=make, cwd=".")
    shutil.rmtree("s/t")
    subprocess.run(launch.argv, cwd=launch.cwd, env={**os.environ, **launch.env.set}, check=True)
    print(box.wrap_outcome(launch.wrap_id).started)
"""


@pytest.fixture
def there(identity: Identity) -> Path:
    """A directory with protected names that stay."""
    place = identity.workspace / "s" / "t"
    identity.write(place / ".vscode" / "settings.json", "")
    identity.write(place / ".mcp.json", "")
    identity.write(place / "a.key", "secret")
    identity.write(place / "d.key" / "x", "secret")
    identity.run(["git", "init", "-q", str(place)], check=True)
    return place


@pytest.mark.parametrize("way", ["guard", "placeholders"])
def test_others_start_beside_names_that_come_and_go(start_daemon: StartDaemon, there: Path, way: str) -> None:
    daemon = start_daemon(
        settings={"sandbox": {"filesystem": {"denyRead": ["./**/*.key"]}}},
        env={"SANDBOXD_TEST_PLACEHOLDERS": "1"} if way == "placeholders" else {},
    )
    work = daemon.identity.workspace
    client = daemon.popen("run", "--", "python3", "-c", CHURN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((work / "begun").exists, "the names come and go")
    try:
        done = daemon.python(STARTS, cwd=work)
    finally:
        daemon.identity.write(work / "end", "")
        client.communicate()
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert (there / "y").exists() and not (there / ".vscode" / "x").exists()


def test_what_is_made_anew_is_made_harmless(daemon: DaemonProcess, there: Path) -> None:
    """Its mounts were left out, so the look afterwards counts the repository as one that the command has made."""
    done = daemon.python(MADE_ANEW, cwd=daemon.identity.workspace)
    assert done.stdout == "True\n", done.stderr
    hooks = there / ".git" / "hooks"
    wait_until(lambda: list(hooks.glob("pre-commit.refused-*")), "the hook is moved aside")
    assert not (hooks / "pre-commit").exists()
