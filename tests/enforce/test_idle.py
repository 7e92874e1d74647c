"""An unused daemon does not wake up: by the kernel's counters, after it has worked."""

from __future__ import annotations

import time

from bench.kernel_counters import wake_ups
from support.daemons import DaemonProcess
from support.waiting import wait_until

QUIET_S = 1.0
"""Twice what the shortest of our timers takes; `./dev soak --idle` looks for a minute."""


def test_after_its_work_it_sleeps(daemon: DaemonProcess) -> None:
    for word in ("one", "two"):
        assert daemon.run("run", "--", "echo", word).stdout == f"{word}\n"

    def is_quiet() -> bool:
        before = wake_ups(daemon.pid)
        time.sleep(QUIET_S)
        return wake_ups(daemon.pid) == before

    before = wake_ups(daemon.pid)
    assert sum(before.values()) > 0
    wait_until(is_quiet, "no thread of the daemon, and of its helpers, wakes up")
    daemon.run("status")
    assert wake_ups(daemon.pid) != before  # it would be seen
