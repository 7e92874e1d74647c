"""A look through what a command has left that failed, or that its daemon was killed before, is made up for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sandboxd.host.git.config_targets import MOST_INCLUDED
from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity
from support.waiting import wait_until

REPOSITORY = "mkdir -p new/.git/objects new/.git/refs new/.git/hooks; echo 'ref: refs/heads/main' > new/.git/HEAD"
PLANT = f"{REPOSITORY}; cp /bin/true new/.git/hooks/post-commit"


def hook_of(identity: Identity) -> Path:
    return identity.workspace / "new" / ".git" / "hooks" / "post-commit"


def is_moved_aside(hook: Path) -> bool:
    return not hook.exists() and len(list(hook.parent.glob("post-commit.refused-*"))) == 1


def when(name: str) -> str:
    return f"until test -e {name}; do sleep 0.05; done"


def start(daemon: DaemonProcess, script: str) -> subprocess.Popen[bytes]:
    command = daemon.popen("run", "-c", f"touch begun; {script}", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (daemon.identity.workspace / "begun").exists(), "the command runs")
    return command


@pytest.mark.parametrize("planted", ["before", "after"])
def test_the_next_daemon_looks_at_what_ended_without_one(start_daemon: StartDaemon, planted: str) -> None:
    """`planted`: before or after its daemon was killed."""
    first = start_daemon()
    identity = first.identity
    script = f"{PLANT}; touch done; {when('end')}" if planted == "before" else f"{when('killed')}; {PLANT}"
    command = start(first, script)
    if planted == "before":
        wait_until(lambda: (identity.workspace / "done").exists(), "it has planted")
    first.process.kill()
    first.process.wait()
    identity.write(identity.workspace / "killed", "")
    identity.write(identity.workspace / "end", "")
    assert command.wait(60) == 125
    hook = hook_of(identity)
    # daemons of a user share their journals: the next one may be that of a test beside this one
    wait_until(lambda: hook.exists() or is_moved_aside(hook), "it was planted")
    start_daemon()
    wait_until(lambda: is_moved_aside(hook_of(identity)), "it was made harmless")


def test_the_next_daemon_waits_for_one_that_still_runs(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    identity = first.identity
    command = start(first, f"{when('end')}; {PLANT}")
    first.process.kill()
    first.process.wait()
    second = start_daemon()
    assert second.run("run", "--", "true").returncode == 0
    identity.write(identity.workspace / "end", "")
    command.wait(60)
    wait_until(lambda: is_moved_aside(hook_of(identity)), "it was made harmless")


def test_what_was_looked_through_is_not_looked_at_again(start_daemon: StartDaemon) -> None:
    """What a person makes while no daemon runs stays."""
    first = start_daemon()
    identity = first.identity
    assert first.run("run", "--", "true").returncode == 0
    first.process.kill()
    first.process.wait()
    assert identity.run(["sh", "-c", PLANT]).returncode == 0
    second = start_daemon()
    assert second.run("run", "--", "true").returncode == 0
    assert second.stop() == 0
    assert "an earlier command has left" not in second.output()


def test_the_recorded_outcome_says_so(start_daemon: StartDaemon) -> None:
    """The configuration of git decides what is harmless in a new repository, and it can no longer be read."""
    script = f"{when('end')}; {PLANT}"
    daemon = start_daemon(settings={"audit": {"enabled": True}})
    config = daemon.identity.home / ".gitconfig"
    many = "".join(f"[include]\n\tpath = /none/{number}\n" for number in range(MOST_INCLUDED + 1))
    code = (
        "import json, pathlib, sys, sandboxd_client as s\n"
        "with s.Client() as c:\n"
        f"    p = c.spawn(['sh', '-c', {script!r}])\n"
        "    pathlib.Path(sys.argv[1]).write_text(sys.argv[2])\n"
        "    pathlib.Path('end').touch()\n"
        "    p.wait()\n"
        "    o = c.wrap_outcome(p.launch.wrap.wrap_id)\n"
        "    print(json.dumps([p.returncode, o.status, o.reason]))\n"
    )
    done = daemon.python(code, str(config), many, cwd=daemon.identity.workspace)
    assert done.returncode == 0, done.stderr
    returned, status, reason = json.loads(done.stdout)
    assert (returned, status) == (125, 125) and "clean-up after the command did not finish" in reason, done
    shown = daemon.run("audit", "show", "--kind", "ended", "--json").stdout
    assert "clean-up after the command did not finish" in shown, shown
