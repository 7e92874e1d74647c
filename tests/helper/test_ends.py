"""Who ends what: the owner, bubblewrap, the daemon and the command, each at any moment, also by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from sandboxd.backends.linux.bwrap.orphans import end_orphans
from sandboxd.backends.linux.helper.bridge_protocol import (
    GO,
    HARMLESS,
    KILL,
    PARTLY,
    Descriptors,
    Exited,
    Failed,
    Started,
)
from sandboxd.backends.linux.helper.launch_configuration import Flags
from support import processes
from support.waiting import wait_until

from .conftest import Launcher, Sandbox, configuration

# Leaves its session, its parent and the terminal, and ignores signals.
STUBBORN = """
trap '' TERM HUP INT
(setsid sh -c "trap '' TERM HUP INT; echo up; sleep 1000; sleep 1000" &)
(nohup sleep 1000 >/dev/null 2>&1 &)
sleep 1000 &
sleep 1000; sleep 1000; sleep 1000
"""


def tree(sandbox: Sandbox) -> set[int]:
    """Everything that belongs to the launch: the process itself and all below it."""
    return {sandbox.process.pid, *(process.pid for process in processes.descendants(sandbox.process.pid))}


def assert_gone(pids: set[int]) -> None:
    wait_until(lambda: not any(map(processes.is_alive, pids)), f"end of {pids}")


def assert_all_gone(before: set[int]) -> None:
    """For a bubblewrap that was killed early: it may itself leave a process behind, which the daemon ends."""

    def gone() -> bool:
        end_orphans()
        return not [process for process in processes.descendants() if process.pid not in before]

    wait_until(gone, "end of everybody")


def start_stubborn(launch: Launcher, sandbox: Sandbox) -> set[int]:
    """Goes on as the daemon until all of STUBBORN is running; returns the process numbers."""
    sandbox.send(configuration(["sh", "-c", STUBBORN]))
    sandbox.expect(Descriptors(0), Started())
    assert sandbox.process.stdout is not None
    assert sandbox.process.stdout.readline() == b"up\n"
    wait_until(lambda: sum(p.name == "sleep" for p in processes.descendants(sandbox.process.pid)) == 4, "all sleeping")
    return tree(sandbox)


def wait_for_processes(sandbox: Sandbox, count: int) -> None:
    wait_until(lambda: len(tree(sandbox)) >= count, f"{count} processes")


def wait_for_sleep(sandbox: Sandbox) -> None:
    """Until a shell waits for its child: a signal that comes between its fork and its exec can be lost, everywhere."""
    wait_until(lambda: "sleep" in {process.name for process in processes.descendants(sandbox.process.pid)}, "sleep")


def owned(launch: Launcher) -> Sandbox:
    """A launch with an owner that is not the test itself: a shell that starts the argv and waits."""
    sandbox = launch.start(["sh", "-c", '"$@"; exit $?', "sh", *launch.words()])
    sandbox.accept()
    return sandbox


class TestOwner:
    def test_killed_while_the_command_runs(self, launch: Launcher) -> None:
        sandbox = owned(launch)
        pids = start_stubborn(launch, sandbox)
        sandbox.process.kill()
        sandbox.expect(Exited(137, 9))
        assert sandbox.next_event() is None
        assert_gone(pids)

    def test_killed_while_the_command_waits_for_go(self, launch: Launcher) -> None:
        sandbox = owned(launch)
        sandbox.send(configuration(["echo", "ran"], flags=Flags.WAIT))
        sandbox.expect(Descriptors(0))
        pids = tree(sandbox)
        sandbox.process.kill()
        assert sandbox.next_event() == Failed("the program that started the sandbox has ended")
        assert_gone(pids)
        assert sandbox.finish()[1] == ""

    def test_killed_before_the_configuration_comes(self, launch: Launcher) -> None:
        """A bubblewrap that dies earlier leaves an orphan, which says nothing."""
        sandbox = owned(launch)
        wait_until(lambda: "sandboxd-init" in {one.name for one in processes.descendants(sandbox.process.pid)}, "init")
        pids = tree(sandbox)
        sandbox.process.kill()
        assert sandbox.next_event() == Failed("the program that started the sandbox has ended")
        assert_gone(pids)

    def test_killed_and_the_daemon_too(self, launch: Launcher) -> None:
        sandbox = owned(launch)
        pids = start_stubborn(launch, sandbox)
        sandbox.hang_up()
        sandbox.process.kill()
        assert_gone(pids)

    def test_ends_normally_without_waiting(self, launch: Launcher) -> None:
        """What an owner leaves behind in the background does not outlive it."""
        words = ["sh", "-c", '"$@" & read line; exit 0', "sh", *launch.words()]
        sandbox = launch.start(words, stdin=subprocess.PIPE)
        sandbox.accept()
        pids = start_stubborn(launch, sandbox)
        assert sandbox.process.stdin is not None
        sandbox.process.stdin.close()
        assert sandbox.process.wait() == 0
        sandbox.expect(Exited(137, 9))
        assert_gone(pids)

    def test_a_thread_that_ends_is_not_an_owner_that_ends(self, launch: Launcher) -> None:
        script = """
