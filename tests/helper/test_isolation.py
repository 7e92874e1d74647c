"""init is out of the command's reach, and ordinary work under the filter is possible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import KILL, Exited, Started
from sandboxd.backends.linux.helper.launch_configuration import Flags
from support import processes
from support.waiting import wait_until

from .conftest import Launcher, Sandbox


@pytest.mark.parametrize(
    "name", "environ mem maps smaps auxv stack syscall fd/3 fdinfo/3 cwd root exe ns/net io".split()
)
def test_the_files_of_init_are_closed(launch: Launcher, name: str) -> None:
    """Process 1 holds the connection to the daemon, and the environment before anything was removed from it."""
    script = """
import os, sys
path = f"/proc/1/{sys.argv[1]}"
for look in (os.readlink, lambda path: open(path, "rb").read(1)):
    try:
        look(path)
    except PermissionError:
        continue
    except OSError as error:
        if error.errno == 22 and look is os.readlink:  # not a link
            continue
        raise
    raise SystemExit(1)
"""
    assert launch.python(script, name).finish() == (0, "", "")


def test_its_descriptors_cannot_be_opened(launch: Launcher) -> None:
    """Root, who owns every process that is not dumpable, may see their numbers, and no more."""
    script = "for fd in 0 1 2 3 4 5 6 7 8 9; do readlink /proc/1/fd/$fd || (: </proc/1/fd/$fd) || echo no; done"
    status, out, _ = launch.run(["sh", "-c", script])
    assert (status, out) == (0, "no\n" * 10)


# The number of the error of each way to get at process 1.
REACH = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def answer(result):
    return ctypes.get_errno() if result == -1 else 0
target = int(sys.argv[1])
word = (ctypes.c_char * 8)()
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here = Vector(ctypes.cast(word, ctypes.c_void_p), 8)
there = Vector(0x1000000, 8)
pidfd = os.pidfd_open(target)
print(json.dumps({
    "attach": answer(libc.ptrace(16, target, 0, 0)),
    "seize": answer(libc.ptrace(0x4206, target, 0, 0)),
    "read": answer(libc.process_vm_readv(target, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)),
    "write": answer(libc.process_vm_writev(target, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)),
    "descriptor": answer(libc.syscall(438, pidfd, 3, 0)),
    "limits": answer(libc.prlimit(target, 7, ctypes.byref((ctypes.c_ulong * 2)(1, 1)), None)),
    "priority": answer(libc.setpriority(0, target, 19)),
    "processors": answer(libc.sched_setaffinity(target, 8, word)),
    "scheduler": answer(libc.sched_setscheduler(target, 5, word)),
}))
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM):
    os.kill(target, number)
    signal.pidfd_send_signal(pidfd, number)
"""


def test_it_cannot_be_traced_read_written_or_robbed(launch: Launcher) -> None:
    """It cannot be traced read written or robbed."""
    status, out, err = launch.python(REACH, "1").finish()
    assert status == 0, err
    assert set(json.loads(out).values()) == {1}, out  # EPERM


def test_the_same_is_possible_with_a_process_of_ones_own(launch: Launcher) -> None:
    script = f"import subprocess, sys\nsys.argv[1] = subprocess.Popen(['sleep', '1000']).pid\n{REACH}"
    status, out, err = launch.python(script, "x").finish()
    assert status == 0, err
    answers = json.loads(out)
    # Attached once already, no memory at that address, and no descriptor 3 there: but no call says "not permitted".
    assert answers["attach"] == 0 and 1 not in {answers["read"], answers["write"], answers["descriptor"]}


def test_a_command_that_takes_inits_descriptors_only_ends_itself(launch: Launcher) -> None:
    """Possible without the filter only. It must not look as if nothing had been run."""
    script = "import resource, time; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); time.sleep(1000)"
    sandbox = launch.python(script, program=b"", flags=Flags.UNFILTERED)
    sandbox.expect(Started())
    wait_until(lambda: limit_of(sandbox) == ("0", "0"), "the limit")
    sandbox.send(KILL)
    assert sandbox.next_event() in (Exited(137, 9), Exited(143, 15))
    status, _, err = sandbox.finish()
    assert status != 125 and err == ""


def limit_of(sandbox: Sandbox) -> tuple[str, ...]:
    children = Path(f"/proc/{sandbox.process.pid}/task/{sandbox.process.pid}/children").read_text()
    limits = Path(f"/proc/{children.strip()}/limits").read_text()
    return tuple(next(line for line in limits.splitlines() if "open files" in line).split()[3:5])


