"""Signals from outside, the terminal, and stopping: the command is treated as if it had been started directly."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import Descriptors, Exited, Failed, Started
from sandboxd.backends.linux.helper.launch_configuration import Flags
from support import processes
from support.users import Identity
from support.waiting import LIMIT_S, wait_until

from .conftest import Launcher, Sandbox, configuration


def init_of(sandbox: Sandbox) -> int:
    """The helper as process 1, found as the client finds it: the child of bubblewrap."""
    return int(Path(f"/proc/{sandbox.process.pid}/task/{sandbox.process.pid}/children").read_text())


def read_line(sandbox: Sandbox) -> bytes:
    assert sandbox.process.stdout is not None
    return bytes(sandbox.process.stdout.readline())


class TestForwarded:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
    def test_a_request_to_end_reaches_a_shell_and_what_it_waits_for(self, launch: Launcher, number: int) -> None:
        """A shell acts on a trap only when its child has ended, so the child must hear of it as well."""
        sandbox = launch(["bash", "-c", "trap 'echo got; exit 3' TERM INT HUP QUIT; echo up; sleep 1000; echo no"])
        sandbox.expect(Started())
        assert read_line(sandbox) == b"up\n"
        wait_until(lambda: "sleep" in {p.name for p in processes.descendants(sandbox.process.pid)}, "sleep")
        os.kill(init_of(sandbox), number)
        sandbox.expect(Exited(3, 0))
        assert sandbox.finish()[:2] == (3, "got\n")

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGALRM, 40])
    def test_any_other_goes_to_the_command_alone(self, launch: Launcher, number: int) -> None:
        script = """
import os, signal, subprocess, sys
number = int(sys.argv[1])
child = subprocess.Popen(["sleep", "1000"])
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
print("up", flush=True)
signal.sigwait([number])
print(child.poll(), flush=True)
os._exit(4)
"""
        sandbox = launch.python(script, str(int(number)))
        sandbox.expect(Started())
        assert read_line(sandbox) == b"up\n"
        os.kill(init_of(sandbox), number)
        assert sandbox.finish() == (4, "None\n", "")

    def test_one_that_nobody_handles_ends_the_command(self, launch: Launcher) -> None:
        sandbox = launch(["sleep", "1000"])
        sandbox.expect(Started())
        os.kill(init_of(sandbox), signal.SIGUSR1)
        sandbox.expect(Exited(128 + signal.SIGUSR1, signal.SIGUSR1))

    def test_stop_and_continue(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "echo up; read line; exit 5"], stdin=subprocess.PIPE)
        sandbox.expect(Started())
        assert read_line(sandbox) == b"up\n"
        init = init_of(sandbox)
        (shell,) = processes.descendants(init)
        os.kill(init, signal.SIGTSTP)
        wait_until(lambda: processes.read_process(shell.pid).state == "T", "stopped")  # type: ignore[union-attr]
        assert processes.is_alive(init) and sandbox.process.poll() is None
        os.kill(init, signal.SIGCONT)
        sandbox.process.communicate(b"\n", timeout=LIMIT_S)
        assert sandbox.process.returncode == 5

    def test_a_stopped_command_that_is_asked_to_end_does(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "echo up; kill -STOP $$"])
        sandbox.expect(Started())
        assert read_line(sandbox) == b"up\n"
        init = init_of(sandbox)
        wait_until(lambda: [p for p in processes.descendants(init) if p.state == "T"], "stopped")
        os.kill(init, signal.SIGTERM)
        sandbox.expect(Exited(143, 15))

    def test_signals_from_inside_are_not_passed_on(self, launch: Launcher) -> None:
        script = "for s in TERM INT HUP QUIT USR1 USR2 KILL STOP TSTP CHLD SEGV; do kill -$s 1; done; sleep 0.1; exit 6"
        assert launch.run(["sh", "-c", script])[0] == 6


class TestBeforeTheStart:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
    def test_a_request_to_end(self, launch: Launcher, number: signal.Signals) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        os.kill(init_of(sandbox), number)
        assert sandbox.next_event() == Failed(f"ended before the start, by signal {int(number)}")
        status, out, err = sandbox.finish()
        assert (status, out) == (128 + number, "")
        assert err.startswith("sandboxd: ended before the start")

    def test_another_is_kept_for_the_command(self, launch: Launcher) -> None:
        sandbox = launch(["sleep", "1000"], flags=Flags.WAIT)
        os.kill(init_of(sandbox), signal.SIGUSR2)
        sandbox.send(b"G")
        sandbox.expect(Started(), Exited(128 + signal.SIGUSR2, signal.SIGUSR2))

    def test_an_ignored_hangup_stays_ignored(self, launch: Launcher) -> None:
        sandbox = launch.start(["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *launch.words()])
        sandbox.accept()
        sandbox.send(configuration(["echo", "ran"], flags=Flags.WAIT))
        sandbox.expect(Descriptors(0))
        os.kill(init_of(sandbox), signal.SIGHUP)
        sandbox.send(b"G")
        sandbox.expect(Started())
        assert sandbox.finish() == (0, "ran\n", "")


@dataclass
class Terminal:
    """A terminal whose foreground process group is that of the launch. `leader` is what an interactive shell would be:
    the leader of the session, in another group (the kernel stops no group without such a parent)."""

    master: int
    leader: int
    seen: bytes = b""

    def expect(self, text: bytes) -> None:
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], LIMIT_S)
            assert ready, f"{text!r} does not come; until now: {self.seen!r}"
            self.seen += os.read(self.master, 4096)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)


def lead_session(identity: Identity, words: list[str]) -> NoReturn:
    """Runs in the child that pty.fork has made."""
    try:
        job = os.fork()
        if job:
            os.waitpid(job, 0)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        if not identity.is_me:
            os.setgroups([])
            os.setgid(identity.gid)
            os.setuid(identity.uid)
        os.chdir("/")
        os.execve("/bin/sh", words, identity.environment())
    finally:
        os._exit(99)


class TestTerminal:
    @pytest.fixture
    def terminal(self, launch: Launcher) -> Iterator[Terminal]:
        identity = launch.identity
        leader, master = pty.fork()
        if leader == 0:
            lead_session(identity, ["sh", "-c", 'trap : INT QUIT; "$@"; echo status $?', "sh", *launch.words()])
        yield Terminal(master, leader)
        processes.end(leader)
        os.waitpid(leader, 0)
        os.close(master)

    def start(self, launch: Launcher, *words: str) -> Sandbox:
        sandbox = Sandbox(launch.listener, subprocess.Popen(["true"]))
        launch.started.append(sandbox)
        sandbox.accept()
        sandbox.send(configuration(words))
        sandbox.expect(Descriptors(0), Started())
        return sandbox

    def test_ctrl_c_is_for_the_command_to_handle(self, launch: Launcher, terminal: Terminal) -> None:
        """Bubblewrap survives it, and the command hears it once: not from the terminal and from init."""
        script = """
