"""The launch stage: on the host, up to bubblewrap. Whatever fails here says so, exits 125, and has run nothing."""

from __future__ import annotations

import array
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import Descriptors, Failed, Started
from support.processes import read_process

from .conftest import BWRAP, OPTIONS, TICKET, Launcher, Sandbox, configuration


def assert_refused(result: tuple[int, str, str], message: str) -> None:
    status, out, err = result
    lines = err.splitlines()
    assert (status, out) == (125, "")
    assert len(lines) == 2 and lines[0].startswith("sandboxd: ") and lines[1].startswith("hint: "), err
    assert message in lines[0]


class TestNoDaemon:
    def test_no_socket(self, launch: Launcher) -> None:
        os.unlink(launch.path)
        result = launch.start(launch.words()).finish()
        assert_refused(result, "cannot reach the daemon: No such file or directory")

    def test_nobody_listens(self, launch: Launcher) -> None:
        launch.listener.close()
        result = launch.start(launch.words()).finish()
        assert_refused(result, "cannot reach the daemon: Connection refused")

    def test_the_daemon_refuses_the_ticket_by_hanging_up(self, launch: Launcher) -> None:
        sandbox = launch.start(launch.words())
        sandbox.accept()
        sandbox.hang_up()
        assert_refused(sandbox.finish(), "the daemon hung up before the command was started")

    def test_not_allowed_to_connect(self, launch: Launcher) -> None:
        if launch.identity.uid == 0:  # root is never refused
            return
        os.chmod(launch.path, 0)
        assert_refused(launch.start(launch.words()).finish(), "cannot reach the daemon: Permission denied")


class TestArguments:
    @pytest.mark.parametrize(
        "words",
        [
            [], ["launch"], ["launch", "/s", "t"], ["launch", "/s", "t", "--"], ["init", "x"], ["exec", "x"],
            ["--help"], ["launch", "/s", "t", "bwrap", "bwrap"], ["", "", "", "--", ""],
        ],
    )  # fmt: skip
    def test_wrong_ones(self, launch: Launcher, words: list[str]) -> None:
        assert_refused(launch.start([launch.launcher, *words]).finish(), "wrong arguments")

    def test_no_arguments_at_all(self, launch: Launcher) -> None:
        keywords = {"executable": launch.launcher}
        sandbox = launch.start([""], **keywords)
        assert_refused(sandbox.finish(), "wrong arguments")

    @pytest.mark.parametrize(("path", "ticket"), [("/" + "x" * 108, "t"), ("/s", "t" * 65)])
    def test_too_long(self, launch: Launcher, path: str, ticket: str) -> None:
        words = [launch.launcher, "launch", path, ticket, "--", BWRAP]
        assert_refused(launch.start(words).finish(), "is too long")

    def test_init_by_hand(self, launch: Launcher) -> None:
        assert_refused(launch.start([launch.helper, "init"]).finish(), "init is not process 1")

    def test_no_bubblewrap(self, launch: Launcher) -> None:
        sandbox = launch.start([launch.launcher, "launch", launch.path, TICKET, "--", "/nonexistent/bwrap", "x"])
        sandbox.accept()
        assert sandbox.next_event() == Failed("cannot run /nonexistent/bwrap: No such file or directory")
        status, out, err = sandbox.finish()
        assert_refused((status, out, err), "cannot run /nonexistent/bwrap: No such file or directory")
        assert "bubblewrap" in err


class TestWhatTheDaemonSees:
    def test_the_peer_is_the_process_that_becomes_bubblewrap(self, launch: Launcher) -> None:
        sandbox = launch(["true"])
        credentials = sandbox.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, gid = struct.unpack("3i", credentials)
        assert (pid, uid, gid) == (sandbox.process.pid, launch.identity.uid, launch.identity.gid)
        assert sandbox.finish() == (0, "", "")

    def test_no_secret_in_any_argv(self, launch: Launcher) -> None:
        sandbox = launch(["sleep", "1000"])
        sandbox.expect(Started())
        process = read_process(sandbox.process.pid)
        assert process is not None and process.command[0] == BWRAP
        assert TICKET not in process.command and launch.path not in process.command


