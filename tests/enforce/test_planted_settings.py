"""Settings that a command has written do not widen what the next one may do."""

from __future__ import annotations

import json

import pytest

from support.daemons import DaemonProcess


@pytest.mark.parametrize("explicit", [False, True])
def test_a_planted_project_below_the_workspace_widens_nothing(daemon: DaemonProcess, explicit: bool) -> None:
    outside = daemon.identity.home / "outside"
    outside.mkdir()
    daemon.identity.own(outside)
    settings = json.dumps({"sandbox": {"filesystem": {"allowWrite": [str(outside)]}}})
    planted = daemon.run(
        "run", "-c", f"mkdir -p sub/.claude && cat > sub/.claude/settings.local.json <<'E'\n{settings}\nE"
    )
    assert planted.returncode == 0, planted.stderr
    directory = daemon.identity.workspace / "sub"
    if explicit:
        code = f"""
from sandboxd_client import Client
with Client(autostart=False) as box, box.session(cwd={str(directory)!r}) as session:
    session.run("touch {outside}/planted")
"""
        daemon.python(code)
    else:
        daemon.run("run", "--cwd", str(directory), "--", "touch", str(outside / "planted"))
    assert list(outside.iterdir()) == []
