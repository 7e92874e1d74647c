"""`sandboxd restart` for real: the same process in another program, under load, and when that program is broken."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until

RESTARTS = 2

# A tunnel that carries what it is given at the end.
TUNNEL = """
import socket, sys
proxy = socket.create_connection(("127.0.0.1", 3128))
proxy.sendall(b"CONNECT ok.test:%s HTTP/1.1\\r\\n\\r\\n" % sys.argv[1].encode())
head = b""
while b"\\r\\n\\r\\n" not in head: head += proxy.recv(1)
proxy.sendall(sys.stdin.buffer.read())
while data := proxy.recv(65536): sys.stdout.buffer.write(data)
"""

# Commands, a tunnel, and a question that waits, while the daemon is restarted again and again.
LOAD = (
    """
import json, subprocess, sys, threading
from sandboxd_client import Client

port, restarts = sys.argv[1], int(sys.argv[2])
wrong, done, stop = [], [0], threading.Event()
TUNNEL = """
    + repr(TUNNEL)
    + """

def commands():
    with Client(autostart=False) as box:
        while not stop.is_set():
            ended = box.run(["sh", "-c", "curl -sSf http://ok.test:%s/; exit 3" % port], capture_output=True)
            if ended.returncode != 3 or b"hello" not in ended.stdout:
                wrong.append(repr(ended))
            done[0] += 1