import subprocess, sys, threading
started = []
thread = threading.Thread(target=lambda: started.append(subprocess.Popen(sys.argv[1:])))
thread.start(); thread.join()
sys.exit(started[0].wait())
"""
        sandbox = launch.start([*launch.identity.python("-c", script), *launch.words()])
        sandbox.accept()
        sandbox.send(configuration(["sh", "-c", "sleep 0.3; exit 6"]))
        sandbox.expect(Descriptors(0), Started(), Exited(6, 0))
        assert sandbox.finish()[0] == 6


class TestBubblewrap:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    def test_killed_while_the_command_runs(self, launch: Launcher, number: signal.Signals) -> None:
        sandbox = launch.connect()
        pids = start_stubborn(launch, sandbox)
        os.kill(sandbox.process.pid, number)
        assert sandbox.process.wait() == -number
        assert_gone(pids)
        assert sandbox.rest() in ([], [Exited(137, 9)])

    def test_killed_before_the_configuration_comes(self, launch: Launcher) -> None:
        before = {process.pid for process in processes.descendants()}
        sandbox = launch.connect()
        sandbox.process.kill()
        sandbox.process.wait()
        assert_all_gone(before)

    def test_killed_while_the_command_waits_for_go(self, launch: Launcher) -> None:
        sandbox = launch(["echo", "ran"], flags=Flags.WAIT)
        pids = tree(sandbox)
        sandbox.process.kill()
        assert_gone(pids)
        assert sandbox.finish()[1] == ""

    def test_killed_at_any_moment(self, launch: Launcher) -> None:
        """Right after the start, a little later, and so on: nothing is ever left."""
        before = {process.pid for process in processes.descendants()}
        for n in range(20):
            sandbox = launch.start(launch.words())
            if n >= 10:
                wait_for_processes(sandbox, n % 2 + 1)
            sandbox.process.kill()
            sandbox.process.wait()
        assert_all_gone(before)


class TestDaemon:
    def test_death_later_leaves_the_command_alone(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "read line; echo got $line; exit 3"], stdin=subprocess.PIPE)
        sandbox.expect(Started())
        sandbox.hang_up()
        assert sandbox.process.communicate(b"on\n") == (b"got on\n", b"")
        assert sandbox.process.returncode == 3

    def test_death_later_is_not_paid_for_with_the_processor(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "sleep 0.5; cat /proc/1/stat"])
        sandbox.expect(Started())
        sandbox.hang_up()
        status, out, _ = sandbox.finish()
        user, system = out.rpartition(")")[2].split()[11:13]
        assert (status, int(user) + int(system)) == (0, 0) or int(user) + int(system) < 5

    def test_the_owner_is_still_followed_after_it(self, launch: Launcher) -> None:
        sandbox = owned(launch)
        pids = start_stubborn(launch, sandbox)
        sandbox.hang_up()
        os.kill(sandbox.process.pid, signal.SIGKILL)
        assert_gone(pids)


class TestKill:
    def test_term_ends_the_command(self, launch: Launcher) -> None:
        sandbox = launch(["sleep", "1000"])
        sandbox.expect(Started())
        sandbox.send(KILL)
        sandbox.expect(Exited(143, 15))
        assert sandbox.finish()[0] == 143

    def test_the_command_may_say_goodbye(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; sleep 1000; sleep 1000"])
        sandbox.expect(Started())
        wait_for_sleep(sandbox)
        sandbox.send(KILL)
        sandbox.expect(Exited(3, 0))
        assert sandbox.finish()[:2] == (3, "up\nbye\n")

    @pytest.mark.parametrize("grace_ms", [0, 1, 200])
    def test_after_the_grace_nobody_is_asked(self, launch: Launcher, grace_ms: int) -> None:
        sandbox = launch(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done"], grace_ms=grace_ms)
        sandbox.expect(Started())
        assert sandbox.process.stdout is not None and sandbox.process.stdout.readline() == b"up\n"
        pids = tree(sandbox)
        sandbox.send(KILL)
        sandbox.expect(Exited(137, 9))
        assert sandbox.finish()[0] == 137
        assert_gone(pids)

    def test_the_grace_also_ends_amid_a_storm_of_ending_children(self, launch: Launcher) -> None:
        storm = "trap '' TERM; echo up; while :; do (true &) ; done"
        sandbox = launch(["sh", "-c", storm], grace_ms=300)
        sandbox.expect(Started())
        assert sandbox.process.stdout is not None and sandbox.process.stdout.readline() == b"up\n"
        sandbox.send(KILL)
        sandbox.expect(Exited(137, 9))

    def test_a_second_time_is_at_once(self, launch: Launcher) -> None:
        sandbox = launch.connect()
        sandbox.send(configuration(["sh", "-c", STUBBORN], grace_ms=3_600_000))
        sandbox.expect(Descriptors(0), Started())
        assert sandbox.process.stdout is not None and sandbox.process.stdout.readline() == b"up\n"
        sandbox.send(KILL)
        sandbox.send(KILL)
        sandbox.expect(Exited(137, 9))

    def test_a_stopped_command_ends_too(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "echo up; kill -STOP $$; exit 1"])
        sandbox.expect(Started())
        assert sandbox.process.stdout is not None and sandbox.process.stdout.readline() == b"up\n"
        stopped = wait_until(
            lambda: [p for p in processes.descendants(sandbox.process.pid) if p.state == "T"], "a stopped command"
        )
        assert [process.name for process in stopped] == ["sh"]
        sandbox.send(KILL)
        sandbox.expect(Exited(143, 15))

    def test_go_says_nothing_any_more(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "read line; exit 8"], stdin=subprocess.PIPE)
        sandbox.expect(Started())
        sandbox.send(GO + GO)
        sandbox.process.communicate(b"\n")
        assert sandbox.process.returncode == 8


class TestStay:
    """With Flags.STAY process 1 is alone when it tells of the end, and it ends when the daemon hangs up."""

    PLAIN = configuration(["sh", "-c", "sleep 1000 & exit 3"], flags=Flags.STAY)

    UNSEEN = "sandboxd: the repository clean-up after the command did not finish; it ended with status 3\nhint: check"

    def test_until_the_daemon_hangs_up(self, launch: Launcher) -> None:
        sandbox = launch.connect()
        sandbox.send(self.PLAIN)
        sandbox.expect(Descriptors(0), Started(), Exited(3, 0))
        assert {process.name for process in processes.descendants(sandbox.process.pid)} == {"sandboxd-init"}
        assert sandbox.process.poll() is None
        sandbox.send(HARMLESS)
        sandbox.hang_up()
        assert sandbox.process.wait() == 3

    @pytest.mark.parametrize("last", [b"", GO, HARMLESS + KILL, HARMLESS + bytes(9)])
    def test_an_unconfirmed_look_does_not_look_like_success(self, launch: Launcher, last: bytes) -> None:
        sandbox = launch.connect(stderr=subprocess.PIPE)
        sandbox.send(self.PLAIN)
        sandbox.expect(Descriptors(0), Started(), Exited(3, 0))
        sandbox.send(last)
        sandbox.hang_up()
        _, said = sandbox.process.communicate()
        assert sandbox.process.returncode == 125
        assert said.decode().startswith(self.UNSEEN)

    def test_a_look_that_was_not_whole_is_told_and_changes_no_status(self, launch: Launcher) -> None:
        sandbox = launch.connect(stderr=subprocess.PIPE)
        sandbox.send(self.PLAIN)
        sandbox.expect(Descriptors(0), Started(), Exited(3, 0))
        sandbox.send(PARTLY)
        sandbox.hang_up()
        _, said = sandbox.process.communicate()
        assert sandbox.process.returncode == 3
        assert said.decode().startswith("sandboxd: the repository clean-up after the command was partial")

    def test_what_was_sent_before_is_passed_over(self, launch: Launcher) -> None:
        sandbox = launch.connect()
        sandbox.send(self.PLAIN)
        sandbox.expect(Descriptors(0), Started(), Exited(3, 0))
        sandbox.send(KILL + KILL + HARMLESS)
        sandbox.hang_up()
        assert sandbox.process.wait() == 3

    def test_not_without_bubblewrap(self, launch: Launcher) -> None:
        sandbox = launch.connect()
        sandbox.send(self.PLAIN)
        sandbox.expect(Descriptors(0), Started(), Exited(3, 0))
        pids = tree(sandbox)
        sandbox.process.kill()
        assert_gone(pids)

    def test_not_without_a_daemon(self, launch: Launcher) -> None:
        sandbox = launch.connect(stdin=subprocess.PIPE)
        sandbox.send(configuration(["sh", "-c", "read line; exit 4"], flags=Flags.STAY))
        sandbox.expect(Descriptors(0), Started())
        sandbox.hang_up()
        assert sandbox.process.stdin is not None
        sandbox.process.stdin.close()
        assert sandbox.process.wait() == 125
