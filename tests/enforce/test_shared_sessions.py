"""Sessions from the command line: named, of an agent, of $SANDBOXD_SESSION; and the commands that run in them."""

from __future__ import annotations

import json
import secrets
import subprocess
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.waiting import wait_until

# An agent that runs its commands through a shell, as hooks do. It says what each printed, and waits for a line.
AGENT = """
import subprocess, sys
for line in sys.argv[1:]:
    argv = ["sh", "-c", "sandboxd run --session auto -c '" + line + "'; true"]
    done = subprocess.run(argv, capture_output=True, text=True)
    print((done.stdout + done.stderr).strip() or "-", flush=True)
sys.stdin.readline()
"""
SERVING = """
import subprocess, sys
def start(line):
    argv = ["sh", "-c", f"sandboxd run --session auto -c '{line}'; true"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
with start(sys.argv[1]).stdout as server:
    assert server.readline().startswith("Serving")
    print(*start(sys.argv[2]).communicate()[0].split(), flush=True)
    sys.stdin.readline()
"""
KEEP = "echo kept >$TMPDIR/file; cat $TMPDIR/file"
SHOW = "cat $TMPDIR/file 2>/dev/null || echo absent"


@pytest.fixture
def daemon(share_daemon: StartDaemon) -> DaemonProcess:
    return share_daemon(settings={})


def sessions(daemon: DaemonProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(daemon.run("session", "list", "--json").stdout)["sessions"]
    return found


def agent(daemon: DaemonProcess, *lines: str) -> subprocess.Popen[str]:
    identity = daemon.identity
    argv = identity.python("-c", AGENT, *lines)
    return identity.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)


@pytest.fixture
def name(daemon: DaemonProcess) -> str:
    return f"web-{daemon.identity.project}"


def test_a_named_session_is_shared_until_it_is_ended(daemon: DaemonProcess, name: str) -> None:
    session_id = daemon.run("session", "start", "--name", name).stdout.strip()
    assert daemon.run("run", "--session", name, "sh", "-c", KEEP).stdout == "kept\n"
    assert daemon.run("run", "--session", session_id, "sh", "-c", SHOW).stdout == "kept\n"
    assert daemon.run("run", "sh", "-c", SHOW).stdout == "absent\n"
    assert session_id in daemon.run("session", "list").stdout
    assert daemon.run("session", "end", name).returncode == 0
    assert session_id not in daemon.run("session", "list").stdout
    done = daemon.run("run", "--session", name, "true")
    assert done.returncode == 125 and "hint: start another with: sandboxd session start" in done.stderr


def test_a_name_of_two_sessions_names_none(daemon: DaemonProcess, name: str) -> None:
    ids = [daemon.run("session", "start", "--name", name).stdout.strip() for _ in range(2)]
    done = daemon.run("run", "--session", name, "true")
    assert done.returncode == 125 and f"2 sessions have the name '{name}'" in done.stderr
    assert daemon.run("session", "end", ids[0]).returncode == 0
    assert daemon.run("run", "--session", name, "true").returncode == 0
    daemon.run("session", "end", ids[1])


def test_the_session_of_the_environment(daemon: DaemonProcess, name: str) -> None:
    daemon.run("session", "start", "--name", name)
    around = daemon.identity.environment(SANDBOXD_SESSION=name)
    code = """
import sys
from sandboxd_client import Client
with Client(role=sys.argv[1]) as box:
    print(box.run("cat $TMPDIR/file", capture_output=True, text=True).stdout)
"""
    run = daemon.identity.run
    assert run(daemon.identity.command("run", "sh", "-c", KEEP), env=around).stdout == "kept\n"
    assert run(daemon.identity.python("-c", code, "full"), env=around).stdout.strip() == "kept"
    assert run(daemon.identity.python("-c", code, "agent"), env=around).stdout.strip() == ""
    assert run(daemon.identity.python("-c", code, "full")).stdout.strip() == ""
    daemon.run("session", "end", name)


