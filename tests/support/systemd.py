"""A real systemd, booted as process 1 of namespaces of its own, on a machine that was started by anything.

It needs root. What it could change on the host is out of its reach: /run, /tmp, /var/lib/systemd and /var/log are
fresh tmpfs, its control groups lie below one that is made for it, and it knows only the few units that a user's manager
needs (`UNITS`); so nothing that a machine does when it starts (cleaning directories, setting kernel parameters, swap,
clocks) is done here. `SystemdMachine.manager(identity)` starts the manager of a user as a login does, and drives it
from outside with nsenter(1).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.processes import read_process
from support.users import Identity
from support.waiting import wait_until

SYSTEMD = "/lib/systemd/systemd"
UNITS = (
    "basic.target", "sysinit.target", "sockets.target", "shutdown.target", "umount.target", "final.target",
    "dbus.socket", "dbus.service", "systemd-logind.service", "systemd-journald.service", "systemd-journald.socket",
    "systemd-journald-dev-log.socket", "user.slice", "user@.service", "user-runtime-dir@.service",
)  # fmt: skip
_UNIT_DIRECTORIES = ("/lib/systemd/system", "/usr/lib/systemd/system")
_TARGET = "sandboxd-test.target"

# Arguments: a directory for the control groups, the name of the new one, a passwd file, what to start. The first mount
# namespace is only for the control groups; the group is entered before unshare -C: there it is the root of them all.
_BOOT = """\
set -e
mount -t cgroup2 cgroup2 "$1"
mkdir "$1/$2"
echo $$ >"$1/$2/cgroup.procs"
passwd=$3
shift 3
exec unshare --fork --pid --mount --uts --ipc --cgroup --mount-proc --kill-child sh -c '
set -e
passwd=$1 units=$2
shift 2
mount -t tmpfs -o mode=755 run /run
for directory in /var/lib/systemd /var/log; do mount -t tmpfs -o mode=755 none "$directory"; done
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs none /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind /dev/null /dev/console 2>/dev/null || :
mount --bind "$passwd" /etc/passwd
mkdir /run/units
cp -P "$units"/* /run/units/
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=docker SYSTEMD_UNIT_PATH=/run/units "$@"
' boot "$passwd" "$@"
"""

# Arguments as above. What is still in the group is ended with it.
_REMOVE_GROUP = """\
mount -t cgroup2 cgroup2 "$1" && cd "$1/$2" || exit 0
echo 1 >cgroup.kill 2>/dev/null
tries=0
while find . -depth -mindepth 1 -type d -exec rmdir {} + 2>/dev/null; cd ..; ! rmdir "$2" 2>/dev/null; do
  tries=$((tries + 1)); [ "$tries" -lt 600 ] || exit 1
  cd "$2"; sleep 0.05
done
"""


@dataclass(frozen=True, slots=True)
class SystemdMachine:
    """`pid` is its process 1, seen from the host."""

    pid: int
    log: Path

    def enter(self, *argv: str) -> list[str]:
        """`argv` inside, as root."""
        return ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--", *argv]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.enter(*argv), capture_output=True, text=True, cwd="/", timeout=60)

    def manager(self, identity: Identity) -> UserManager:
        """The manager of this user, started, and there as long as the machine."""
        done = self.run("loginctl", "enable-linger", identity.name)
        assert done.returncode == 0, done
        manager = UserManager(self, identity)
        private = Path(f"/proc/{self.pid}/root{manager.runtime}/systemd/private")
        wait_until(private.exists, f"the manager of {identity.name} runs")
        wait_until(lambda: manager.run("systemctl", "--user", "is-system-running").stdout.strip() == "running")
        return manager


@dataclass(frozen=True, slots=True)
class UserManager:
    machine: SystemdMachine
    identity: Identity

    @property
    def runtime(self) -> str:
        return f"/run/user/{self.identity.uid}"

    def environment(self, **changes: str) -> dict[str, str]:
        return self.identity.environment(**{"XDG_RUNTIME_DIR": self.runtime, **changes})

    def enter(self, *argv: str) -> list[str]:
        user = ["setpriv", f"--reuid={self.identity.uid}", f"--regid={self.identity.gid}", "--init-groups"]
        return self.machine.enter(*user, "--", *argv)

    def run(self, *argv: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """`argv` inside as the user, with what a login gives."""
        return subprocess.run(
            self.enter(*argv),
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=60,
        )

    @contextlib.contextmanager
    def running(self, *argv: str, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
        """The same, left running; ended with the context."""
        process = subprocess.Popen(
            self.enter(*argv),
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def systemctl(self, *words: str) -> str:
        """What it prints. A failure of it fails the test, with the journal of the service."""
        done = self.run("systemctl", "--user", *words)
        assert done.returncode == 0, f"{done}\n{self.journal()}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", "-p", name, unit).strip()

    def journal(self) -> str:
        return self.machine.run("journalctl", "--no-pager", "-o", "short-monotonic", "-n", "200").stdout


@contextlib.contextmanager
def boot(identity: Identity, scratch: Path) -> Iterator[SystemdMachine]:
    """Boots, and ends everything it started. In there, the home of `identity` is the one of the test."""
    groups = Path(tempfile.mkdtemp(prefix="groups-", dir=scratch))
    name = f"sandboxd-test-{os.getpid()}-{identity.name}"
    units, passwd, log = scratch / "units", scratch / "passwd", scratch / "boot.log"
    units.mkdir()
    for unit in UNITS:
        for found in (f"{directory}/{unit}" for directory in _UNIT_DIRECTORIES):
            if os.path.exists(found):
                # A private /tmp would also be a directory in the /var/tmp of this machine, which is never removed.
                (units / unit).write_text(Path(found).read_text().replace("PrivateTmp=yes", "PrivateTmp=no"))
                break
    # By this name the bus starts it, when it is requested before it is there.
    (units / "dbus-org.freedesktop.login1.service").symlink_to("systemd-logind.service")
    (units / _TARGET).write_text("[Unit]\nRequires=dbus.socket systemd-journald.service systemd-logind.service\n")
    lines = Path("/etc/passwd").read_text().splitlines()
    person = pwd.getpwuid(identity.uid)
    mine = f"{person.pw_name}:x:{person.pw_uid}:{person.pw_gid}::{identity.home}:/bin/sh"
    passwd.write_text("\n".join([mine if line.startswith(f"{person.pw_name}:") else line for line in lines]) + "\n")
    command = [SYSTEMD, f"--unit={_TARGET}", "--show-status=no", "--log-target=console"]
    with log.open("wb") as stream:
        booted = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _BOOT, "boot", str(groups), name, str(passwd), str(units), *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd="/",
            start_new_session=True,
        )
    try:

        def first() -> int:
            assert booted.poll() is None, f"systemd did not start, status {booted.returncode}: {log.read_text()}"
            children = Path(f"/proc/{booted.pid}/task/{booted.pid}/children").read_text().split()
            found = [read_process(int(child)) for child in children]
            return next((child.pid for child in found if child and child.command[:1] == (SYSTEMD,)), 0)

        machine = SystemdMachine(wait_until(first, "process 1 is there"), log)
        bus = Path(f"/proc/{machine.pid}/root/run/dbus/system_bus_socket")
        wait_until(lambda: first() and bus.exists(), "the system bus listens")
        yield machine
    finally:
        booted.send_signal(signal.SIGKILL)  # --kill-child: process 1 goes with it, and all its namespace
        booted.wait()
        removed = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _REMOVE_GROUP, "remove", str(groups), name], cwd="/", capture_output=True
        )
        shutil.rmtree(units)
    assert removed.returncode == 0, removed
