"""The families PR and RD of the conformance list: one program inside tries to get at other processes, at the kernel
and at the terminal; another one does the same things with what is its own."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

from sandboxd.backends.linux.seccomp.syscall_table import MACHINES, SYSCALLS
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
    if path.endswith(("/cwd", "/root")): os.listdir(path + "/"); return  # it may be empty
    if path.endswith(("/fd", "/task")): [os.open(path + "/" + name, 0) for name in os.listdir(path)]; return
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
    for name in FILES[first_file:]: attempt(f"read {who} {name}", lambda: read(f"/proc/{pid}/{name}"))
    attempt(f"enter {who} ptrace", lambda: call(libc.ptrace(16, pid, 0, 0)) or None)
    for name in ("process_vm_readv", "process_vm_writev"): attempt(f"enter {who} {name}", lambda: vm(name, pid))
    attempt(f"enter {who} pidfd_getfd", lambda: descriptor_of(pid))
    attempt(f"enter {who} kcmp", lambda: call(libc.syscall(KCMP, os.getpid(), pid, 0, 0, 0)) or None)
    attempt(f"change {who} limits", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)) and None)
    attempt(f"change {who} nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
KCMP = int(sys.argv[1])
for pid in map(int, sys.argv[2:]):
    attack(f"host {pid}", pid, 0)
    attempt(f"change host {pid} kill", lambda: os.kill(pid, 0))
    attempt(f"change host {pid} pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0))
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
    """Processes of the host have no name inside, and of init only the name can be seen."""
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
    assert {name for name in succeeded if " own " not in name} == {"read init cmdline", "read init task"}
    # the twin; `stack` is the kernel's, and so are the descriptors of a child that has not executed anything
    assert {name for name in said if " own " in name} - succeeded <= {"read own stack", "read own fd"}


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
    """By a limit of this one command; the daemon and the next command notice nothing. The kernel applies no such
    limit to root, whose command is ended."""
    daemon = start_daemon(settings=LIMITED)
    wrapping = "from sandboxd_client import Client\nw = Client(autostart=False).wrap(argv=['true'], cwd='.')\n"
    said = daemon.python(wrapping + "print(*w.layers, *w.warnings)").stdout
    bounded = daemon.identity.uid != 0
    assert ("process-limit" in said.split()) is bounded
    assert ("process-limit-watched" in said.split()) is not bounded
    if not bounded:
        many = "import subprocess, time; p = [subprocess.Popen(['sleep', '60']) for _ in range(80)]; time.sleep(60)"
        done = daemon.run("run", "python3", "-I", "-S", "-c", many)
        assert done.returncode == 137 and "the limit was met: processes 64" in done.stderr, done.stderr
        assert daemon.run("run", "python3", "-I", "-S", "-c", FORKS).returncode == 0
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


WAYS = r"""
cd "$WORK"; mkdir "$OWN"
cp "$(command -v touch)" $OWN/copy; ln -s "$(command -v touch)" link; ln $OWN/copy $OWN/hard
printf '#!/bin/sh\ntouch "$1"\n' > script; chmod +x script
for target in "$OUT" "$WORK"; do
    $LOADER "$(command -v touch)" "$target/loader"; $OWN/copy "$target/copy"; ./link "$target/link"
    $OWN/hard "$target/hard"; ./script "$target/script"; env -S "touch $target/env"; sh -c "touch $target/sh"
    find /etc/hostname -exec touch "$target/find" ';'; echo "$target/xargs" | xargs touch
    python3 -I -S -c 'import sys; open(sys.argv[1], "w")' "$target/python"; awk -v f="$target/awk" 'BEGIN { print > f }'
    perl -e 'open(F, ">", $ARGV[0])' "$target/perl"; LD_PRELOAD=libc.so.6 touch "$target/preload"
