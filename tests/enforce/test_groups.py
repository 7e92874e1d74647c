"""Who calls with groups that the daemon is not in could read what the daemon does not see, so they run nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity

GROUP, NO_MEMBER = 4_200_001, 4_200_002
"""Groups without a name: a process is in them only when set so."""
WRAP = """
import json
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(argv=["cat", {path!r}])
    print(json.dumps(list(launch.argv)), flush=True)
    input()
"""

if os.geteuid() == 0:  # other users cannot choose groups

    def call(
        daemon: DaemonProcess, argv: Sequence[str], *, groups: Sequence[int] = (), group: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        identity = daemon.identity
        return subprocess.run(
            argv, cwd=identity.workspace, env=daemon.environment(), user=identity.uid, extra_groups=list(groups),
            group=identity.gid if group is None else group, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @pytest.fixture
    def secret(identity: Identity) -> Path:
        """Denied, and in a directory that only the group can search."""
        path = identity.write(identity.base / "of a group" / "secret", "hush")
        for one, mode in ((path.parent, 0o750), (path, 0o640)):
            os.chown(one, 0, GROUP)
            one.chmod(mode)
        return path

    @pytest.fixture
    def daemon(start_daemon: StartDaemon, secret: Path) -> DaemonProcess:
        return start_daemon(settings={"sandbox": {"filesystem": {"denyRead": [str(secret)]}}})

    def test_a_caller_with_more_groups_runs_nothing(daemon: DaemonProcess, secret: Path) -> None:
        run = daemon.identity.command("run", "--", "sh", "-c", f"cat '{secret}'; echo ran")
        assert call(daemon, run).stdout == "ran\n"
        more = call(daemon, run, groups=[GROUP])
        if daemon.identity.uid == 0:  # root sees everything, whatever its groups
            assert more.stdout == "ran\n"
            return
        assert (more.returncode, more.stdout) == (125, "")
        assert str(GROUP) in more.stderr and "sandboxd stop" in more.stderr
        many = call(daemon, run, groups=[*range(NO_MEMBER, NO_MEMBER + 300), GROUP])
        assert (many.returncode, many.stdout) == (125, "") and str(GROUP) in many.stderr
        main = call(daemon, run, group=GROUP)
        assert (main.returncode, main.stdout) == (125, "") and "main group" in main.stderr
        assert call(daemon, daemon.identity.command("status"), groups=[GROUP]).returncode == 0
        assert call(daemon, daemon.identity.command("stop"), groups=[GROUP]).returncode == 0
        assert daemon.process.wait(30) == 0

    def test_nor_does_one_that_another_has_asked_for(daemon: DaemonProcess, secret: Path) -> None:
        """The helper is looked at as well: the words of a command can be run by another process than its receiver."""
        identity = daemon.identity
        code = WRAP.format(path=str(secret))
        for groups in ((), (GROUP,)):
            asking = identity.popen(
                identity.python("-c", code), env=daemon.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            with asking:
                assert asking.stdout is not None
                done = call(daemon, json.loads(asking.stdout.readline()), groups=groups)
            assert "hush" not in done.stdout
            assert done.returncode == (125 if groups and identity.uid else 1), done

    def test_a_daemon_with_the_same_groups_serves_them(identity: Identity, secret: Path) -> None:
        """Also one that was started for the call."""
        identity.write(identity.home / ".claude" / "settings.json", json.dumps(
            {"sandbox": {"filesystem": {"denyRead": [str(secret)]}}}))  # fmt: skip
        environment = identity.environment(SANDBOXD_SOCKET=str(identity.runtime / "sandboxd" / "sandboxd.sock"))

        def by_itself(*argv: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                identity.command(*argv), cwd=identity.workspace, env=environment, user=identity.uid,
                group=identity.gid, extra_groups=[GROUP, NO_MEMBER], capture_output=True, text=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

        try:
            done = by_itself("run", "--", "sh", "-c", f"cat '{secret}'; echo ran")
            assert done.stdout == "ran\n" and "Permission denied" in done.stderr, done
        finally:
            by_itself("stop")
