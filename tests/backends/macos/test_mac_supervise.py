"""The supervisor: nothing runs without the daemon, signals and status are the command's, and the command ends with its
owner. Real processes, with a test in the daemon's place."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.macos import supervise
from sandboxd.backends.macos.backend import STAGE
from sandboxd.backends.macos.supervise import NO_TERMINAL, with_loader_variables
from support.processes import is_alive
from support.terminal import Terminal
from support.users import SYSTEM_PATH
from support.waiting import wait_until

SCRIPT = supervise.__file__


@dataclass
class Daemon:
    """The other end: accepts one supervisor and talks to it."""

    path: Path
    listener: socket.socket
    connection: socket.socket | None = None
    heard: list[str] = field(default_factory=list)

    def accept(self, answer: bytes = b"go 300\n") -> None:
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(20)
        assert self.line() == "ticket t-1"
        self.connection.sendall(answer)

    def line(self) -> str:
        assert self.connection is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = self.connection.recv(1)
            if not byte:
                return "EOF"
            line += byte
        return line.decode().rstrip("\n")

    def say(self, text: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(text)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        made = Daemon(path, listener)
        yield made
        made.close()


def words(daemon: Daemon, *command: str) -> list[str]:
    """Without sandbox-exec: the first shell alone is what the supervisor starts."""
    stage = ["/bin/sh", "-c", STAGE, "sandboxd", *command]
    return [sys.executable, "-I", "-S", SCRIPT, str(daemon.path), "t-1", "--", *stage]


def start(daemon: Daemon, *command: str, **keywords: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **keywords}
    process: subprocess.Popen[str] = subprocess.Popen(words(daemon, *command), text=True, **pipes)
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_the_status_is_the_commands(daemon: Daemon, status: int) -> None:
    process = start(daemon, "sh", "-c", f"echo out; echo err >&2; exit {status}")
    daemon.accept()
    assert finish(process) == (status, "out\n", "err\n")
    assert daemon.line().startswith("started ")
    assert daemon.line() == f"exit {status}"
    assert daemon.line() == "EOF"


def test_a_signal_is_128_and_its_number(daemon: Daemon) -> None:
    process = start(daemon, "sh", "-c", "kill -TERM $$")
    daemon.accept()
    assert finish(process)[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "status"), [("/no/such/program", 127), ("no-such-program", 127), ("/etc/passwd", 126)]
)
def test_what_cannot_be_started(daemon: Daemon, command: str, status: int) -> None:
    # Of a directory on PATH that may not be looked into execvp(3) says EACCES and not ENOENT (su keeps root's PATH).
    process = start(daemon, command, env={**os.environ, "PATH": SYSTEM_PATH})
    daemon.accept()
    assert finish(process)[0] == status
    assert daemon.line().startswith("started ")
    assert daemon.line() == f"exit {status}"


def test_a_relayed_terminal_is_the_commands_own(daemon: Daemon) -> None:
    """Where TIOCSTI cannot be refused: what a command types there reaches no shell outside."""
    look = "tty; stty size; read line; echo got:$line; stty -a | grep -q isig && exit 9"
    with Terminal(words(daemon, "sh", "-c", look)) as terminal:
        terminal.resize(33, 77)
        before = terminal.attributes()
        daemon.accept(b"go 300 terminal\n")
        inside = terminal.expect(r"^(/dev/\S+)\r")[1]
        terminal.expect("33 77")
        assert os.stat(inside).st_rdev != os.fstat(terminal._master).st_rdev
        assert not Path(f"/proc/{terminal.pid}/fd/0").samefile(inside)
        terminal.type("word")
        terminal.expect("got:word")
        assert terminal.wait() == 9
        assert terminal.attributes() == before


def test_the_profile_names_the_terminal_of_the_command(daemon: Daemon) -> None:
    with Terminal(words(daemon, "sh", "-c", 'echo "$0 $(tty)"', NO_TERMINAL)) as terminal:
        daemon.accept()
        found = terminal.expect(r"TERMINAL=(\S+) (\S+)\r")
        assert found[1] == found[2] != "/dev/null"
    daemon.close()
    process = start(daemon, "sh", "-c", 'echo "$0"', NO_TERMINAL, stdin=subprocess.DEVNULL)
    daemon.accept()
    assert finish(process)[:2] == (0, f"{NO_TERMINAL}\n")


def test_variables_of_the_loader_reach_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS removes them at each program of its own, and env(1) sets them behind the last one."""
    usual = ["/usr/bin/sandbox-exec", "-p", "x", "--", "/bin/sh", "-c", STAGE, "sandboxd", "make", "--", "all"]
    assert with_loader_variables(usual) == usual
    monkeypatch.setenv("DYLD_LIBRARY_PATH", "/opt/lib")
    assert with_loader_variables(usual)[8:] == ["/usr/bin/env", "DYLD_LIBRARY_PATH=/opt/lib", "make", "--", "all"]


