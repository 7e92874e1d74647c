"""An unused daemon does not wake up: by the kernel's counters, after it has worked."""

from __future__ import annotations

import subprocess
import time

from bench.kernel_counters import wake_ups
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
