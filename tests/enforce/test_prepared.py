"""A prepared sandbox runs the next command where it is the sandbox that this would get, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.processes import is_alive
from support.snapshot import HostWatch
from support.waiting import wait_until

READY = r"""
import json, os, resource, signal, socket, subprocess, sys, time
from sandboxd_client import Client, SandboxdError
from sandboxd_client.wire.messages.methods import WRAP
from sandboxd_client.wire.messages.wrap import WrapParams
from sandboxd_client.transport.sharing import SharedConnector
work = os.getcwd()

def waiting(box):
    until = time.monotonic() + 30
    while not (box.status().prepared and box._preparing._ready):
        assert time.monotonic() < until, "no sandbox is prepared"
        time.sleep(0.005)
    return box._preparing._ready

def make(box, **where):
    box.run(["true"], **where)
    return waiting(box)
"""

SAME = (
    READY
    + r"""
seen = {}
def both(name, act):
    found, early = [], []
    for way in ("usual", "late", "early"):
        with Client(autostart=False, prepare=way != "usual") as box:
            if way != "usual":
                box.run("true")
                make(box)
                if way == "late":
                    box._preparing._last.clear()
                call = SharedConnector._call
                box._connector._call = lambda *given: early.append(len(given) > 2) or call(box._connector, *given)
            found.append(act(box))
    seen[name] = [
        found[0][:-1] == found[1][:-1] == found[2][:-1],
        found[1][-1] and found[2][-1] and early.count(True) == 1,
        *found,
    ]

def run(command, **options):
    def act(box):
        done = box.run(command, capture_output="stdout" not in options, text=True, **options)
        return [done.returncode, done.stdout, done.stderr, done.wrap.layers, done.wrap.prepared]
    return act