def test_a_shell_with_a_session_of_its_own(daemon: DaemonProcess) -> None:
    before = {one["session_id"] for one in sessions(daemon)}
    shell = "sandboxd run sh -c 'echo $SANDBOXD_SESSION >$TMPDIR/file'; sandboxd run sh -c 'cat $TMPDIR/file'; exit 3"
    environment = daemon.identity.environment(SHELL="/bin/sh")
    done = daemon.identity.run(daemon.identity.command("session", "shell"), env=environment, input=shell)
    assert done.returncode == 3 and done.stdout.startswith("s-"), done.stderr
    assert "this shell is not in the sandbox" in done.stderr
    assert {one["session_id"] for one in sessions(daemon)} <= before, "it has ended with the shell"


def test_each_agent_has_one_session_which_ends_with_it(daemon: DaemonProcess) -> None:
    first = agent(daemon, KEEP, SHOW)
    assert said(first, 2) == ["kept", "kept"]
    second = agent(daemon, SHOW, KEEP, SHOW)
    assert said(second, 3) == ["absent", "kept", "kept"]
    assert {one["agent"] for one in sessions(daemon)} >= {first.pid, second.pid}
    end(second)
    wait_until(lambda: second.pid not in {one["agent"] for one in sessions(daemon)}, "its session ends")
    assert first.pid in {one["agent"] for one in sessions(daemon)}
    end(first)


def test_commands_of_an_agent_share_tmp_and_localhost(daemon: DaemonProcess) -> None:
    """Those of another agent have neither."""
    shared = f"/tmp/sdt-{secrets.token_hex(8)}"
    serve = f"echo mine >{shared}; cd $TMPDIR; echo served >kept; exec python3 -u -m http.server 3000"
    look = f"cat {shared} 2>&-; curl -s localhost:3000/kept || echo refused"
    for line, seen in ((serve, ["mine", "served"]), ("echo Serving", ["refused"])):
        argv = daemon.identity.python("-c", SERVING, line, look)
        process = daemon.identity.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert [line.split() for line in said(process, 1)] == [seen]
        if line == serve:
            first = process
    end(process)
    end(first)


def test_an_agent_in_an_agent_has_a_session_of_its_own(daemon: DaemonProcess) -> None:
    code = f"""
import subprocess, sys
outer = ["sh", "-c", "sandboxd run --session auto -c '" + sys.argv[1] + "'"]
print(subprocess.run(outer, capture_output=True, text=True).stdout.strip(), flush=True)
inner = [sys.executable, "-c", {AGENT!r}, sys.argv[2]]
print(subprocess.run(inner, input="", capture_output=True, text=True).stdout.strip())
"""
    done = daemon.identity.run(daemon.identity.python("-c", code, KEEP, SHOW))
    assert done.stdout.split() == ["kept", "absent"], done.stderr


def test_a_given_key_finds_its_session_from_anywhere(daemon: DaemonProcess, name: str) -> None:
    run = ("run", "--session", f"auto:{name}", "sh", "-c")
    assert daemon.run(*run, KEEP).stdout == "kept\n"
    assert daemon.run(*run, SHOW).stdout == "kept\n"
    assert daemon.run("run", "--session", f"auto:{name}2", "sh", "-c", SHOW).stdout == "absent\n"
    assert [one["key"] for one in sessions(daemon) if name in one["key"]] == [name, f"{name}2"]
    daemon.run("session", "end", name, f"{name}2")