def test_nobody_else_is_there(launch: Launcher) -> None:
    """No other process is there."""
    status, out, _ = launch.run(
        ["sh", "-c", "ls /proc | grep '^[0-9]*$' | sort -n | head -2; kill -0 $PPID && echo $PPID"]
    )
    assert (status, out) == (0, "1\n2\n1\n")


def test_the_helpers_name_on_the_host_holds_no_secret(launch: Launcher) -> None:
    sandbox = launch(["sleep", "1000"])
    names = [process.command for process in processes.descendants(sandbox.process.pid)]
    assert ("/proc/self/fd/4", "init") in names


ORDINARY = {
    "threads": "import threading; t = [threading.Thread(target=print) for _ in range(9)]; "
    "[x.start() for x in t]; [x.join() for x in t]",
    "a pool of processes": "import multiprocessing as m; m.set_start_method('fork'); p = m.Pool(2); "
    "assert p.map(abs, [-1, 2]) == [1, 2]; p.close(); p.join()",
    "spawned processes and queues": "import multiprocessing as m; c = m.get_context('fork'); q = c.Queue(); "
    "p = c.Process(target=q.put, args=(5,)); p.start(); assert q.get() == 5; p.join()",
    "subprocesses": "import subprocess as s; assert s.run(['sh', '-c', 'echo x | cat'], capture_output=True).stdout",
    "asyncio": "import asyncio as a\nasync def f():\n p = await a.create_subprocess_exec('cat', stdin=-1, stdout=-1)\n"
    " assert (await p.communicate(b'x'))[0] == b'x'\na.run(f())",
    "a pseudo-terminal": "import os, pty; a, b = pty.openpty(); os.write(b, b'x'); assert os.read(a, 1) == b'x'; "
    "assert os.isatty(b)",
    "a program in a pseudo-terminal": "import pty; assert pty.spawn(['sh', '-c', 'tty']) == 0",
    "inotify": "import ctypes, os; l = ctypes.CDLL(None); fd = l.inotify_init1(0); assert fd > 2; "
    "assert l.inotify_add_watch(fd, b'/tmp', 0x100) >= 0; open('/tmp/x', 'w').close(); assert os.read(fd, 99)",
    "TCP on the loopback": "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    "c = socket.create_connection(s.getsockname()); a, _ = s.accept(); c.send(b'x'); assert a.recv(1) == b'x'",
    "TCP over IPv6": "import socket; s = socket.create_server(('::1', 0), family=socket.AF_INET6); "
    "socket.create_connection(s.getsockname()[:2])",
    "UDP on the loopback": "import socket; a = socket.socket(type=2); a.bind(('127.0.0.1', 0)); "
    "a.sendto(b'x', a.getsockname()); assert a.recv(1) == b'x'",
    "names of this machine": "import socket; assert socket.getaddrinfo('localhost', 80)",
    "interfaces": "import socket; assert (1, 'lo') in socket.if_nameindex()",
    "users": "import os, pwd; assert pwd.getpwuid(os.getuid()).pw_name",
    "shared memory": "import mmap; m = mmap.mmap(-1, 4096); m[0] = 1; "
    "from multiprocessing.shared_memory import SharedMemory as S; s = S(create=True, size=10); s.close(); s.unlink()",
    "an anonymous file": "import os; fd = os.memfd_create('x'); os.write(fd, b'x')",
    "timers and events": "import select, signal; e = select.epoll(); signal.setitimer(0, 0.001); signal.sigwait([14])",
    "priorities": "import os; os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "executable memory": "import mmap; mmap.mmap(-1, 4096, prot=7)",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_work(launch: Launcher, name: str) -> None:
    status, _, err = launch.python(f"import signal; signal.pthread_sigmask(0, [14]); {ORDINARY[name]}").finish()
    assert (status, err) == (0, "")


def test_a_debugger_on_its_own_child(launch: Launcher) -> None:
    """What gdb and strace do: the child asks to be traced, and its system calls are seen one by one."""
    script = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.personality(0x0040000)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.execv("/bin/true", ["true"])
os.waitpid(child, 0)
stops = 0
while True:
    assert libc.ptrace(24, child, 0, 0) == 0
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        break
    stops += 1
assert stops > 10
"""
    assert launch.python(script).finish() == (0, "", "")