import signal, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
signal.signal(signal.SIGTERM, lambda *_: heard.append(100))
print("up", flush=True)
while not heard: time.sleep(0.01)
time.sleep(0.2)
print("heard", sum(heard), flush=True)
raise SystemExit(7)
"""
        self.start(launch, "python3", "-ISc", script)
        terminal.expect(b"up")
        terminal.type(b"\x03")
        terminal.expect(b"heard 1\r\n")
        terminal.expect(b"status 7")

    @pytest.mark.parametrize(("key", "number"), [(b"\x03", 2), (b"\x1c", 3)])
    def test_otherwise_it_ends_the_command(self, launch: Launcher, terminal: Terminal, key: bytes, number: int) -> None:
        sandbox = self.start(launch, "sh", "-c", "echo up; exec sleep 1000")
        terminal.expect(b"up")
        terminal.type(key)
        sandbox.expect(Exited(128 + number, number))

    def test_the_command_has_the_terminal(self, launch: Launcher, terminal: Terminal) -> None:
        script = """
import os, sys
tty = os.open("/dev/tty", os.O_RDWR)
print(os.isatty(0), os.getpgrp() == os.tcgetpgrp(tty), os.ttyname(0) != "", flush=True)
print(repr(sys.stdin.readline()), flush=True)
"""
        self.start(launch, "python3", "-ISc", script)
        terminal.expect(b"True True True\r\n")
        terminal.type(b"hello\n")
        terminal.expect(b"'hello\\n'")
        terminal.expect(b"status 0")

    def test_ctrl_z_stops_the_command_and_is_no_end(self, launch: Launcher, terminal: Terminal) -> None:
        self.start(launch, "sh", "-c", "echo up; read line; echo after $line; exit 9")
        terminal.expect(b"up")
        terminal.type(b"\x1a")

        def states() -> dict[str, str]:
            return {process.name: process.state for process in processes.descendants(terminal.leader)}

        wait_until(lambda: states() == {"sh": "T", "bwrap": "T", "sandboxd-init": "S"}, "all stopped but init")
        for process in processes.descendants(terminal.leader):
            os.kill(process.pid, signal.SIGCONT)
        terminal.type(b"x\n")
        terminal.expect(b"after x")
        terminal.expect(b"status 9")

    def test_job_control_of_a_shell_inside(self, launch: Launcher, terminal: Terminal) -> None:
        self.start(launch, "bash", "--norc", "--noprofile", "-i")
        terminal.expect(b"bash-")  # the prompt: what is typed while a shell sets up its terminal may be lost
        terminal.type(b"PS1=; sleep 1000\n")
        wait_until(lambda: [p for p in processes.descendants(terminal.leader) if p.name == "sleep"], "sleep")
        terminal.type(b"\x1a")
        terminal.expect(b"Stopped")
        terminal.type(b"fg\n")
        wait_until(
            lambda: [p for p in processes.descendants(terminal.leader) if p.name == "sleep" and p.state == "S"], "awake"
        )
        terminal.type(b"\x03")
        terminal.expect(b"^C")
        terminal.type(b"echo finished $((40+2)); exit 3\n")
        terminal.expect(b"finished 42")
        terminal.expect(b"status 3")
