"""What the kernel refuses to a real command is known while it happens, and nothing else is (F240, F241)."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess
from support.waiting import wait_until

StartDaemon = Callable[..., DaemonProcess]

RUN = """
import json, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    done = box.run(sys.argv[1], capture_output=True, text=True, command_id="c-1")
    print(json.dumps([done.returncode, done.stdout, done.stderr, [
        [v.kind, v.operation, v.target, v.process, v.source, v.command_id] for v in done.violations]]))
"""


def run(daemon: DaemonProcess, line: str) -> tuple[int, str, list[list[Any]]]:
    done = daemon.python(RUN, line, cwd=daemon.identity.workspace)
    assert done.returncode == 0, done.stderr
    status, out, err, violations = json.loads(done.stdout)
    return status, out + err, violations


@pytest.fixture
def outside(daemon: DaemonProcess) -> Path:
    """A directory that is not writable inside, with a file."""
    place = daemon.identity.home / "elsewhere"
    place.mkdir()
    (place / "file").write_text("x")
    daemon.identity.own(place / "file")
    return daemon.identity.own(place)


def test_writes_outside_are_reported_and_those_inside_are_not(daemon: DaemonProcess, outside: Path) -> None:
    line = (
        f"mkdir a && touch a/b && echo x >a/b && mv a/b a/c && rm -r a && echo y >/dev/null && mkdir -p {outside}; "
        f"rm -f {outside}/missing; cat {outside}/file; mkdir {outside}/new; echo x >{outside}/file"
    )
    status, _, violations = run(daemon, line)
    assert status != 0
    found = sorted((kind, operation, target, process) for kind, operation, target, process, _, _ in violations)
    assert found == [
        ("write", "mkdir", f"{outside}/new", "mkdir"),
        ("write", "openat", f"{outside}/file", "bash"),
    ]
    assert {(source, command) for *_, source, command in violations} == {("seccomp", "c-1")}
    assert not (outside / "new").exists() and (outside / "file").read_text() == "x"


def test_nothing_is_reported_where_nobody_wants_to_know(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"reportViolations": "off"}})
    status, said, violations = run(daemon, f"mkdir {daemon.identity.home}/new")
    assert status != 0 and "Read-only file system" in said and violations == []


@pytest.mark.parametrize("mode", ["writes", "all"])
def test_reads_of_denied_paths(start_daemon: StartDaemon, mode: str) -> None:
    settings = {"sandbox": {"reportViolations": mode, "filesystem": {"denyRead": ["./s", "./key"]}}}
    daemon = start_daemon(settings=settings)
    workspace = daemon.identity.workspace
    (workspace / "s").mkdir()
    for name in ("s/a", "key"):
        (workspace / name).write_text("secret")
        daemon.identity.own(workspace / name)
    daemon.identity.own(workspace / "s")
    status, said, violations = run(daemon, "cat s/a; ls s; cat key; cat missing")
    assert status != 0 and "secret" not in said
    found = {(kind, operation, target) for kind, operation, target, _, source, _ in violations if source == "seccomp"}
    expected = {("read", "openat", str(workspace / name)) for name in ("s/a", "s", "key")}
    assert found == (expected if mode == "all" else set())


def test_a_protected_file(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    (workspace / ".mcp.json").write_text("{}")
    daemon.identity.own(workspace / ".mcp.json")
    _, _, violations = run(daemon, "echo x >.mcp.json; rm .mcp.json; mkdir .vscode")
    found = {(operation, Path(target).name) for _, operation, target, _, _, _ in violations}
    assert {("openat", ".mcp.json"), ("unlinkat", ".mcp.json"), ("mkdir", ".vscode")} <= found


def test_the_layer_is_named(daemon: DaemonProcess) -> None:
    code = "from sandboxd_client import Client\nprint(*Client(autostart=False).wrap(argv=['true'], cwd='.').layers)"
    assert "seccomp-notify" in daemon.python(code, cwd=daemon.identity.workspace).stdout.split()


def test_events_come_while_the_command_runs(daemon: DaemonProcess, outside: Path) -> None:
    code = """
import sys, threading, time
from sandboxd_client import Client
with Client(autostart=False) as watching, Client(autostart=False) as box:
    session = box.session_open(cwd=".")
    watching.violation_subscribe(session_id=session.session_id)
    words = ["sh", "-c", f"mkdir {sys.argv[1]}/new; read line"]
    with box.spawn(words, session_id=session.session_id, stdin=-1) as process:
        for note in watching.notifications(timeout=20):
            print(note.params.violation.target if hasattr(note.params, "violation") else note.params)
            break
        process.communicate(b"\\n")
"""
    done = daemon.python(code, str(outside), cwd=daemon.identity.workspace)
    assert f"{outside}/new" in done.stdout, done.stderr


class TestUnixSockets:
    def test_f061_an_ssh_agent_that_is_listed(self, start_daemon: StartDaemon) -> None:
        daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": ["~/agent.sock"]}}})
        path = daemon.identity.home / "agent.sock"
        key = daemon.identity.home / "key"
        with daemon.identity.popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL) as agent:
            try:
                wait_until(path.exists, "the agent listens")
                for words in (
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a-key", "-f", str(key)],
                    ["env", f"SSH_AUTH_SOCK={path}", "ssh-add", "-q", str(key)],
                ):
                    assert daemon.identity.popen(words, stdin=subprocess.DEVNULL).wait() == 0
                status, said, violations = run(daemon, f"SSH_AUTH_SOCK={path} ssh-add -l")
                assert (status, violations) == (0, []) and "a-key" in said
            finally:
                agent.terminate()

    def test_f050_another_socket_is_refused_and_reported(self, start_daemon: StartDaemon) -> None:
        daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": ["~/a.sock"]}}})
        home = daemon.identity.home
        with socket.socket(socket.AF_UNIX) as allowed, socket.socket(socket.AF_UNIX) as other:
            for server, name in ((allowed, "a.sock"), (other, "b.sock")):
                server.bind(str(home / name))
                daemon.identity.own(home / name)
                server.listen()
            line = (
                "python3 -c 'import socket, sys\nfor name in sys.argv[1:]:\n s = socket.socket(1)\n"
                f" print(s.connect_ex(name))' {home}/a.sock {home}/b.sock {home}/missing"
            )
            status, said, violations = run(daemon, line)
            assert (status, said.split()) == (0, ["0", "13", "2"])
            assert [(kind, target) for kind, _, target, *_ in violations] == [("unix-socket", f"{home}/b.sock")]
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.accept()
