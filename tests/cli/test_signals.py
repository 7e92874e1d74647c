"""Signals sent to `sandboxd run` with kill(2): handed on to the command, with a grace period."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd_client.testing import FakeDaemon
from support import processes
from support.waiting import wait_until

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


def in_namespace(params: Any) -> list[str]:
    """Bubblewrap ignores INT and QUIT, as the real launch has it do; its process 1 starts with the defaults again."""
    return [
        sys.executable, "-S", "-c",
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGQUIT, signal.SIG_IGN)\n"
        "os.execvp(sys.argv[1], sys.argv[1:])",
        "bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-user", "--unshare-pid",
        "--as-pid-1", "--", sys.executable, "-S", "-c",
        "import os, signal, sys\n"
        "for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE): signal.signal(number, signal.SIG_DFL)\n"
        "os.execvp(sys.argv[1], sys.argv[1:])",
        "/bin/bash", "-c", params["command"],
    ]  # fmt: skip


@pytest.fixture(params=["bare", "namespace"])
def tree(request: pytest.FixtureRequest, fake: FakeDaemon) -> str:
    if request.param == "namespace":
        fake.argv = in_namespace
    return str(request.param)


def begun(cli: CommandLine, command: str, *options: str) -> subprocess.Popen[str]:
    process = cli.popen("run", *options, "-c", command)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


LOOP = "echo ready; while :; do sleep 0.02; done"


@pytest.mark.parametrize("number", [*ENDING, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_handed_on_and_the_status_is_the_commands(
    cli: CommandLine, tree: str, number: signal.Signals
) -> None:
    with begun(cli, f"trap 'echo got; exit 3' {number.name.removeprefix('SIG')}; {LOOP}") as process:
        process.send_signal(number)
        assert process.communicate()[0] == "got\n"
    assert process.returncode == 3


@pytest.mark.parametrize("number", ENDING)
def test_a_command_that_does_not_end_is_killed_after_the_grace(
    cli: CommandLine, tree: str, number: signal.Signals
) -> None:
    before = {process.pid for process in processes.descendants()}
    ignoring = f"trap : {' '.join(n.name.removeprefix('SIG') for n in ENDING)}; {LOOP}"
    with begun(cli, ignoring, "--grace", "0.1") as process:
        process.send_signal(number)
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 137
    wait_until(lambda: {process.pid for process in processes.descendants()} <= before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_daemon_is_asked_ends_it(cli: CommandLine, fake: FakeDaemon, number: signal.Signals) -> None:
    """As it ends any program that runs nothing: by the signal, without a word, and no command is run later."""
    asked, answer = threading.Event(), threading.Event()

    def wait(params: Any) -> list[str]:
        asked.set()
        answer.wait()
        return ["/usr/bin/touch", str(mark)]

    mark = Path(fake.socket).with_name("ran")
    fake.argv = wait
    with cli.popen("run", "--", "true", stderr=subprocess.PIPE) as process:
        try:
            assert asked.wait(60)
            process.send_signal(number)
            process.wait(60)
        finally:
            answer.set()
        assert process.communicate() == ("", "")
    assert process.returncode == -number
    assert not mark.exists()
    assert cli.run("run", "--", "true").returncode == 0
    assert mark.exists()


def test_other_signals_start_no_grace_period(cli: CommandLine, tree: str) -> None:
    with begun(cli, f"trap 'echo one' USR1; trap 'exit 4' TERM; {LOOP}", "--grace", "0.05") as process:
        assert process.stdout is not None
        for _ in range(5):
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 4


def test_a_command_that_dies_of_the_signal(cli: CommandLine) -> None:
    with begun(cli, "echo ready; exec sleep 300") as process:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 143


def test_signals_of_the_command_to_its_group_are_not_returned(cli: CommandLine, fake: FakeDaemon) -> None:
    """`kill 0` from inside reaches this process too. Handed on, the command would get it twice, and then be killed."""
    fake.argv = in_namespace
    command = "trap 'n=$((n+1))' TERM; kill -TERM 0; echo ready; read x; echo $n"
    process = cli.popen("run", "--grace", "0.05", "-c", command, stdin=subprocess.PIPE, process_group=0)
    assert process.stdout is not None and process.stdout.readline() in ("ready\n", "")
    process.communicate("x\n")
    # Bubblewrap itself does not survive this signal here; the point is that there was no wait for a grace period.
    assert process.returncode in (0, 143)


def test_signals_ignored_at_the_start_stay_ignored(cli: CommandLine) -> None:
    """nohup."""
    line = f"trap '' HUP; exec {' '.join(cli.argv)} run -c 'echo ready; read x; echo done'"
    with subprocess.Popen(
        ["/bin/sh", "-c", line], env=cli.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate("x\n")[0] == "done\n"
    assert process.returncode == 0


def test_the_command_starts_with_empty_mask_and_default_signals(cli: CommandLine) -> None:
    show = "import re; print(*re.findall(r'Sig(?:Blk|Ign):\\s*(\\w+)', open('/proc/self/status').read()))"
    program = [sys.executable, "-S", "-c", show]
    bare = subprocess.run(program, capture_output=True, text=True, check=True)
    done = cli.run("run", "--", *program)
    blocked, ignored = (int(mask, 16) for mask in done.stdout.split())
    assert blocked == 0
    # glibc's posix_spawn leaves its own two signals, 32 and 33, ignored; programs that use them install a handler.
    standard = 0x7FFFFFFF
    assert ignored & standard == int(bare.stdout.split()[1], 16) & standard
    done = cli.run("run", "--", "/bin/bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")
    assert done.stdout == "y\n141\n"


def test_a_killed_client_ends_the_commands_tree(cli: CommandLine, fake: FakeDaemon) -> None:
    """The bare fake has no helper; what is shown is that nothing in between keeps the tree alive: no session of its
    own, and the command's parent is the client itself."""
    with begun(cli, f"trap 'exit 5' TERM; {LOOP}") as process:
        (child,) = (one for one in processes.descendants(process.pid) if one.parent == process.pid)
        assert os.getsid(child.pid) == os.getsid(process.pid)
        assert os.getpgid(child.pid) == os.getpgid(process.pid)
        process.terminate()
        process.communicate()
    assert process.returncode == 5
