"""The log monitor with a stand-in for `log`: what it hands on, its own reports, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, Listeners
from sandboxd.backends.macos import monitor as monitor_module
from sandboxd.backends.macos.log_lines import make_tag
from sandboxd.backends.macos.monitor import LogMonitor, MonitorState, stream_command
from sandboxd.policy.violation import DenialEvent
from support.mac_stubs import MacStubs, install_stubs
from support.processes import is_alive
from support.waiting import wait_until, wait_until_async

QUICK = (0.01,)


@dataclass
class Recorder:
    refusals: list[DenialEvent] = field(default_factory=list)

    def lost(self, count: int) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        answer(0)

    def refused(self, refusal: DenialEvent) -> None:
        self.refusals.append(refusal)

    def claimed(self, pid: int) -> None: ...
    def listening(self, listeners: Listeners) -> None: ...
    def starting(self, inside: object = None) -> None: ...

    def listens(self) -> None: ...
    def started(self) -> None: ...
    def failed(self, reason: str, *, outdated: bool = False) -> None: ...
    def ended(self, status: int | None) -> None: ...


@pytest.fixture
def stubs(tmp_path: Path) -> MacStubs:
    return install_stubs(tmp_path / "state")


@dataclass
class Watched:
    monitor: LogMonitor
    logged: list[tuple[str, dict[str, object]]]


@asynccontextmanager
async def watched(log: str, pauses: tuple[float, ...] = QUICK) -> AsyncIterator[Watched]:
    logged: list[tuple[str, dict[str, object]]] = []

    def note(event: str, **values: object) -> None:
        logged.append((event, values))

    monitor = LogMonitor(note, lambda suffix: stream_command(suffix, log), pauses_s=pauses)
    async with monitor:
        yield Watched(monitor, logged)


async def running(watching: Watched) -> None:
    await wait_until_async(lambda: watching.monitor.state is MonitorState.RUNNING, "the stream runs")


def message(monitor: LogMonitor, launch_id: str, text: str) -> str:
    return f"Sandbox: cat(7) deny(1) {text}\n{make_tag(launch_id, monitor.suffix)}"


async def test_refusals_reach_their_command(stubs: MacStubs) -> None:
    async with watched(stubs.log) as watching:
        await running(watching)
        one, two = Recorder(), Recorder()
        monitor = watching.monitor
        monitor.expect("l-1", one)
        monitor.expect("l-2", two)
        stubs.log_message(message(monitor, "l-1", "file-read-data /a"))
        stubs.log_message(message(monitor, "l-2", "file-read-data /b"))
        stubs.log_message(message(monitor, "l-3", "file-read-data /c"))
        stubs.log_message(message(monitor, "l-1", "mach-lookup com.apple.diagnosticd"))
        stubs.log_message("Sandbox: other(1) deny(1) file-read-data /d\nCMD64_bC0x_END_foreign")
        stubs.log_message("3 duplicate reports for " + message(monitor, "l-1", "file-read-data /e"))
        await wait_until_async(lambda: len(one.refusals) == 2, "both refusals are there")
        assert [(refusal.target, refusal.count) for refusal in one.refusals] == [("/a", 1), ("/e", 3)]
        assert [refusal.target for refusal in two.refusals] == ["/b"]
        status = monitor.status
        assert (status.refusals, status.noise, status.unknown, status.starts) == (5, 1, 1, 1)
    assert monitor.state is MonitorState.STOPPED


SITUATIONS: dict[str, tuple[str, str, str]] = {
    # name: (mode of the stand-in, program, words of the reason)
    "in a sandbox": ("sandboxed", "", "refuses to run inside a sandbox (status 64): log: Cannot run while sandboxed"),
    "absent": ("", "/no/such/log", "/no/such/log cannot be run (status 127)"),
    "not executable": ("", "/etc/passwd", "/etc/passwd cannot be run (status 126)"),
    "ends at once": ("", "/bin/true", "/bin/true ended with status 0"),
}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_what_keeps_it_from_running_is_said(stubs: MacStubs, name: str) -> None:
    """Unavailable, with the reason; tried again; never taken for "nothing was refused"."""
    mode, program, words = SITUATIONS[name]
    stubs.log_mode(mode)
    async with watched(program or stubs.log) as watching:
        monitor = watching.monitor
        seen: set[str] = set()

        def looked() -> bool:
            if monitor.state is MonitorState.UNAVAILABLE:
                seen.add(monitor.status.reason)
            return monitor.status.starts >= 3 and bool(seen)

        await wait_until_async(looked, "it was tried again")
        assert any(words in reason for reason in seen), seen
        assert monitor.state is not MonitorState.RUNNING
        assert ("log_monitor_unavailable", "again_in_s") in {(event, key) for event, v in watching.logged for key in v}


async def test_pauses_grow_and_begin_anew(stubs: MacStubs, monkeypatch: pytest.MonkeyPatch) -> None:
    stubs.log_mode("sandboxed")
    async with watched(stubs.log, (0.01, 0.02, 0.03)) as watching:
        await wait_until_async(lambda: watching.monitor.status.starts >= 5, "several starts")
        pauses = [values["again_in_s"] for event, values in watching.logged if event == "log_monitor_unavailable"]
        assert pauses[:4] == [0.01, 0.02, 0.03, 0.03]
        monkeypatch.setattr(monitor_module, "STEADY_S", 0.0)
        before = len(watching.logged)
        await wait_until_async(lambda: len(watching.logged) > before + 2, "another start")
        assert watching.logged[-1][1]["again_in_s"] == 0.01


async def test_it_comes_back_after_dying(stubs: MacStubs) -> None:
    stubs.log_mode("dies")
    recorder = Recorder()
    async with watched(stubs.log) as watching:
        await running(watching)
        watching.monitor.expect("l-1", recorder)
        stubs.log_message(message(watching.monitor, "l-1", "file-read-data /a"))
        await wait_until_async(lambda: watching.monitor.status.starts == 2, "it was started again")
        await running(watching)
        stubs.log_message(message(watching.monitor, "l-1", "file-read-data /b"))
        await wait_until_async(lambda: len(recorder.refusals) == 2, "both were heard")


async def test_a_silent_one_is_never_taken_for_running(stubs: MacStubs) -> None:
    """No caller waits for it."""
    stubs.log_mode("silent")
    async with watched(stubs.log) as watching:
        await wait_until_async(lambda: bool(stubs.log_starts), "it was started")
        assert watching.monitor.state is MonitorState.STARTING
        async with asyncio.timeout(5):
            await watching.monitor.settle("l-1", 3600)


async def test_garbage_before_the_first_line_does_no_harm(stubs: MacStubs) -> None:
    stubs.log_mode("garbage")
    recorder = Recorder()
    async with watched(stubs.log) as watching:
        await running(watching)
        watching.monitor.expect("l-1", recorder)
        stubs.log_message(message(watching.monitor, "l-1", "file-read-data /a"))
        await wait_until_async(lambda: len(recorder.refusals) == 1, "the refusal is there")
        assert watching.monitor.status.ignored >= 1


async def test_waiting_ends_with_the_first_refusal_or_the_time(stubs: MacStubs) -> None:
    async with watched(stubs.log) as watching:
        await running(watching)
        monitor = watching.monitor
        monitor.expect("l-1", Recorder())
        waiting = asyncio.create_task(monitor.settle("l-1", 3600))
        await asyncio.sleep(0)
        stubs.log_message(message(monitor, "l-1", "file-read-data /a"))
        async with asyncio.timeout(20):
            await waiting
        await monitor.settle("l-2", 0.01)


async def test_thousands_of_lines_do_not_hold_up_the_daemon(stubs: MacStubs) -> None:
    recorder = Recorder()
    async with watched(stubs.log) as watching:
        await running(watching)
        monitor = watching.monitor
        monitor.expect("l-1", recorder)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        flood = b"".join(message(monitor, "l-1", f"file-read-data /{n}").encode() + b"\0" for n in range(10_000))
        with (stubs.state / "log").open("ab") as log:
            log.write(flood)
        await wait_until_async(lambda: len(recorder.refusals) == 10_000, "all lines are there", limit_s=60)
        counting.cancel()
        assert [refusal.target for refusal in recorder.refusals[:3]] == ["/0", "/1", "/2"]
        assert turns > 20


async def test_forgotten_launches_are_counted(stubs: MacStubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "REMEMBERED", 2)
    async with watched(stubs.log) as watching:
        await running(watching)
        for number in range(3):
            watching.monitor.expect(f"l-{number}", Recorder())
        stubs.log_message(message(watching.monitor, "l-0", "file-read-data /a"))
        await wait_until_async(lambda: watching.monitor.status.unknown == 1, "it is counted")


async def test_the_stream_ends_with_the_monitor(stubs: MacStubs) -> None:
    async with watched(stubs.log) as watching:
        await running(watching)
        (pid,) = stubs.log_starts
        assert is_alive(pid)
    await wait_until_async(lambda: not is_alive(pid), "the stream has ended")


DAEMON = """
import asyncio, sys
from sandboxd.backends.macos.monitor import LogMonitor, MonitorState, stream_command
async def main():
    monitor = LogMonitor(lambda *_, **__: None, lambda suffix: stream_command(suffix, sys.argv[1]))
    async with monitor:
        while monitor.state is not MonitorState.RUNNING:
            await asyncio.sleep(0.01)
        print("running", flush=True)
        await asyncio.sleep(300)
