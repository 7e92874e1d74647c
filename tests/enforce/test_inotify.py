"""One command cannot use up what its user has of inotify(7): the daemon's watches and an editor's would be gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.daemons import DaemonProcess

TAKEN = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
most = int(open("/proc/sys/fs/inotify/max_user_instances").read())
taken = 0
while taken <= most and libc.inotify_init1(0) >= 0: taken += 1
try:
    open("/proc/sys/user/max_inotify_instances", "w").write("100000")
    raised = True
except OSError: raised = False
print(json.dumps([most, taken, raised, open("/proc/sys/user/max_inotify_watches").read()]))
"""


@pytest.fixture
def daemon(shared_daemon: DaemonProcess) -> DaemonProcess:
    return shared_daemon


def test_a_command_has_half_of_the_instances_and_watches(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "python3", "-c", TAKEN)
    most, taken, raised, watches = json.loads(done.stdout)
    assert 0 < taken <= most // 2 and not raised, done.stderr
    # bubblewrap may have made a second namespace in the one that is bounded; its own number then means nothing
    assert int(watches) in (int(Path("/proc/sys/user/max_inotify_watches").read_text()) // 2, 2**31 - 1)


def test_ordinary_watching_works(daemon: DaemonProcess) -> None:
    program = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.inotify_init1(0) for _ in range(8)]
print(all(libc.inotify_add_watch(one, b"/usr", 0x100) >= 0 for one in made))
"""
    assert daemon.run("run", "--", "python3", "-c", program).stdout.split() == ["True"]
