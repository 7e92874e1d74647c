"""A repository that a command made can be removed by the next one, and is no place to plant for it."""

from __future__ import annotations

import json

from support.daemons import DaemonProcess
from support.waiting import wait_until

MAKE = """set -e; mkdir build; git init -q build/dep; cd build/dep; mkdir .vscode; echo 1 >.vscode/tasks.json
git -c user.name=a -c user.email=a@a.test commit -q --allow-empty -m 1"""


def git(daemon: DaemonProcess, directory: str, *words: str) -> None:
    settings = ["-c", "user.name=a", "-c", "user.email=a@a.test", "-c", "safe.directory=*"]
    argv = ["git", *settings, "-C", str(daemon.identity.workspace / directory), *words]
    done = daemon.identity.run(argv)
    assert done.returncode == 0, done.stderr


def test_what_an_earlier_command_made_can_be_removed(daemon: DaemonProcess) -> None:
    for name in (".", "theirs"):
        daemon.identity.run(["git", "init", "-q", str(daemon.identity.workspace / name)])
    make = f"{MAKE}; cd ../..; git init -q trash; git init -q outer; git init -q moved; mv moved kept"
    assert daemon.run("run", "-c", make).returncode == 0
    daemon.identity.run(["git", "init", "-q", str(daemon.identity.workspace / "outer/mine")])
    done = daemon.run("run", "-c", "rm -rf build trash && git init -q trash && rm -rf trash")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in daemon.identity.workspace.iterdir()) == [".git", "kept", "outer", "theirs"]
    reported = json.loads(daemon.run("violations", "--json").stdout)["violations"]
    assert reported == []
    for name in ("theirs", "kept", "outer/mine"):
        assert daemon.run("run", "-c", f"rm -rf {name}").returncode == 1
        assert (daemon.identity.workspace / name / ".git/config").exists()


def test_it_is_searched_again_after_the_next_command(daemon: DaemonProcess) -> None:
    daemon.identity.run(["git", "init", "-q", str(daemon.identity.workspace)])
    hook = daemon.identity.workspace / "build/dep/.git/hooks/post-commit"
    assert daemon.run("run", "-c", MAKE).returncode == 0
    plant = f"echo 'touch {daemon.identity.home}/ran' >{hook}; chmod +x {hook}"
    done = daemon.run("run", "-c", f"mkdir -p {hook.parent}; {plant}; git -C build/dep config core.fsmonitor x")
    assert done.returncode == 0, done.stderr
    git(daemon, "build/dep", "commit", "-q", "--allow-empty", "-m", "2")
    assert not hook.exists() and not (daemon.identity.home / "ran").exists()
    assert "fsmonitor" not in (daemon.identity.workspace / "build/dep/.git/config").read_text()


def test_it_is_protected_once_a_person_works_in_it(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    daemon.identity.run(["git", "init", "-q", str(workspace)])
    assert daemon.run("run", "-c", MAKE).returncode == 0
    git(daemon, "build/dep", "commit", "-q", "--allow-empty", "-m", "2")
    for line in ("rm -rf build", "echo evil >build/dep/.git/config", "echo 2 >build/dep/.vscode/tasks.json"):
        assert daemon.run("run", "-c", line).returncode != 0, line
    assert (workspace / "build/dep/.vscode/tasks.json").read_text() == "1\n"
    assert "evil" not in (workspace / "build/dep/.git/config").read_text()


def test_what_a_command_clones_for_a_person_is_protected(daemon: DaemonProcess) -> None:
    """A person works in it while a server runs that was started afterwards."""
    assert daemon.run("run", "-c", MAKE).returncode == 0
    hook = daemon.identity.workspace / "build/dep/.git/hooks/post-commit"
    plant = f"echo 'touch {daemon.identity.home}/ran' >{hook}; chmod +x {hook}"
    serve = f"{plant}; touch up; until test -e go; do sleep 0.05; done"
    with daemon.popen("run", "-c", serve, cwd=daemon.identity.workspace) as server:
        wait_until((daemon.identity.workspace / "up").exists, "it runs")
        git(daemon, "build/dep", "commit", "-q", "--allow-empty", "-m", "2")
        daemon.identity.write(daemon.identity.workspace / "go", "")
        server.wait()
    assert not (daemon.identity.home / "ran").exists()