def test_an_agents_session_goes_on_over_a_restart(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    code = AGENT.replace("for line", "\nfor line").replace(
        "print((done", 'subprocess.run(["sandboxd", "restart"], capture_output=True); print((done'
    )
    process = daemon.identity.popen(
        daemon.identity.python("-c", code, KEEP, SHOW), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert said(process, 2) == ["kept", "kept"]
    end(process)
    wait_until(lambda: not any(one["agent"] for one in sessions(daemon)), "its session ends")


def test_a_connection_of_an_agent_joins_no_session(daemon: DaemonProcess, name: str) -> None:
    daemon.run("session", "start", "--name", name)
    code = """
import sys
from sandboxd_client import Client, SandboxdError
with Client(role=sys.argv[1]) as box:
    for act in (
        lambda: box.session_join(key=sys.argv[2]),
        lambda: box.run("true", session_id=sys.argv[2]),
        lambda: box.command_list(session_id=sys.argv[2]),
    ):
        try:
            act()
            print("joined")
        except SandboxdError as error:
            print(error.slug)
"""
    assert daemon.python(code, "agent", name).stdout.split() == ["not_permitted"] * 3
    assert daemon.python(code, "full", f"{name}-x").stdout.split() == ["joined"] * 3
    daemon.run("session", "end", name, f"{name}-x")


SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
sum(range(20_000_000))
print(server.getsockname()[1], flush=True)
server.accept()
"""


def test_running_commands_are_listed_and_killed(daemon: DaemonProcess, name: str) -> None:
    daemon.run("session", "start", "--name", name)
    argv = daemon.identity.command("run", "--session", name, *daemon.identity.python("-I", "-c", SERVER))
    server = daemon.identity.popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    (listed,) = json.loads(daemon.run("ps", "--session", name, "--json").stdout)["commands"]
    assert listed["ports"] == [port] and listed["session_name"] == name
    assert listed["cpu_s"] > 0 and listed["memory"] > 1 << 20 and listed["processes"] >= 1
    short = listed["wrap_id"][:12]
    line = next(line for line in daemon.run("ps").stdout.splitlines() if line.startswith(short))
    assert name in line and str(port) in line and "create_server" in line
    wrong = daemon.run("kill", "0000")
    assert wrong.returncode == 125 and "no running command has the id '0000'" in wrong.stderr
    done = daemon.run("kill", short)
    assert done.returncode == 0 and f"command {short} has ended with status 143" in done.stderr
    server.communicate(timeout=60)
    assert server.returncode == 143
    assert short not in daemon.run("ps").stdout
    daemon.run("session", "end", name)


def test_a_command_inside_neither_lists_nor_kills(daemon: DaemonProcess) -> None:
    for words in (("ps",), ("kill", "0000"), ("session", "list"), ("run", "--session", "auto", "true")):
        done = daemon.run("run", *daemon.identity.command(words[0], "--no-autostart", *words[1:]))
        assert done.returncode == 125, done.stdout
    assert daemon.run("ps").returncode == 0


MANY = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from sandboxd_client import Client
SERVER = '''
import socket, sys
server = socket.create_server(("127.0.0.1", 3000))
print("listening", flush=True)
while True:
    server.accept()[0].sendall(sys.argv[1].encode())
'''
CLIENT = "import socket; print(socket.create_connection(('127.0.0.1', 3000)).recv(99).decode())"
PYTHON = [sys.executable, "-I", "-S", "-c"]
with Client() as box, ThreadPoolExecutor(8) as pool:
    names = [f"{sys.argv[1]}-{n}" for n in range(50)]
    ids = {name: box.session_join(key=name).session_id for name in names}
    def serve(name):
        child = box.spawn([*PYTHON, SERVER, name], session_id=ids[name], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "listening\\n"
        return child
    def ask(name):
        return box.run([*PYTHON, CLIENT], session_id=ids[name], capture_output=True, text=True)
    children = list(pool.map(serve, names))
    for name, done in zip(names, pool.map(ask, names)):
        print("right" if done.stdout == name + "\\n" else done)
    for name in names:
        box.session_close(ids[name])
    for child in children:
        child.communicate()
"""


def test_fifty_sessions_serve_one_port_each(daemon: DaemonProcess, name: str) -> None:
    done = daemon.python(MANY, name)
    assert done.stdout.split("\n")[:-1] == ["right"] * 50, done