done
true
"""


def test_however_a_program_is_started_the_same_holds_for_it(daemon: DaemonProcess) -> None:
    """There is no policy about which program may run; what each may do is the same for all."""
    identity = daemon.identity
    outside = identity.home / "outside"
    outside.mkdir()
    identity.own(outside)
    loader = next(str(path) for path in (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1"))
                  if path.exists())  # fmt: skip
    env = {"OUT": str(outside), "WORK": str(identity.workspace), "LOADER": loader}
    env["OWN"] = f"/tmp/sdt-{secrets.token_hex(8)}"
    done = daemon.run("run", "-c", WAYS, env=env)
    assert done.returncode == 0, done.stderr
    assert list(outside.iterdir()) == [] and not Path(env["OWN"]).exists()
    ways = "loader copy link hard script env sh find xargs python awk perl preload".split()
    assert set(ways) <= {path.name for path in identity.workspace.iterdir()}


USE = r"""
import fcntl, mmap, subprocess, threading, time
IPC_CREAT, key = 0o1000, int(sys.argv[1])
def shared(): call(libc.shmget(key, 0, 0))
def own(): call(libc.shmget(key + 1, 4096, IPC_CREAT | 0o600))
def posix(): os.open("/dev/shm/" + sys.argv[2], os.O_RDONLY)
attempt("memory of the host", shared); attempt("memory own", own); attempt("memory posix", posix)
state = os.statvfs("/dev/shm")
memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
done["size of /tmp"] = 0 < state.f_blocks * state.f_frsize <= memory * 0.51 and 0 < state.f_files
descriptors = []
def exhaust():
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    while True: descriptors.append(os.open("/dev/null", 0))
attempt("exhaust descriptors", exhaust)
for one in descriptors: os.close(one)
def memory_bomb():
    resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
    try: [bytearray(64 << 20) for _ in range(20)]
    except MemoryError: raise OSError(errno.ENOMEM, "") from None
threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(100)]
for one in threads: one.start()
for one in threads: one.join()
attempt("exhaust memory", memory_bomb)
sys.stderr.write("x" * (4 << 20))
nested = subprocess.run(["bwrap", "--ro-bind", "/", "/", "true"], capture_output=True, text=True)
done["nested sandbox"] = [nested.returncode != 0, "bwrap:" in nested.stderr]
print(json.dumps(done))
"""


def test_what_a_command_uses_up_is_its_own(daemon: DaemonProcess) -> None:
    """A command runs out of descriptors and memory alone and ends as it should; memory is
    not shared; what is private has a size; a sandbox in it says that it cannot be."""
    key = 0x53424F58 + os.getpid() * 2
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(key, 4096, 0o1000 | 0o666)
    assert segment >= 0
    name = f"sandboxd-test-{os.getpid()}"
    Path("/dev/shm", name).touch(0o666)
    try:
        said = attempt(daemon, USE, str(key), name)
    finally:
        libc.shmctl(segment, 0, None)
        Path("/dev/shm", name).unlink()
    assert said == {
        "memory of the host": "ENOENT", "memory own": "done", "memory posix": "ENOENT", "size of /tmp": True,
        "exhaust descriptors": "EMFILE", "exhaust memory": "ENOMEM", "nested sandbox": [True, True],
    }  # fmt: skip
    assert daemon.run("run", "--", "true").returncode == 0


SWAP = r"""
import threading
closed, free = sys.argv[1].encode(), b"free\0"
path = ctypes.create_string_buffer(len(closed) + 1)
def swap():
    while True: ctypes.memmove(path, closed + b"\0", len(closed) + 1); ctypes.memmove(path, free, len(free))
sys.setswitchinterval(0.00005)
threading.Thread(target=swap, daemon=True).start()
opened = refused = 0
while opened < 3 or refused < 30:
    number = libc.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    if number < 0: refused += 1
    else: opened += 1; os.write(number, b"x"); os.close(number)
print(json.dumps({"opened": opened}), flush=True)
os._exit(0)
"""


def test_a_path_that_is_swapped_constantly_opens_nothing_closed(daemon: DaemonProcess) -> None:
    """A path may change between the look and the opening; mounts decide about what is opened."""
    closed = daemon.identity.write(daemon.identity.home / "closed", "old")
    assert attempt(daemon, SWAP, str(closed))["opened"] >= 3
    assert closed.read_text() == "old"
    assert (daemon.identity.workspace / "free").read_text() == "x"