class TestDescriptors:
    def test_what_the_owner_left_open_stays_outside(self, launch: Launcher) -> None:
        with open("/etc/hostname") as secret, open("/etc/hostname") as far:
            high = os.dup2(far.fileno(), 900)
            os.set_inheritable(secret.fileno(), True)
            try:
                sandbox = launch(["ls", "/proc/self/fd"], close_fds=False)
            finally:
                os.close(high)
        assert sandbox.finish() == (0, "0\n1\n2\n3\n", "")  # 3 is the directory that ls reads

    @pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
    def test_what_the_owner_left_closed_is_dev_null(self, launch: Launcher, closed: list[int], tmp_path: Path) -> None:
        """So that no file which is opened later is taken for standard output."""
        script = "; ".join(f"exec {fd}>&-" for fd in closed)
        inside = "for fd in 0 1 2; do readlink /proc/self/fd/$fd; done >/var/tmp/out"
        target = launch.identity.workspace
        words = launch.words((*OPTIONS, "--bind", str(target), "/var/tmp"))
        sandbox = launch.start(["sh", "-c", f'{script}; exec "$@"', "sh", *words])
        sandbox.accept()
        sandbox.send(configuration(["sh", "-c", inside]))
        sandbox.expect(Descriptors(0), Started())
        assert sandbox.finish()[0] == 0
        links = (target / "out").read_text().split()
        assert all(links[fd] == "/dev/null" for fd in closed if fd != 1)


class TestOptionsByDescriptor:
    def start(self, launch: Launcher, options: bytes) -> tuple[Sandbox, int]:
        memory = os.memfd_create("options")
        os.write(memory, options)
        os.lseek(memory, 0, os.SEEK_SET)
        sandbox = launch.start(launch.words(("--args", "7"), stage="launch-args"))
        sandbox.accept()
        return sandbox, memory

    def test_they_are_used(self, launch: Launcher) -> None:
        # bubblewrap 0.8 takes at most 9000 words, in whatever way they come
        many = [*OPTIONS, *(word for n in range(2500) for word in ("--setenv", f"NAME_{n}", "x" * 100))]
        sandbox, memory = self.start(launch, b"".join(word.encode() + b"\0" for word in many))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
        sandbox.connection.sendmsg([b"A"], rights)
        os.close(memory)
        sandbox.send(configuration(["sh", "-c", "echo $NAME_2499; ls /proc/self/fd"]))
        sandbox.expect(Descriptors(0), Started())
        assert sandbox.finish() == (0, "x" * 100 + "\n0\n1\n2\n3\n", "")

    @pytest.mark.parametrize("data", [b"A", b"X"])
    def test_a_message_without_a_descriptor(self, launch: Launcher, data: bytes) -> None:
        sandbox, memory = self.start(launch, b"")
        os.close(memory)
        sandbox.send(data)
        assert_refused(sandbox.finish(), "the daemon sent no options for bubblewrap")

    def test_another_message_with_a_descriptor(self, launch: Launcher) -> None:
        sandbox, memory = self.start(launch, b"")
        sandbox.connection.sendmsg([b"X"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))])
        os.close(memory)
        assert_refused(sandbox.finish(), "the daemon sent no options for bubblewrap")

    def test_no_message(self, launch: Launcher) -> None:
        sandbox, memory = self.start(launch, b"")
        os.close(memory)
        sandbox.hang_up()
        assert_refused(sandbox.finish(), "the daemon sent no options for bubblewrap")


def test_a_broken_standard_error_does_not_change_the_status(launch: Launcher) -> None:
    os.unlink(launch.path)
    reading, writing = os.pipe()
    os.close(reading)
    sandbox = launch.start(launch.words(), stderr=writing)
    os.close(writing)
    assert sandbox.process.wait() == 125


def test_a_refusal_is_one_write(launch: Launcher) -> None:
    """Two lines that are never torn apart by what others write to the same terminal."""
    os.unlink(launch.path)
    reading, writing = os.pipe2(os.O_DIRECT)  # each write is a packet
    sandbox = launch.start(launch.words(), stderr=writing, stdout=subprocess.DEVNULL)
    os.close(writing)
    sandbox.process.wait()
    assert os.read(reading, 4096).count(b"\n") == 2
    os.close(reading)
