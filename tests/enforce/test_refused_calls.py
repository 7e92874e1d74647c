"""What the kernel refuses to a real command is known while it happens, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess

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


def test_by_default_writes_are_reported_that_the_mounts_refuse(daemon: DaemonProcess, outside: Path) -> None:
    workspace = daemon.identity.workspace
    (workspace / ".mcp.json").write_text("{}")
    daemon.identity.own(workspace / ".mcp.json")
    line = (
        f"mkdir a && touch a/b && echo x >a/b && mv a/b a/c && rm -r a && echo y >/dev/null && mkdir -p {outside}; "
        f"rm -f {outside}/missing; cat {outside}/file; mkdir {outside}/new; echo x >{outside}/file"
    )
    status, _, violations = run(daemon, line)
    assert status != 0
    reported = sorted((kind, operation, target, process) for kind, operation, target, process, _, _ in violations)
    assert reported == [
        ("write", "mkdir", f"{outside}/new", "mkdir"),
        ("write", "openat", f"{outside}/file", "bash"),
    ]
    assert {(source, command) for *_, source, command in violations} == {("seccomp", "c-1")}
    # mv copies from one mount to another, and before that removes the target: that fails although there is none
    _, _, violations = run(daemon, f"touch d; mv d {outside}/; touch e; mv e {outside}/file")
    assert {target for _, _, target, *_ in violations} == {f"{outside}/d", f"{outside}/file"}
    assert not (outside / "new").exists() and (outside / "file").read_text() == "x"
    _, _, violations = run(daemon, "echo x >.mcp.json; rm .mcp.json; mkdir .vscode")
    found = {(operation, Path(target).name) for _, operation, target, _, _, _ in violations}
    assert {("openat", ".mcp.json"), ("unlinkat", ".mcp.json"), ("mkdir", ".vscode")} <= found
    code = "from sandboxd_client import Client\nprint(*Client(autostart=False).wrap(argv=['true'], cwd='.').layers)"
    assert "seccomp-notify" in daemon.python(code, cwd=workspace).stdout.split()


def test_nothing_is_reported_where_nobody_wants_to_know(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"reportViolations": "off"}})
    status, said, violations = run(daemon, f"mkdir {daemon.identity.home}/new")
    assert status != 0 and "Read-only file system" in said and violations == []


TWICE = """
import json
from sandboxd_client import Client
with Client(autostart=False) as box:
    for name in ("one", "two"):
        done = box.run(f"echo $$; mkdir ~/{name}", capture_output=True, text=True, command_id=name)
        print(json.dumps([done.stdout, [[v.target.rpartition("/")[2], v.command_id] for v in done.violations]]))
"""


def test_a_reused_pid_is_not_the_old_command(daemon: DaemonProcess) -> None:
    """The processes of every command have the same numbers; what each is refused is still its own."""
    done = daemon.python(TWICE, cwd=daemon.identity.workspace)
    (first, one), (second, two) = map(json.loads, done.stdout.splitlines())
    assert first == second
    assert one == [["one", "one"]] and two == [["two", "two"]]