def spawned(number, command="trap '' USR1; echo up; sleep 60"):
    def act(box):
        process = box.spawn(command, stdout=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        group = os.getpgid(process.pid) == os.getsid(process.pid) == process.pid
        process.send_signal(number)
        return [first, group, process.wait(), process.wrap.prepared]
    return act

def stopped(box):
    process = box.spawn("echo $$; sleep 60", stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP); process.send_signal(signal.SIGCONT)
    alive = process.poll()
    process.kill()
    return [alive, process.wait(), process.wrap.prepared]

def frozen(box):
    process = box.spawn("echo up; sleep 60", stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    process.kill()
    return [process.wait(), process.wrap.prepared]

def to_file(box):
    with open("out", "w+") as file:
        done = box.run("echo one; echo two >&2", stdout=file, stderr=subprocess.STDOUT)
        file.seek(0)
        return [done.returncode, file.read(), done.wrap.prepared]

def late_signal(box):
    process = box.spawn(["sleep", "60"])
    process.terminate()
    return [process.wait() in (143, 125), process.wrap.prepared]

environment = {"A": "", "\u00e4": "\u00f6 x", "PATH": os.environ["PATH"], "PWD": "/elsewhere"}
both("streams", run("cat; echo err >&2; exit 7", input="in"))
both("argv", run(["printf", "%s.", "a b", "", "\u00e4"]))
both("environment", run("env | grep -v sandboxd-", env=environment))
both("umask", run("umask; umask > made; cat made", umask=0o27))
both("descriptors", run("ls -l /proc/self/fd | wc -l; cat /proc/self/cgroup; id; ulimit -a; pwd -P"))
both("signals", run("grep Sig /proc/self/status"))
both("killed", run("kill -9 $$"))
both("absent program", run(["/nonexistent"]))
both("not executable", run(["/etc/passwd"]))
both("violation", run("touch /etc/x"))
both("mounts", run("cut -d' ' -f4- /proc/self/mountinfo | sed 's/[a-z0-9]*[0-9]:[0-9]* //' | wc -l; ls /dev"))
both("to a file", to_file)
both("terminated", spawned(15))
both("interrupted", spawned(2))
both("killed from outside", spawned(9))
both("stopped", stopped)
both("bubblewrap stopped", frozen)
both("signal at once", late_signal)
print(json.dumps(seen))
"""
)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, list[object]]:
    assert done.returncode == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon()


def test_it_runs_commands_as_any_sandbox_does(daemon: DaemonProcess) -> None:
    seen = result(daemon.python(SAME, cwd=daemon.identity.workspace))
    different = {name: row[2:] for name, row in seen.items() if not row[0]}
    assert not different, json.dumps(different, indent=1)
    assert [name for name, row in seen.items() if not row[1]] == []


CHANGES = (
    READY
    + r"""
seen = {}
def row(name, change, command="true", prepare=make, **options):
    with Client(autostart=False, prepare=True) as box:
        before = prepare(box)
        undo = change(box, before)
        try:
            done = box.run(command, capture_output=True, text=True, **options)
            seen[name] = [done.wrap.prepared, done.returncode, done.stdout]
        except SandboxdError as error:
            seen[name] = [str(error)]
        finally:
            if undo:
                undo()

def nothing(box, one): pass
def settings(box, one):
    path = os.path.expanduser("~/.claude/settings.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump({"sandbox": {"filesystem": {"denyWrite": ["./kept"]}}}, file)
    return lambda: os.unlink(path)
def protected(box, one):
    os.mkdir("nested"); subprocess.run(["git", "init", "-q", "nested"], check=True)
def replaced(box, one):
    subprocess.run(["git", "-C", "nested", "config", "a.b", "c"], check=True)
def in_its_place(box, one):
    os.rename(work + "/sub", work + "/other"); os.mkdir(work + "/sub"); open(work + "/sub/new", "w").close()
def killed(who):
    def change(box, one):
        pid = one._process.pid
        if who == "init":
            pid = int(open(f"/proc/{pid}/task/{pid}/children").read())
        os.kill(pid, 9)
        os.waitid(os.P_PID, one._process.pid, os.WEXITED | os.WNOWAIT)
    return change
def frozen(box, one):
    os.kill(one._process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, one._process.pid, os.WSTOPPED | os.WNOWAIT)
def lower(box, one):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)
def ignore(box, one):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
def mask(box, one):
    before = os.umask(0o77)
    return lambda: os.umask(before)
def restarted(box, one): box.restart()
def connected_anew(box, one): box._connector.close()
def other(box, one):
    with Client(autostart=False, prepare=True) as second:
        wrap = second.wrap(argv=["true"], prepared=one.wrap.wrap_id)
        assert not wrap.prepared
def forked(box, one):
    if not (pid := os.fork()):
        done = box.run("true")
        os._exit(done.wrap.prepared)
    assert not os.waitpid(pid, 0)[1]
def in_session(box):
    box.agent = box.session()
    return make(box, session_id=box.agent.id)
def tightened(box, one): box.agent.update({"sandbox": {"filesystem": {"denyRead": [work + "/secret"]}}})

open("secret", "w").write("secret"); open("kept", "w").write("old"); os.mkdir("sub")
row("nothing", nothing, "echo x > kept")
row("settings", settings, "echo y > kept")
row("protected name", protected, "echo > nested/.git/config")
row("file replaced", replaced, "echo > nested/.git/config")
row("other directory", nothing, "pwd", cwd="/")
with_sub = lambda box: make(box, cwd="sub")
row("directory replaced", in_its_place, "ls", prepare=with_sub, cwd="sub")
row("bubblewrap killed", killed("bwrap"))
row("process 1 killed", killed("init"))
row("bubblewrap stopped", frozen)
row("limit", lower, "ulimit -n")
row("ignored signal", ignore)
row("umask", mask, "umask")
row("overrides", nothing, overrides={"allow_write": ["/tmp"]})
row("own group", nothing, process_group=0, start_new_session=False)
row("shell", nothing, shell="/bin/sh")
row("large environment", nothing, env={**os.environ, "A": "x" * 110000})
row("another client", other)
row("forked", forked)
with open("/dev/null") as null: row("stream", nothing, stdin=null)
with open("/proc/version") as kernel: row("kernel stream", nothing, "head -c5", stdin=kernel)
row("restart", restarted)
row("connection", connected_anew)
with Client(autostart=False, prepare=True) as box:
    one = in_session(box); tightened(box, one)
    done = box.run("cat secret", session_id=box.agent.id, capture_output=True)
    seen["session tightened"] = [done.wrap.prepared, done.returncode, ""]
with Client(autostart=False, prepare=True) as box:
    settings(box, None)
    with open(os.path.expanduser("~/.claude/settings.json"), "w") as file:
        json.dump({"sandbox": {"prepareSandboxes": False}}, file)
    try:
        box.call(WRAP, WrapParams(argv=("true",), cwd=work, prepare=True))
    except SandboxdError as error:
        seen["turned off"] = [False, 0, error.slug]
print(json.dumps(seen))
"""
)

EXPECTED: dict[str, tuple[bool, object, object]] = {
    "nothing": (True, 0, ""),
    "settings": (False, None, ""),
    "protected name": (False, None, ""),
    "file replaced": (False, None, ""),
    "other directory": (False, 0, "/\n"),
    "directory replaced": (False, 0, "new\n"),
    "bubblewrap killed": (False, 0, ""),
    "process 1 killed": (False, 0, ""),
    "bubblewrap stopped": (False, 0, ""),
    "limit": (False, 0, "200\n"),
    "ignored signal": (False, 0, ""),
    "umask": (True, 0, "0077\n"),
    "overrides": (False, 0, ""),
    "own group": (False, 0, ""),
    "shell": (False, 0, ""),
    "large environment": (False, 0, ""),
    "another client": (True, 0, ""),
    "forked": (True, 0, ""),
    "stream": (True, 0, ""),
    "kernel stream": (False, 0, "Linux"),
    "restart": (False, 0, ""),
    "connection": (False, 0, ""),
    "session tightened": (False, None, ""),
    "turned off": (False, 0, "prepare_unavailable"),
}


def test_a_change_since_then_takes_the_usual_way(daemon: DaemonProcess) -> None:
    seen = result(daemon.python(CHANGES, cwd=daemon.identity.workspace))
    wrong = {
        name: (seen.get(name), expected)
        for name, expected in EXPECTED.items()
        if seen.get(name) != list(expected) and not (expected[1] is None and seen[name][0] is False and seen[name][1])
    }
    assert wrong == {}


REMOVED = (
    READY
    + r"""
from sandboxd_client.running.prepared import Prepared, _Key, inherited
with Client(autostart=False, prepare=False) as box:
    for path, act in (("file", os.unlink), ("kept", os.stat), ("directory", os.rmdir)):
        path = os.path.join(work, path)
        os.mkdir(path) if act is os.rmdir else open(path, "w").close()
        opened = box.session_open(cwd=work, settings={"sandbox": {"filesystem": {"denyRead": [path]}}})
        where = {"cwd": work, "session_id": opened.session_id}
        wrap = box.call(WRAP, WrapParams(argv=("prepared",), prepare=True, **where))
        act(path)
        one = Prepared(wrap, _Key(work, opened.session_id), 0, inherited())
        while one.is_there and not box.status().prepared: time.sleep(0.005)
        there = os.path.exists(path)
        print(there, one.is_there, box.wrap(argv=["true"], prepared=wrap.wrap_id, **where).prepared)
        one.drop()
"""
)


def test_nothing_denied_comes_back_empty(daemon: DaemonProcess) -> None:
    done = daemon.python(REMOVED, cwd=daemon.identity.workspace)
    expected = ["False False False", "True True True", "False False False"]
    assert done.stdout.splitlines() == expected, done.stderr


ENDS = (
    READY
    + r"""
box = Client(autostart=False, prepare=True)
one = make(box)
print(one._process.pid, flush=True)
if sys.argv[1] == "closes":
    box.close()
    assert not os.path.exists(f"/proc/{one._process.pid}")
    print("closed", flush=True)
elif sys.argv[1] == "daemon":
    os.kill(int(sys.argv[2]), 9)
    one._process.wait()
    print("closed", flush=True)
sys.stdin.readline()
"""
)


@pytest.mark.parametrize("how", ["closes", "killed", "daemon"])
def test_it_ends_with_its_client_and_daemon(daemon: DaemonProcess, how: str) -> None:
    identity = daemon.identity
    client = identity.popen(
        identity.python("-c", ENDS, how, str(daemon.pid)),
        cwd=identity.workspace, env=daemon.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        if how == "killed":
            os.kill(client.pid, signal.SIGKILL)
        else:
            assert client.stdout.readline() == "closed\n"
        wait_until(lambda: not is_alive(pid), "the prepared sandbox is gone")
        client.kill()


POINTS = (
    READY
    + r"""
import threading
from sandboxd_client.running.prepared import Prepared

def end(): os.kill(os.getpid(), 9)
def soon(ms): return lambda: threading.Timer(ms / 1000, end).start()
def put(owner, name, before, after):
    original = getattr(owner, name)
    def patched(*given):
        before()
        result = original(*given)
        after()
        return result
    setattr(owner, name, patched)
def nothing(): pass
def half():
    one._channel.send(b"123456789")
    end()

points = [(SharedConnector, "_ask_again", soon(0), nothing), (SharedConnector, "_ask_again", nothing, end)]
points += [(SharedConnector, "_ask_again", nothing, soon(n / 4)) for n in range(1, 13)]
points += [(Prepared, "__init__", nothing, soon(2 ** n / 4)) for n in range(8)]
points += [(Client, "status", nothing, end)]
points += [(Prepared, "give", end, nothing), (Prepared, "give", half, nothing), (Prepared, "give", nothing, end)]
for n, point in enumerate(points):
    if not (pid := os.fork()):
        put(*point)
        box = Client(autostart=False, prepare=True)
        box.run("true")
        one = waiting(box)
        box.run("true")
        threading.Event().wait(20)  # for a timer
        os._exit(0)
    ended = os.waitpid(pid, 0)[1]
    assert ended == 9, (n, point, ended)
"""
)


def test_nothing_is_left_of_a_client_that_is_killed(daemon: DaemonProcess, host_snapshot: HostWatch) -> None:
    """At each point between the request for a sandbox and the start of its command."""
    assert daemon.run("run", "--", "true").returncode == 0  # what a daemon keeps for itself is there from now on
    with host_snapshot.assert_unchanged():
        done = daemon.python(POINTS, cwd=daemon.identity.workspace)
        assert done.returncode == 0, done.stderr


CLOSES = (
    READY
    + r"""
def begun(box):
    until = time.monotonic() + 30
    while not (one := box._preparing._ready):
        assert time.monotonic() < until, "no sandbox is being prepared"
    return one

ways = [lambda box, ms=ms: time.sleep(ms / 1000) or box._preparing._ready for ms in range(40)]
for n, way in enumerate((*ways, begun, waiting)):
    with Client(autostart=False, prepare=True) as box:
        box.run("true")
        one = way(box)
    assert way in ways or one._process.returncode is not None
    try:
        raise AssertionError(f"a child is there after way {n}: {os.waitpid(-1, os.WNOHANG)}")
    except ChildProcessError:
        pass
"""
)


def test_nothing_is_left_of_a_client_that_closes(daemon: DaemonProcess, host_snapshot: HostWatch) -> None:
    """It has waited for its sandbox, however far that was."""
    assert daemon.run("run", "--", "true").returncode == 0  # what a daemon keeps for itself is there from now on
    with host_snapshot.assert_unchanged():
        done = daemon.python(CLOSES, cwd=daemon.identity.workspace)
        assert done.returncode == 0, done.stderr