asyncio.run(main())
"""


def test_the_stream_ends_with_a_daemon_that_is_killed(stubs: MacStubs) -> None:
    """Or each restart would leave one behind, waiting for messages that never come."""
    search = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, stubs.log], env={**os.environ, "PYTHONPATH": search}, stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline() == b"running\n"
        (pid,) = stubs.log_starts
        daemon.kill()
    wait_until(lambda: not is_alive(pid), "the stream has ended")


def test_what_is_asked_of_log() -> None:
    assert stream_command("abc") == (
        "/usr/bin/log", "stream", "--style", "compact", "--predicate", '(eventMessage ENDSWITH "abc")',
    )  # fmt: skip
    first, second = (LogMonitor(lambda *_: None).suffix for _ in range(2))
    assert first != second and first.isalnum()


async def test_it_runs_when_a_provoked_refusal_came_through(stubs: MacStubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of `log` comes before the stream is live."""
    monkeypatch.setattr(monitor_module, "PROVOKE_AFTER_S", (0.01,))
    tags: list[str] = []

    async def provoke(tag: str) -> None:
        tags.append(tag)
        if len(tags) >= 3:
            stubs.log_message(f"Sandbox: mkdir(7) deny(1) file-write-create /x\n{tag}")

    monitor = LogMonitor(lambda *_, **__: None, lambda suffix: stream_command(suffix, stubs.log), provoke=provoke)
    async with monitor:
        await wait_until_async(lambda: len(tags) >= 2)
        assert monitor.state is MonitorState.STARTING
        await wait_until_async(lambda: monitor.state is MonitorState.RUNNING)
        assert monitor.status.refusals == monitor.status.unknown == 0


async def test_an_account_that_may_not_read_the_log_is_told(tmp_path: Path) -> None:
    script = "echo 'log: Could not open local log store: Operation not permitted' >&2; exit 77"
    monitor = LogMonitor(lambda *_, **__: None, lambda suffix: ("/bin/sh", "-c", script))
    async with monitor:
        await wait_until_async(lambda: monitor.state is MonitorState.UNAVAILABLE)
        assert "may administer this computer (status 77)" in monitor.status.reason
