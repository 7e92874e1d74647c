"""The build for the other processor, under emulation: both stages, on whatever machine the tests run.

`qemu-aarch64-static` runs the helper; bubblewrap and the command are the machine's own. The emulator passes system
calls on, except seccomp(2), so the command runs without a filter here (the program for this processor is tested in the
simulator), and what the helper does when the kernel knows no seccomp is tested instead.
"""

from __future__ import annotations

import shutil

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import GO, KILL, Descriptors, ExecFailed, Exited, Failed, Started
from sandboxd.backends.linux.helper.launch_configuration import Flags, Listener

from .conftest import BWRAP, OPTIONS, TICKET, Launcher, Sandbox, configuration

EMULATOR = shutil.which("qemu-aarch64-static") or "/usr/bin/qemu-aarch64-static"


@pytest.fixture
def helper(launch: Launcher) -> str:
    return str(launch.identity.code.tree / "vendor" / "seccomp" / "aarch64" / "apply-seccomp")


def start(launch: Launcher, helper: str, message: bytes) -> Sandbox:
    """The launch stage of this machine, bubblewrap, and the emulated init stage."""
    words = [launch.launcher, "launch", launch.path, TICKET, "--", BWRAP, *OPTIONS, "--", EMULATOR, helper, "init"]
    sandbox = launch.start(words)
    sandbox.accept()
    sandbox.send(message)
    return sandbox


@pytest.mark.parametrize("words", [[], ["launch"], ["--help"], ["init", "x"]])
def test_wrong_arguments(launch: Launcher, helper: str, words: list[str]) -> None:
    status, out, err = launch.start([EMULATOR, helper, *words]).finish()
    assert (status, out) == (125, "")
    assert err.startswith("sandboxd: wrong arguments for apply-seccomp\nhint: ")


def test_no_daemon(launch: Launcher, helper: str) -> None:
    launch.listener.close()
    words = [EMULATOR, helper.replace("apply-seccomp", "launch"), "launch", launch.path, TICKET, "--", BWRAP]
    status, out, err = launch.start(words).finish()
    assert (status, out) == (125, "")
    assert err.startswith("sandboxd: cannot ")


def test_the_command_runs(launch: Launcher, helper: str) -> None:
    message = configuration(
        ["sh", "-c", "ls /proc/self/fd; grep -E 'NoNewPrivs|SigBlk|SigIgn' /proc/self/status; exit 7"],
        program=b"",
        flags=Flags.UNFILTERED,
        ports=[Listener.tcp("127.0.0.1", 3128), Listener.tcp("::1", 1080)],
    )
    sandbox = start(launch, helper, message)
    sandbox.expect(Descriptors(2), Started(), Exited(7, 0))
    assert [one.getsockname()[1] for one in sandbox.sockets] == [3128, 1080]
    status, out, _ = sandbox.finish()
    assert status == 7
    assert out.split() == ["0", "1", "2", "3", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16, "NoNewPrivs:", "1"]


def test_search_in_path_and_what_is_not_there(launch: Launcher, helper: str) -> None:
    sandbox = start(launch, helper, configuration(["no-such-program"], program=b"", flags=Flags.UNFILTERED))
    sandbox.expect(Descriptors(0), ExecFailed(127, 2), Exited(127, 0))
    assert sandbox.finish()[2].startswith("sandboxd: cannot run no-such-program: No such file or directory\nhint: ")


def test_a_filter_that_cannot_be_installed(launch: Launcher, helper: str) -> None:
    sandbox = start(launch, helper, configuration(["echo", "ran"]))
    status, out, err = sandbox.finish()
    assert (status, out) == (125, "")
    assert err.startswith("sandboxd: cannot install the system call filter: ")


def test_waiting_for_go(launch: Launcher, helper: str) -> None:
    sandbox = start(launch, helper, configuration(["true"], program=b"", flags=Flags.UNFILTERED | Flags.WAIT))
    sandbox.expect(Descriptors(0))
    sandbox.send(GO)
    sandbox.expect(Started(), Exited(0, 0))


def test_kill_and_its_grace(launch: Launcher, helper: str) -> None:
    deaf = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done"]
    sandbox = start(launch, helper, configuration(deaf, program=b"", flags=Flags.UNFILTERED, grace_ms=100))
    sandbox.expect(Descriptors(0), Started())
    assert sandbox.process.stdout is not None and sandbox.process.stdout.readline() == b"up\n"
    sandbox.send(KILL)
    sandbox.expect(Exited(137, 9))


@pytest.mark.parametrize("message", [bytes(64), configuration(["true"])[:-1] + b"x"])
def test_a_malformed_configuration(launch: Launcher, helper: str, message: bytes) -> None:
    sandbox = start(launch, helper, message)
    assert isinstance(sandbox.next_event(), Failed)
    assert sandbox.finish()[0] == 125


def test_the_daemon_hangs_up(launch: Launcher, helper: str) -> None:
    sandbox = start(launch, helper, b"")
    sandbox.hang_up()
    status, _, err = sandbox.finish()
    assert status == 125 and "the daemon hung up" in err