with Client(autostart=False) as box, Client(autostart=False) as person:
    person.permission_subscribe()
    tunnel = box.spawn([sys.executable, "-c", TUNNEL, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    asking = box.spawn(["curl", "-sSf", "http://ask.test:%s/" % port], stdout=subprocess.PIPE)
    question = next(person.notifications())
    workers = [threading.Thread(target=commands) for _ in range(2)]
    for worker in workers: worker.start()
    seen = []
    for number in range(restarts):
        before = done[0]
        pid = box.restart().pid
        status = box.status()
        seen.append((pid, status.restarts, status.restarted.cut, status.restarted.lost))
        while done[0] < before + 4 and not wrong: stop.wait(0.01)
    stop.set()
    for worker in workers: worker.join()
    person.permission_respond(question.params.request_id, "allow")
    asked = asking.communicate()[0].decode()
    request = b"GET / HTTP/1.1\\r\\nHost: ok.test\\r\\nConnection: close\\r\\n\\r\\n"
    tunneled = tunnel.communicate(request)[0].decode()
    print(json.dumps({
        "wrong": wrong, "seen": seen, "asked": asked, "status": asking.returncode, "tunneled": tunneled,
        "done": done[0], "connections": box.connections,
    }))
"""
)


def test_nothing_is_lost_over_restarts_under_load(start_daemon: StartDaemon, origin: Origin) -> None:
    daemon = start_daemon(
        resolve={"ok.test": "127.0.0.1", "ask.test": "127.0.0.1"},
        settings={"sandbox": {"network": {"allowedDomains": ["ok.test"]}}},
    )
    ran = daemon.python(LOAD, str(origin.port), str(RESTARTS))
    assert ran.returncode == 0, ran.stderr + daemon.output()
    said = json.loads(ran.stdout)
    assert said["wrong"] == [], daemon.output()
    assert said["seen"] == [[daemon.pid, number + 1, 0, []] for number in range(RESTARTS)], daemon.output()
    assert (said["asked"].encode(), said["status"]) == (origin.body, 0)
    assert said["tunneled"].encode().endswith(origin.body)
    assert said["connections"] == 1
    assert said["done"] >= 4 * RESTARTS
    assert daemon.stop() == 0


def test_a_program_that_would_not_start_changes_nothing(start_daemon: StartDaemon, identity: Identity) -> None:
    broken = Path(identity.write(identity.base / "broken" / "sandboxd" / "__init__.py", "raise SystemExit('broken')"))
    switch = identity.base / "path"
    # The directory that is searched first leads nowhere when the daemon starts.
    daemon = start_daemon(env={"SANDBOXD_TEST_SITE": str(switch)})
    before = daemon.run("status", "--json")
    switch.symlink_to(broken.parent.parent)
    refused = daemon.run("restart")
    assert refused.returncode != 0
    assert "does not start: broken" in refused.stderr, refused.stderr
    after = daemon.run("status", "--json")
    assert json.loads(after.stdout)["started_at"] == json.loads(before.stdout)["started_at"]
    assert json.loads(after.stdout)["restarts"] == 0
    assert daemon.run("run", "--", "true").returncode == 0


# The daemon that is restarted gets SIGTERM from itself, at a moment that no signal from outside would meet for certain.
SIGNALLING = """
import os, signal, threading, time
if not {"SANDBOXD_HANDOVER", "SANDBOXD_TRIAL"} & os.environ.keys():
    from sandboxd.daemon.restart.restarting import DaemonProgram
    from sandboxd.runtime.sessions import Sessions
    from contextlib import asynccontextmanager
    from sandboxd.app import process as app_process
    leaving, execute, running = Sessions.__aexit__, DaemonProgram.execute, app_process.run_daemon
    @asynccontextmanager
    async def run(*what, **more):
        async with running(*what, **more) as daemon: yield daemon
        if os.environ["WHEN"] == "the loop turns no more": os.kill(os.getpid(), signal.SIGTERM)
    async def leave(*what):
        if os.environ["WHEN"] == "it leaves": os.kill(os.getpid(), signal.SIGTERM)
        return await leaving(*what)
    def become(*what):
        if os.environ["WHEN"] == "it has left, but for a thread":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        if os.environ["WHEN"].startswith("it has left"): os.kill(os.getpid(), signal.SIGTERM)
        if os.environ["WHEN"] == "it has hung up": os.kill(os.getpid(), signal.SIGHUP)
        execute(*what)
    Sessions.__aexit__, DaemonProgram.execute, app_process.run_daemon = leave, become, run
"""


@pytest.mark.parametrize(
    "when", ["it leaves", "the loop turns no more", "it has left", "it has left, but for a thread"]
)
def test_a_stop_during_a_restart_follows_it(start_daemon: StartDaemon, identity: Identity, when: str) -> None:
    script = Path(identity.write(identity.base / "signals" / "sitecustomize.py", SIGNALLING))
    daemon = start_daemon(env={"SANDBOXD_TEST_SITE": str(script.parent), "WHEN": when})
    command = daemon.popen("run", "--", "sleep", "60")
    wait_until(lambda: commands_of(daemon) == 1, "it runs")
    daemon.popen("restart").wait()
    assert daemon.process.wait(30) == 0, daemon.output()
    assert "taken over from the daemon before" in daemon.output()
    assert command.wait(30) != 0


def test_a_hang_up_while_it_is_restarted_ends_nothing(start_daemon: StartDaemon, identity: Identity) -> None:
    script = Path(identity.write(identity.base / "signals" / "sitecustomize.py", SIGNALLING))
    daemon = start_daemon(env={"SANDBOXD_TEST_SITE": str(script.parent), "WHEN": "it has hung up"})
    assert daemon.run("restart").returncode == 0, daemon.output()
    assert json.loads(daemon.run("status", "--json").stdout)["restarts"] == 1
    assert daemon.stop() == 0


def commands_of(daemon: DaemonProcess) -> int:
    return sum(one["commands"] for one in json.loads(daemon.run("status", "--json").stdout)["sessions"])


# The system refuses to replace the program, as when there is no memory for its arguments.
REFUSED = """
import errno, os, signal
if not {"SANDBOXD_HANDOVER", "SANDBOXD_TRIAL"} & os.environ.keys():
    def refuse(*what):
        os.execve = execute
        if os.environ["ENDS"]: os.kill(os.getpid(), signal.SIGTERM)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    execute, os.execve = os.execve, refuse
"""


@pytest.mark.parametrize("ends", [False, True])
def test_a_failed_exec_goes_on_with_everything(
    start_daemon: StartDaemon, identity: Identity, origin: Origin, ends: bool
) -> None:
    script = Path(identity.write(identity.base / "refused" / "sitecustomize.py", REFUSED))
    daemon = start_daemon(
        resolve={"ok.test": "127.0.0.1"},
        settings={"sandbox": {"network": {"allowedDomains": ["ok.test"]}}},
        env={"SANDBOXD_TEST_SITE": str(script.parent), "ENDS": "yes" if ends else ""},
    )
    words = ["sh", "-c", f"echo up; read line; curl -sSf http://ok.test:{origin.port}/"]
    command = daemon.popen("run", "--", *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdout is not None and command.stdout.readline() == b"up\n"
    daemon.popen("restart").wait()
    wait_until(lambda: "this one continues" in daemon.output(), "it was refused")
    if ends:
        assert daemon.process.wait(30) == 0, daemon.output()
        command.communicate(timeout=30)
        assert command.returncode != 0
        return
    assert daemon.run("restart").returncode == 0, daemon.output()
    output, _ = command.communicate(b"go on\n", timeout=30)
    assert (output, command.returncode) == (origin.body, 0), daemon.output()
    status = json.loads(daemon.run("status", "--json").stdout)
    assert (status["restarts"], status["restarted"]["lost"]) == (2, [])
    assert daemon.stop() == 0
