"""The kernel's settings are out of reach, for root too, whose files they are: `kernel.core_pattern` alone names a
program that the kernel runs on the host, as root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.daemons import DaemonProcess

OPENED = """
import json, os, stat, sys
opened = []
for top in sys.argv[1:]:
    for directory, names, files in os.walk(top):
        if directory == "/proc":
            names[:] = [name for name in names if not name.isdecimal() and name not in ("self", "thread-self")]
        for path in (os.path.join(directory, name) for name in files):
            try:
                if stat.S_ISREG(os.lstat(path).st_mode) and os.access(path, os.W_OK):
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    opened.append(path)
            except OSError:
                pass
json.dump(opened, sys.stdout)
"""

OWN = ("/proc/sys/fs/mqueue/", "/proc/sys/kernel/msg", "/proc/sys/kernel/sem", "/proc/sys/kernel/shm",
       "/proc/sys/kernel/auto_msgmni", "/proc/sys/user/",
       "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/pid_max")  # fmt: skip
"""Of the IPC, user and pid namespaces of the sandbox."""

HARMLESS = ("/proc/pressure/",)
"""What is written here asks for a notification and belongs to the descriptor."""


def test_no_kernel_setting_can_be_opened_for_writing(daemon: DaemonProcess) -> None:
    script = daemon.identity.write(daemon.identity.workspace / "walk.py", OPENED)
    done = daemon.run("run", "--", "python3", str(script), "/proc", "/sys")
    opened = [path for path in json.loads(done.stdout) if not path.startswith((*OWN, *HARMLESS))]
    assert opened == [], done.stderr


@pytest.mark.parametrize("name", ["kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory"])
def test_they_can_be_read_and_stay(daemon: DaemonProcess, name: str) -> None:
    path = Path("/proc/sys") / name
    before = path.read_text()
    # the same value: where this is not refused, the machine must survive the test
    done = daemon.run("run", "-c", f'value=$(cat {path}) && echo read && printf %s "$value" > {path} && echo written')
    assert done.stdout.split() == ["read"], done.stderr
    assert path.read_text() == before


PROCESS_1 = """
import json, os, sys
opened = []
for top in ("/proc/1", "/proc/1/task/1", "/proc/self/../1"):
    for directory, names, files in os.walk(top):
        for path in (os.path.join(directory, name) for name in files):
            try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError: continue
            opened.append(path)
json.dump(opened, sys.stdout)
"""

FOR_EVERYBODY = frozenset({"timerslack_ns", "current", "prev", "exec", "fscreate", "keycreate", "sockcreate"})
"""Files of mode 666, in which only a process itself, or one that may trace it, can write."""


def test_nothing_of_process_1_can_be_opened_for_writing(daemon: DaemonProcess) -> None:
    """The helper, which sees to it that nothing survives: a command of root owns these files."""
    done = daemon.run("run", "--", "python3", "-c", PROCESS_1)
    opened = {path.rpartition("/")[2] for path in json.loads(done.stdout)}
    assert opened <= (FOR_EVERYBODY if daemon.identity.uid else set()), done.stderr
    file = "/proc/1/oom_score_adj"
    done = daemon.run("run", "-c", f"cat {file}; echo 900 > {file}; cat {file}; cat /proc/1/comm")
    before, after, name = done.stdout.split()
    assert before == after and name == "sandboxd-init", done.stderr


def test_a_process_still_sets_its_own(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "-c", "echo 500 > /proc/self/oom_score_adj && cat /proc/self/oom_score_adj")
    assert done.stdout.split() == ["500"], done.stderr