def test_nothing_runs_without_a_daemon(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, str(tmp_path / "none"), "t", "--", "/bin/sh", "-c", f"touch {marker}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 125 and not marker.exists()
    assert done.stderr.startswith("sandboxd: the daemon does not answer at ") and "\nhint: " in done.stderr


@pytest.mark.parametrize("answer", [b"", b"no\n", b"go\n", b"go x\n", b"\n"])
def test_nothing_runs_when_the_daemon_refuses(daemon: Daemon, tmp_path: Path, answer: bytes) -> None:
    marker = tmp_path / "ran"
    process = start(daemon, "touch", str(marker))
    daemon.accept(answer)
    daemon.close()
    status, out, err = finish(process)
    assert (status, out) == (125, "") and "sandboxd: the daemon did not accept this launch" in err
    assert not marker.exists()


def test_bad_usage_is_no_crash() -> None:
    for arguments in ([], ["a", "b", "c", "d"], ["a", "b", "--"]):
        done = subprocess.run([sys.executable, "-I", "-S", SCRIPT, *arguments], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (125, "") and done.stderr.startswith("sandboxd: usage")


def test_a_sandbox_that_cannot_be_set_up_is_125(daemon: Daemon) -> None:
    """The first program inside never spoke: the profile did not hold, whatever the status."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", SCRIPT, str(daemon.path), "t-1", "--", "/bin/sh", "-c", "echo no >&2; exit 65"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    daemon.accept()
    status, _, err = finish(process)
    assert status == 125 and "no\nsandboxd: the sandbox could not be set up: sh ended with status 65\nhint: " in err
    assert daemon.line() == "failed the sandbox could not be set up: sh ended with status 65"
    assert daemon.line() == "EOF"


def test_a_missing_sandbox_exec_is_125(daemon: Daemon) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", SCRIPT, str(daemon.path), "t-1", "--", "/no/sandbox-exec", "-p", "x"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    daemon.accept()
    assert finish(process)[0] == 125
    assert daemon.line() == "failed cannot start /no/sandbox-exec: No such file or directory"


def test_streams_and_descriptors(daemon: Daemon) -> None:
    """Standard streams are the command's own; nothing else of the client reaches it."""
    reading, writing = os.pipe()
    with subprocess.Popen(
        words(daemon, "sh", "-c", "cat; ls /proc/self/fd | sort -n | tr '\\n' ' '"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(reading, writing),
    ) as process:  # fmt: skip
        daemon.accept()
        out, _ = process.communicate("hello ", timeout=30)
    os.close(reading)
    os.close(writing)
    assert out.split()[0] == "hello"
    assert [int(word) for word in out.split()[1:]] == [0, 1, 2, 3]  # 3 is the listing itself


def test_default_dispositions_and_an_empty_mask(daemon: Daemon) -> None:
    process = start(daemon, "cat", "/proc/self/status")
    daemon.accept()
    _, out, _ = finish(process)
    fields = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
    named = (1 << 31) - 1  # 32 and above belong to the C library
    assert int(fields["SigIgn"], 16) & named == 0 and int(fields["SigBlk"], 16) & named == 0


TRAP = "trap 'echo got {0}; exit 3' {0}; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1", "INT", "QUIT"])
def test_signals_reach_the_command(daemon: Daemon, name: str) -> None:
    """Without a terminal: everything is passed on."""
    process = start(daemon, "bash", "-c", TRAP.format(name), start_new_session=True)
    daemon.accept()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, f"SIG{name}"))
    status, out, _ = finish(process)
    assert (status, out) == (3, f"got {name}\n")


