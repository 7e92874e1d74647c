"""The names of subprocess with real sandboxes: they say what CPython says, inside."""

from __future__ import annotations

import inspect

from support import subprocess_rows
from support.daemons import DaemonProcess

ROWS = (
    "text", "input", "input not read", "files", "stdin from a file", "shell with arguments", "env", "cwd", "umask",
    "missing program", "missing cwd", "check of a signal", "check_output fails", "call timeout", "timeout",
    "status above 128", "own signal", "terminate", "trapped", "kill", "dialogue", "threads",
    "a shell's 128+N", "of a killed child", "polled",
)  # fmt: skip
DRIVER = """
import os, sys
from sandboxd_client import subprocess as inside
for name in sys.argv[1:]:
    where = Path.cwd()
    native, found = said(ROWS[name], cpython, where), said(ROWS[name], inside, where)
    if native != found:
        print(name, native, found)
kept = "/tmp/sdt-" + os.urandom(8).hex()
inside.run(f"echo kept >{kept}", shell=True)
assert inside.check_output(["cat", kept], text=True) == "kept\\n", "all commands share a session"
assert not os.path.exists(kept)
outside = Path.home() / "outside"
blocked = inside.Popen(["touch", str(outside)], stderr=inside.PIPE)
blocked.communicate()
assert blocked.returncode == 1 and not outside.exists() and blocked.violations, blocked
line = "(trap '' TERM; setsid sleep 1000) & echo up; wait"
tree = inside.Popen(line, shell=True, stdout=inside.PIPE)
tree.stdout.readline()
tree.kill()
assert tree.wait() == -9 and tree.stdout.read() == b"", "the end of every process closed the output"
"""


def test_it_says_what_cpython_says_and_runs_inside(daemon: DaemonProcess) -> None:
    done = daemon.python(inspect.getsource(subprocess_rows) + DRIVER, *ROWS)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done.stdout + done.stderr
