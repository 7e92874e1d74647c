"""Waiting uses no processor: an unused daemon, and process 1 of a command that cannot end."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time

from bench.kernel_counters import wake_ups
from support import processes
from support.daemons import DaemonProcess
from support.waiting import wait_until

QUIET_S = 1.0
"""Twice what the shortest of our timers takes; `./dev soak --idle` looks for a minute."""


def test_after_its_work_it_sleeps(daemon: DaemonProcess) -> None:
    """With sessions open, and a server in one of them that has answered."""
    for word in ("one", "two"):
        assert daemon.run("session", "start", "--name", word).returncode == 0
        assert daemon.run("run", "--session", word, "--", "echo", word).stdout == f"{word}\n"
    serve = ("run", "--session", "one", "python3", "-u", "-m", "http.server", "3000")
    server = daemon.popen(*serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None and server.stdout.readline().startswith("Serving")
    assert "<html" in daemon.run("run", "--session", "one", "curl", "-s", "localhost:3000").stdout

    def is_quiet() -> bool:
        before = wake_ups(daemon.pid)
        time.sleep(QUIET_S)
        return wake_ups(daemon.pid) == before

    before = wake_ups(daemon.pid)
    assert sum(before.values()) > 0
    wait_until(is_quiet, "no thread of the daemon, and of its helpers, wakes up")
    daemon.run("status")
    assert wake_ups(daemon.pid) != before  # it would be seen
    assert daemon.run("session", "end", "one", "two").returncode == 0
    server.communicate()


PTRACE_SEIZE = 0x4206
WALL = 0x40000000


def test_process_1_sleeps_while_its_command_cannot_end(shared_daemon: DaemonProcess) -> None:
    """A zombie of a tracer outside uses its filter no longer (Linux 6.11), which poll(2) tells of for ever."""
    with shared_daemon.popen("run", "-c", "echo ready; read x", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stdin is not None and run.stdout.readline() == b"ready\n"
        (process_1,) = [one for one in processes.descendants(run.pid) if one.name == "sandboxd-init"]
        (command,) = [one.pid for one in processes.descendants(process_1.pid)]
        assert ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_SEIZE, command, 0, 0) == 0
        run.stdin.close()

        def is_zombie() -> bool:
            found = processes.read_process(command)
            return found is not None and found.state == "Z"

        wait_until(is_zombie, "the command has ended")
        before, began = _processor_time(process_1.pid), time.process_time()
        while time.process_time() < began + 0.4:
            pass
        used = _processor_time(process_1.pid) - before
        was_zombie = is_zombie()
        assert os.waitpid(command, WALL) == (command, 1 << 8)
        assert was_zombie and used < 0.1
    assert run.returncode == 1


def _processor_time(pid: int) -> float:
    """Seconds of user and system time, of proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
