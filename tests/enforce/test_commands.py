"""One command, from `sandboxd run` to its exit status, in a real sandbox (design 3, 5.1; conformance PR families)."""

from __future__ import annotations

import re
import subprocess

import pytest

from support.bubblewrap import NEWEST, each_bubblewrap
from support.daemons import DaemonProcess, StartDaemon

pytestmark = each_bubblewrap


@pytest.fixture
def daemon(shared_daemon: DaemonProcess) -> DaemonProcess:
    return shared_daemon


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -SEGV $$", 139),
        ("kill -TERM $$", 143),
        ("exit 125", 125),
        ("exit 1", 1),
        ("no-such-program-here", 127),
    ],
)
def test_the_exit_status_is_that_of_the_command(daemon: DaemonProcess, script: str, status: int) -> None:
    done = daemon.run("run", "--", "sh", "-c", script)
    assert done.returncode == status, done.stderr
    assert "sandboxd:" not in done.stderr


def test_streams_are_those_of_the_client(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "sh", "-c", "cat; echo problem >&2", input="said\n")
    assert (done.stdout, done.stderr, done.returncode) == ("said\n", "problem\n", 0)


def test_a_shell_line(daemon: DaemonProcess) -> None:
    assert daemon.run("run", "-c", "echo a | tr a b; echo $((1+2))").stdout == "b\n3\n"


@pytest.mark.parametrize(("program", "status"), [("/etc/hostname", 126), ("./absent", 127), ("absent", 127)])
def test_what_cannot_be_executed(daemon: DaemonProcess, program: str, status: int) -> None:
    done = daemon.run("run", "--", program)
    assert done.returncode == status
    assert done.stderr.startswith("sandboxd: cannot run")
    assert "hint:" in done.stderr


def test_a_command_text_longer_than_one_argument_may_be(daemon: DaemonProcess) -> None:
    text = "true " + "x" * 200_000 + "\necho $# end"
    done = daemon.run("run", "--", "sh", "-c", "cat >script; wc -c <script", input=text)
    assert done.stdout.strip() == str(len(text))
    code = """
from sandboxd_client import Client
with Client(autostart=False) as box:
    done = box.run("true " + "x" * 200_000 + "\\necho $# end", capture_output=True, text=True)
    print(repr(done.stdout), done.returncode)
"""
    assert daemon.python(code).stdout == "'0 end\\n' 0\n"


def test_odd_bytes_survive_and_nul_is_refused(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "printf", "%s", "a\tb\nc 'd' \"e\" $HOME é")
    assert done.stdout == "a\tb\nc 'd' \"e\" $HOME é"
    code = r"""
from sandboxd_client import Client, RpcError
with Client(autostart=False) as box:
    try:
        box.run("touch ran\0 more")
    except (RpcError, ValueError) as error:
        print("refused", error)
"""
    assert daemon.python(code).stdout.startswith("refused")
    assert not (daemon.identity.workspace / "ran").exists()


def test_only_the_standard_descriptors_are_inside(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "sh", "-c", "for fd in /proc/self/fd/*; do echo ${fd##*/}; done")
    # the shell itself may hold the directory open while it expands the pattern
    assert set(done.stdout.split()) - {"3"} == {"0", "1", "2"}
    code = "import os; print([fd for fd in range(3, 256) if os.path.exists(f'/proc/self/fd/{fd}')])"
    held = daemon.identity.popen(
        daemon.identity.command("run", "--", "python3", "-c", code),
        env=daemon.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.communicate()[0] == "[]\n"


def test_only_the_processes_of_the_sandbox_are_visible(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "sh", "-c", "ls /proc; kill -0 " + str(daemon.pid) + " || echo unreachable")
    numbers = [int(name) for name in done.stdout.split() if name.isdigit()]
    assert 0 < len(numbers) <= 4
    assert "unreachable" in done.stdout


def test_no_privilege_and_no_capability(daemon: DaemonProcess) -> None:
    status = daemon.run("run", "--", "cat", "/proc/self/status").stdout
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert re.search(rf"^{name}:\t0+$", status, re.MULTILINE), name
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)


def test_the_user_is_the_same_inside(daemon: DaemonProcess) -> None:
    daemon.run("run", "--", "touch", "made")
    done = daemon.run("run", "--", "sh", "-c", "id -u; stat -c %u made")
    assert done.stdout.split() == [str(daemon.identity.uid)] * 2
    assert (daemon.identity.workspace / "made").stat().st_uid == daemon.identity.uid


def test_nothing_secret_in_arguments_and_environment(daemon: DaemonProcess) -> None:
    """What `ps` and /proc/*/environ show of a running command names a ticket, which works once."""
    code = """
import json
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(argv=["true"], cwd=".")
    print(json.dumps([list(launch.argv), dict(launch.env.set)]))
    import subprocess
    first = subprocess.run(launch.argv, cwd=launch.cwd)
    again = subprocess.run(launch.argv, cwd=launch.cwd, stderr=subprocess.PIPE, text=True)
    print(first.returncode, again.returncode, again.stderr)
"""
    done = daemon.python(code)
    assert "@" not in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1].startswith("0 125 sandboxd: ")


def test_a_command_does_not_run_when_the_daemon_is_gone(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    code = """
import os, subprocess, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(argv=["touch", "ran"], cwd=".")
os.kill(int(sys.argv[1]), 9)
import time
while os.path.exists(f"/proc/{sys.argv[1]}/fd"):
    try:
        if open(f"/proc/{sys.argv[1]}/stat").read().split()[2] == "Z": break
    except OSError: break
    time.sleep(0.01)
done = subprocess.run(launch.argv, cwd=launch.cwd, stderr=subprocess.PIPE, text=True)
print(done.returncode, done.stderr)
"""
    done = daemon.python(code, str(daemon.pid))
    assert done.stdout.startswith("125 sandboxd: "), (done.stdout, done.stderr)
    assert "hint: " in done.stdout
    assert not (daemon.identity.workspace / "ran").exists()


def test_the_bubblewrap_is_that_of_the_daemon(daemon: DaemonProcess, bubblewrap: dict[str, str]) -> None:
    """Whatever the PATH of its clients: here it tells which one the tests of this page have run with."""
    said = daemon.run("check").stdout
    assert (f"bwrap, version {NEWEST}\n" in said) is bool(bubblewrap), said