def test_stopping_and_going_on(daemon: Daemon) -> None:
    # A job of its own below a process of the same session: in an orphaned process group, which that of the tests may be
    # (su, setsid, a CI job), the kernel lets no terminal signal stop anything (setpgid(2), POSIX 2.4.3).
    script = "echo $$; read line; echo $line"
    process = start(daemon, "sh", "-c", script, stdin=subprocess.PIPE, process_group=0)
    daemon.accept()
    assert process.stdout is not None
    command = int(process.stdout.readline())

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state(command) == "T" and state(process.pid) == "T", "both are stopped")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: state(command) != "T", "the command goes on")
    out, _ = process.communicate("x\n", timeout=30)
    assert (process.returncode, out) == (0, "x\n")


def test_the_daemon_ends_the_command(daemon: Daemon) -> None:
    process = start(daemon, "bash", "-c", TRAP.format("TERM"))
    daemon.accept()
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    daemon.say(b"term\n")
    assert finish(process)[0] == 3


def test_a_command_that_ignores_term_is_killed_after_the_grace(daemon: Daemon) -> None:
    process = start(daemon, "bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    daemon.accept()
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    daemon.say(b"term\n")
    assert finish(process)[0] == 128 + signal.SIGKILL
    assert daemon.line().startswith("started ") and daemon.line() == "signal 9"


def test_kill_is_at_once_also_in_pieces_and_with_nonsense_around(daemon: Daemon) -> None:
    process = start(daemon, "sleep", "300")
    daemon.accept()
    assert daemon.line().startswith("started ")
    for piece in (b"what\nki", b"ll", b"\n"):
        daemon.say(piece)
    assert finish(process)[0] == 137


def test_the_command_goes_on_without_the_daemon(daemon: Daemon) -> None:
    process = start(daemon, "sh", "-c", "read line; echo $line", stdin=subprocess.PIPE)
    daemon.accept()
    assert daemon.line().startswith("started ")
    daemon.close()
    daemon.connection = None
    out, _ = process.communicate("still here\n", timeout=30)
    assert (process.returncode, out) == (0, "still here\n")


OWNER = """
import subprocess, sys, time
process = subprocess.Popen(sys.argv[2:])
open(sys.argv[1], "w").write(str(process.pid))
time.sleep(300)
"""


def test_the_command_ends_with_its_owner(daemon: Daemon, tmp_path: Path) -> None:
    note, inner = tmp_path / "supervisor", tmp_path / "command"
    command = words(daemon, "sh", "-c", f"echo $$ > {inner}; exec sleep 300")
    with subprocess.Popen([sys.executable, "-c", OWNER, str(note), *command]) as owner:
        daemon.accept()
        assert daemon.line().startswith("started ")
        wait_until(lambda: inner.exists() and bool(inner.read_text().strip()), "the command runs")
        owner.kill()
        owner.wait()
    assert daemon.line() == "signal 9"
    for file in (note, inner):
        wait_until(lambda file=file: not is_alive(int(file.read_text())), f"{file.name} has ended")  # type: ignore[misc]


def test_an_owner_that_is_gone_already(daemon: Daemon, tmp_path: Path) -> None:
    """Between the spawn and the daemon's word: nothing is run."""
    marker = tmp_path / "ran"
    command = words(daemon, "touch", str(marker))
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "pid"), *command]) as owner:
        daemon.connection, _ = daemon.listener.accept()
        daemon.connection.settimeout(20)
        assert daemon.line() == "ticket t-1"
        owner.kill()
        owner.wait()
    daemon.say(b"go 300\n")
    assert daemon.line() == "EOF"
    assert not marker.exists()


def test_an_owner_is_noticed_without_the_help_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing announces the end of a process, the loop wakes up and looks at its parent."""
    monkeypatch.setattr(sys, "platform", "another")
    assert supervise.watch_process(os.getpid()) is None


def test_kqueue_is_used_as_its_manual_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no kqueue here: what is asked of it is written down."""
    asked: list[tuple[object, ...]] = []

    class Queue:
        def control(self, changes: list[object], limit: int) -> list[object]:
            asked.append((*changes, limit))
            return []

        def fileno(self) -> int:
            return 77

    names = {"KQ_FILTER_PROC": "proc", "KQ_EV_ADD": "add", "KQ_NOTE_EXIT": "exit"}
    for name, value in {"kqueue": Queue, "kevent": lambda *what: what, **names}.items():
        monkeypatch.setattr(select, name, value, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert supervise.watch_process(4711) == 77
    assert asked == [((4711, "proc", "add", "exit"), 0)]
