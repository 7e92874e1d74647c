"""The families PR and RD of the conformance list: one program inside tries to get at other processes, at the kernel
and at the terminal; another one does the same things with what is its own."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from sandboxd.backends.linux.seccomp_table import MACHINES, SYSCALLS
from support.daemons import DaemonProcess, StartDaemon
from support.processes import descendants, is_alive
from support.waiting import wait_until

TOOLS = r"""
import ctypes, errno, json, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0: raise OSError(ctypes.get_errno(), "call")
    return result
done = {}
def attempt(name, operation):
    try: done[name] = "done" if (said := operation()) in (None, True) else said
    except OSError as error: done[name] = errno.errorcode[error.errno]
def child(body):
    pid = os.fork()
    if pid: return pid
    try: body()
    finally: os._exit(0)
"""

OTHERS = r"""
FILES = "environ cmdline maps mem fd cwd root exe stack syscall task auxv".split()
def read(path):
    if path.endswith(("/cwd", "/root")): return os.listdir(path + "/") and None
    if path.endswith(("/fd", "/task")): return [os.open(path + "/" + name, 0) for name in os.listdir(path)] and None
    with open(path, "rb") as file:
        if path.endswith("/mem"): file.seek(4096 * 1024)
        if not file.read(1): raise OSError(errno.ENODATA, "nothing")
class Words(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def vm(name, pid):
    here = ctypes.create_string_buffer(8)
    local = Words(ctypes.addressof(here), 8); remote = Words(ctypes.addressof(here), 8)
    call(getattr(libc, name)(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
def descriptor_of(pid): call(libc.syscall(438, os.pidfd_open(pid), 0, 0))
def attack(who, pid, first_file):
    for name in FILES[first_file:]: attempt(f"RD-03 {who} {name}", lambda: read(f"/proc/{pid}/{name}"))
    attempt(f"PR-01 {who} ptrace", lambda: call(libc.ptrace(16, pid, 0, 0)) or None)
    for name in ("process_vm_readv", "process_vm_writev"): attempt(f"PR-01 {who} {name}", lambda: vm(name, pid))
    attempt(f"PR-01 {who} pidfd_getfd", lambda: descriptor_of(pid))
    attempt(f"PR-01 {who} kcmp", lambda: call(libc.syscall(KCMP, os.getpid(), pid, 0, 0, 0)) or None)
    attempt(f"PR-02 {who} limits", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)) and None)
    attempt(f"PR-02 {who} nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
KCMP = int(sys.argv[1])
for pid in map(int, sys.argv[2:]):
    attack(f"host {pid}", pid, 0)
    attempt(f"PR-02 host {pid} kill", lambda: os.kill(pid, 0))
    attempt(f"PR-02 host {pid} pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0))
attack("init", 1, 0)
own = child(signal.pause)
os.kill(own, signal.SIGSTOP); os.waitpid(own, os.WUNTRACED)
os.kill(own, 0)
attack("own", own, 0)
os.kill(own, signal.SIGKILL)
print(json.dumps(done))
"""


def attempt(daemon: DaemonProcess, program: str, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", TOOLS + program, *words, env=env)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_nobody_elses_process_can_be_looked_at_or_touched(daemon: DaemonProcess) -> None:
    """PR-01, PR-02, RD-03: those of the host have no name inside, and of init only the name can be seen."""
    sibling = daemon.popen("run", "--", "sleep", "1000", stdout=subprocess.DEVNULL)
    try:
        outside = [daemon.pid, os.getpid(), sibling.pid]
        kcmp = SYSCALLS["kcmp"][MACHINES[os.uname().machine].column]
        said = attempt(daemon, OTHERS, str(kcmp), *map(str, outside))
        assert all(is_alive(pid) for pid in outside)
    finally:
        sibling.terminate()
        sibling.wait()
    succeeded = {name for name, result in said.items() if result == "done"}
    assert {name for name in succeeded if " own " not in name} == {"RD-03 init cmdline", "RD-03 init task"}
    # the twin; `stack` is the kernel's, and so are the descriptors of a child that has not executed anything
    assert {name for name in said if " own " in name} - succeeded <= {"RD-03 own stack", "RD-03 own fd"}


BOMB = r"""
import os, sys, threading, time
open("started", "w").close()
try:
    for _ in range(20): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    while True:
        if os.fork() == 0:  # each of them goes on as well
            pass
except (OSError, RuntimeError):
    open("full", "w").close()
    time.sleep(1000)
"""
FORKS = "import os; print([os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1] for _ in range(9)])"
LIMITED = {"sandbox": {"limits": {"maxProcesses": 64}}}


def test_a_fork_bomb_is_bounded(start_daemon: StartDaemon) -> None:
    """PR-16: by a limit of this one command; the daemon and the next command notice nothing. The kernel applies no such
    limit to root, which is said."""
    daemon = start_daemon(settings=LIMITED)
    wrapping = "from sandboxd_client import Client\nw = Client(autostart=False).wrap(argv=['true'], cwd='.')\n"
    said = daemon.python(wrapping + "print(*w.layers, *w.warnings)").stdout
    bounded = daemon.identity.uid != 0
    assert ("process-limit" in said.split()) is bounded
    assert ("the kernel applies no such limit to root (sandbox.limits.maxProcesses" in said) is not bounded
    if not bounded:
        return
    command = daemon.popen("run", "--", "python3", "-I", "-S", "-c", BOMB, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (daemon.identity.workspace / "full").exists(), "no more can be started")
        threads = [len(os.listdir(f"/proc/{one.pid}/task")) for one in descendants(command.pid)]
        assert 40 < sum(threads) <= 64 + 1  # bubblewrap itself is outside
        done = daemon.run("run", "--", "python3", "-I", "-S", "-c", FORKS)
        assert done.stdout == f"{[0] * 9}\n", done.stderr
    finally:
        command.terminate()
        command.wait()
    assert descendants(command.pid) == []
