"""What one command leaves is moved by another one, to a place that the first could not write, while it still runs: a
git on the host obeys nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemons import DaemonProcess
from support.waiting import wait_until

MADE = {
    "a repository": "git init -q r; cp ~/evil r/.git/hooks/post-index-change; git config -f r/.git/config "
    "core.fsmonitor ~/evil",
    "a pointer": "git init -q t; git config -f t/.git/config core.fsmonitor ~/evil; mkdir r; mv t/.git r/d;"
    "echo gitdir: ./d > r/.git",
}
USE = "git -C q/r status; git -C q/r add -A"


@pytest.mark.parametrize("moved", ["q", "q/r"])
@pytest.mark.parametrize("way", MADE)
def test_what_is_moved_between_commands_runs_nothing(daemon: DaemonProcess, way: str, moved: str) -> None:
    identity = daemon.identity
    identity.write(identity.home / "evil", "#!/bin/sh\necho ran >> ~/pwned\nexit 1\n", mode=0o755)
    work, pwned = identity.workspace / "w", identity.home / "pwned"
    for place in (work, identity.workspace / "else"):
        place.mkdir()
        identity.own(place)
    # too deep to be found, and protected, when the second command starts
    plant = f"mkdir -p node_modules/q; cd node_modules/q; {MADE[way]}"
    move = f"mkdir -p else/$(dirname {moved}); mv w/node_modules/{moved} else/{moved}"
    assert daemon.run("run", "--", "true").returncode == 0
    first = daemon.popen("run", "-c", f"({plant}); : > made; while [ ! -e stop ]; do sleep 0.1; done", cwd=work)
    wait_until(lambda: (work / "made").exists(), "the first command has made it")
    try:
        done = daemon.run("run", "-c", move)
    finally:
        identity.write(work / "stop", "")
        assert first.wait(60) == 0
    assert done.returncode == 0, done.stderr
    assert not obeyed(daemon, pwned)
    # the twin: outside of a sandbox it is a trap
    identity.run(["/bin/sh", "-c", f"rm -rf else w/node_modules; mkdir else; (cd w; {plant}); {move}"])
    assert obeyed(daemon, pwned)


def obeyed(daemon: DaemonProcess, pwned: Path) -> bool:
    pwned.unlink(missing_ok=True)
    daemon.identity.run(["/bin/sh", "-c", f"cd else; {USE}"])
    return pwned.exists()
