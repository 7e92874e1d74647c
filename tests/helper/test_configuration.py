"""The configuration as the helper reads it: whatever is wrong with it, nothing runs."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import (
    GO,
    KILL,
    VERSION,
    Descriptors,
    Exited,
    Failed,
    Started,
    encode_off,
)
from sandboxd.backends.linux.helper.launch_configuration import MAX_ARGUMENTS, Flags, LaunchConfiguration, Listener
from sandboxd.backends.linux.seccomp.filter import build_filter

from .conftest import MACHINE, Launcher, configuration

ECHO = configuration(["echo", "ran"])
ONE_LISTENER = configuration(["echo", "ran"], ports=[Listener.tcp("127.0.0.1", 3128)])


def patched(offset: int, value: int, message: bytes = ECHO) -> bytes:
    changed = bytearray(message)
    struct.pack_into("<I", changed, offset, value)
    return bytes(changed)


def assert_nothing_ran(result: tuple[int, str, str], message: str) -> None:
    status, out, err = result
    assert (status, out) == (125, "")
    lines = err.splitlines()
    assert len(lines) == 2 and lines[1].startswith("hint: "), err
    assert lines[0] == f"sandboxd: {message}"


FILTER = len(build_filter(MACHINE))
MALFORMED = {
    "no magic": (patched(0, 0), "the configuration has another version"),
    "another version": (patched(4, 1), "the configuration has another version"),
    "all zero": (bytes(64), "the configuration has another version"),
    "length zero": (patched(8, 0), "the configuration is malformed"),
    "length too small": (patched(8, len(ECHO) - 1), "the configuration is malformed"),
    "length too large": (patched(8, len(ECHO) + 1), "the configuration is malformed"),
    "length huge": (patched(8, 0xFFFFFFFF), "the configuration is malformed"),
    "unknown flag": (patched(12, 64), "the configuration is malformed"),
    "a confinement that is not there": (patched(12, 32), "the configuration is malformed"),
    "asks and does not watch": (patched(12, 8), "the configuration is malformed"),
    "unfiltered and watched": (patched(12, 6), "the configuration is malformed"),
    "ports too many": (patched(36, 1), "the configuration is malformed"),
    "ports overflow": (patched(36, 0x40000000), "the configuration is malformed"),
    "unfiltered and a filter": (patched(12, 2), "the configuration is malformed"),
    "a listener too many": (patched(20, 1), "the configuration is malformed"),
    "a listener too few": (patched(20, 0, ONE_LISTENER), "the configuration is malformed"),
    "listeners overflow": (patched(20, 0x20000000), "the configuration is malformed"),
    "no filter and no flag": (patched(24, 0), "the configuration is malformed"),
    "half an instruction": (patched(24, FILTER - 4), "the configuration is malformed"),
    "filter huge": (patched(24, 0xFFFFFFF8), "the configuration is malformed"),
    "no arguments": (patched(28, 0), "the configuration is malformed"),
    "an argument too many": (patched(28, 3), "the configuration is malformed"),
    "an argument too few": (patched(28, 1), "the configuration is malformed"),
    "arguments overflow": (patched(28, 0x20000000), "the configuration is malformed"),
    "argument bytes huge": (patched(32, 0xFFFFFFFF), "the configuration is malformed"),
    "too many argument bytes": (
        patched(8, len(ECHO) - 9 + MAX_ARGUMENTS + 1, patched(32, MAX_ARGUMENTS + 1)),
        "the configuration is malformed",
    ),
    "no zero at the end": (ECHO[:-1] + b"x", "the configuration is malformed"),
    "a zero too many": (ECHO[:-3] + b"\0n\0", "the configuration is malformed"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(launch: Launcher, name: str) -> None:
    message, expected = MALFORMED[name]
    sandbox = launch.connect()
    sandbox.send(message)
    assert sandbox.next_event() == Failed(expected)
    assert_nothing_ran(sandbox.finish(), expected)


@pytest.mark.parametrize("size", [0, 1, 39, 40, 41, len(ECHO) - 1])
def test_cut_off(launch: Launcher, size: int) -> None:
    sandbox = launch.connect()
    sandbox.send(ECHO[:size])
    sandbox.hang_up()
    assert_nothing_ran(sandbox.finish(), "the daemon hung up before the command was started")


def test_in_pieces(launch: Launcher) -> None:
    sandbox = launch.connect()
    for n in range(len(ECHO)):
        sandbox.send(ECHO[n : n + 1])
    sandbox.expect(Descriptors(0), Started())
    assert sandbox.finish() == (0, "ran\n", "")


def test_random_bytes(launch: Launcher) -> None:
    source = random.Random(20)
    for _ in range(10):
        sandbox = launch.connect()
        sandbox.send(source.randbytes(64))
        assert_nothing_ran(sandbox.finish(), "the configuration has another version")


def test_random_numbers_in_the_head(launch: Launcher) -> None:
    """Whatever is in the head, the helper ends with 125 or, when it believes that more is to come, waits for it."""
    source = random.Random(21)
    for _ in range(20):
        head = struct.pack("<4sI", b"SBXC", VERSION) + b"".join(
            struct.pack("<I", source.choice([0, 1, 2, 8, 9, 36, 1 << 16, 1 << 31, 0xFFFFFFFF])) for _ in range(8)
        )
        sandbox = launch.connect()
        sandbox.send(head)
        sandbox.hang_up()
        status, out, err = sandbox.finish()
        assert (status, out) == (125, "") and err.startswith("sandboxd: ")


def test_a_filter_that_the_kernel_refuses(launch: Launcher) -> None:
    jumps_away = struct.pack("<HBBI", 5, 0, 0, 100)
    sandbox = launch(["echo", "ran"], program=jumps_away)
    status, out, err = sandbox.finish()
    assert_nothing_ran((status, out, err), "cannot install the system call filter: Invalid argument")


def test_the_daemon_learns_of_a_filter_the_kernel_refuses(launch: Launcher) -> None:
    sandbox = launch(["echo", "ran"], program=struct.pack("<HBBI", 5, 0, 0, 100))
    assert [type(event).__name__ for event in sandbox.rest()] == ["ExecFailed", "Exited"]


def test_no_filter_where_that_is_said(launch: Launcher) -> None:
    sandbox = launch(["grep", "Seccomp:", "/proc/self/status"], program=b"", flags=Flags.UNFILTERED)
    status, out, _ = sandbox.finish()
    assert status == 0 and out in Path("/proc/self/status").read_text()


@pytest.mark.parametrize("size", [1, 60_000, 128 * 1024 - 1])
def test_long_arguments(launch: Launcher, size: int) -> None:
    status, out, _ = launch.run(["sh", "-c", "echo ${#1} $#", "sh", "x" * size, "y" * size])
    assert (status, out) == (0, f"{size} 2\n")


def test_many_arguments(launch: Launcher) -> None:
    status, out, _ = launch.run(["sh", "-c", "echo $#", "sh", *["x"] * 50_000])
    assert (status, out) == (0, "50000\n")


def test_more_than_a_process_can_have(launch: Launcher) -> None:
    sandbox = launch(["true", "x" * (MAX_ARGUMENTS - 6)])
    status, out, err = sandbox.finish()
    assert (status, out) == (126, "")
    assert err.startswith("sandboxd: cannot run true: Argument list too long\nhint: too long")


def test_odd_arguments(launch: Launcher) -> None:
    odd = [b"", b" ", b"\xff\xfe", b"\n", b"\x1b[31m", "é∀".encode(), b"--", b"-n", b"$HOME", b"'\"", b"\x01\x7f"]
    sandbox = launch.python("import sys, os; print([os.fsencode(w) for w in sys.argv[1:]])", *map(os_decode, odd))
    status, out, _ = sandbox.finish()
    assert (status, out) == (0, f"{odd}\n")


def os_decode(item: bytes) -> str:
    return item.decode(errors="surrogateescape")


class TestWaitingForGo:
    def test_the_command_is_held_back(self, launch: Launcher) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        assert sandbox.process.poll() is None
        sandbox.send(GO)
        sandbox.expect(Started())
        assert sandbox.finish() == (0, "ran\n", "")

    def test_go_may_come_with_the_configuration(self, launch: Launcher) -> None:
        sandbox = launch.connect()
        sandbox.send(configuration(["echo", "ran"], flags=Flags.WAIT) + GO)
        sandbox.expect(Descriptors(0), Started())
        assert sandbox.finish() == (0, "ran\n", "")

    def test_go_without_having_been_asked_for_is_harmless(self, launch: Launcher) -> None:
        sandbox = launch(["sleep", "0.2"])
        sandbox.send(GO + GO)
        sandbox.expect(Started(), Exited(0, 0))

    @pytest.mark.parametrize("byte", [KILL, b"X", b"\0"])
    def test_any_other_byte_calls_it_off(self, launch: Launcher, byte: bytes) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        sandbox.send(byte)
        assert_nothing_ran(sandbox.finish(), "the daemon cancelled the command before its start")

    @pytest.mark.parametrize(("reason", "said"), [("why", "why"), ("é\nx" * 999, "é\\x0ax")])
    def test_why_it_is_called_off_is_said(self, launch: Launcher, reason: str, said: str) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        sandbox.send(encode_off(reason, "do this"))
        status, out, err = sandbox.finish()
        assert (status, out) == (125, "")
        assert err.startswith(f"sandboxd: {said}") and err.endswith("\nhint: do this\n") and err.count("\n") == 2

    def test_half_of_it_is_enough(self, launch: Launcher) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        sandbox.send(encode_off("why", "do this")[:500])
        sandbox.hang_up()
        assert_nothing_ran(sandbox.finish(), "the daemon hung up before the command was started")

    def test_the_daemon_dies_meanwhile(self, launch: Launcher) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        sandbox.hang_up()
        assert_nothing_ran(sandbox.finish(), "the daemon hung up before the command was started")

    def test_the_daemon_dies_before_a_command_that_need_not_wait(self, launch: Launcher) -> None:
        """The configuration alone is not enough: without its daemon a sandbox does not start."""
        sandbox = launch.connect()
        sandbox.send(LaunchConfiguration((b"echo", b"ran"), build_filter(MACHINE)).encode())
        sandbox.hang_up()
        status, out, err = sandbox.finish()
        assert (status, out) == (125, "")
        assert "the daemon" in err
