"""Programs that the daemon runs: whatever they and their children do, none is waited for in vain, and none is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.macos.monitor import LogMonitor, MonitorState
from sandboxd.backends.macos.probe import SeatbeltProbe
from sandboxd.backends.macos.seatbelt.dialect import ADDRESS, TIOCSTI
from sandboxd.children import PIPE, Child, run_program
from sandboxd.errors import HostError
from support.processes import Process, descendants, is_alive
from support.waiting import wait_until_async

TURNS = range(12)
"""How often the event loop turns before the cancellation: from before the child exists until it runs."""
SLEEPER = ("sh", "-c", "sleep 300 & wait")
LIMIT_S = 20.0
"""Reached where a test fails."""


async def cancelled_after(turns: int, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    task = asyncio.ensure_future(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=LIMIT_S)
    assert done, f"still waiting, {turns} turns after its start"
    if not task.cancelled():
        assert task.exception() is None


@contextlib.asynccontextmanager
async def none_is_left() -> AsyncIterator[None]:
    before = {one.birth for one in descendants()}
    yield
    await wait_until_async(lambda: {one.birth for one in descendants()} <= before, "all have ended")


@pytest.mark.parametrize(
    ("line", "status", "output", "errors"),
    [
        ("echo a; echo b >&2; exit 3", 3, b"a\n", b"b\n"),
        ("cat; kill -9 $$", -9, b"given", b""),
        ("head -c 300000 /dev/zero", 0, bytes(300_000), b""),
        ("pwd", 0, b"/\n", b""),
        ("trap '' TERM HUP INT; sleep 300", None, b"", b""),
        # what is left of the group ends; a process of another session, which holds the streams, is not waited for
        ("echo a; sleep 300 & exit 0", 0, b"a\n", b""),
        ("x=$(setsid sh -c 'sleep 300 >&2 &'); echo a; sleep 300", None, b"a\n", b""),
        ("x=$(setsid sh -c 'sleep 300 >&2 &'); echo a", 0, b"a\n", b""),
    ],
)
async def test_the_end_and_the_output_of_a_program(line: str, status: int | None, output: bytes, errors: bytes) -> None:
    before = {one.birth for one in descendants()}
    async with asyncio.timeout(LIMIT_S):
        within_s = 0.3 if status is None else LIMIT_S
        done = await run_program(("sh", "-c", line), within_s, stdin=b"given", errors=True)
    assert (done.status, done.output, done.errors) == (status, output, errors)

    def left() -> list[Process]:
        return [one for one in descendants() if one.birth not in before]

    await wait_until_async(lambda: len(left()) == line.count("setsid"), "the group has ended")
    for one in left():
        os.kill(one.pid, signal.SIGKILL)
        os.waitpid(one.pid, 0)


async def test_a_program_that_prints_without_end_is_ended() -> None:
    """Each way that its output may be cut into pieces: asyncio's own processes hung in one of twenty cases."""
    for _ in range(30):
        async with asyncio.timeout(LIMIT_S):
            done = await run_program(("yes", "value"), LIMIT_S, most=8192)
        assert done.status == -signal.SIGKILL and 8192 < len(done.output) <= 8192 + (1 << 16)


async def test_a_number_is_reserved_until_its_group_was_killed(tmp_path: Path) -> None:
    child = Child(("sh", "-c", f"sleep 300 & echo $! $$ > {tmp_path}/pids; exit 4"))
    await child.over()
    left, leader = map(int, (tmp_path / "pids").read_text().split())
    assert Path(f"/proc/{leader}/stat").read_text().split()[2] == "Z" and is_alive(left)
    assert await child.end() == 4 == await child.end()
    await wait_until_async(lambda: not is_alive(left))
    assert not Path(f"/proc/{leader}").exists()


async def test_what_cannot_be_started_or_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {one.birth for one in descendants()}
    with pytest.raises(OSError):
        await run_program((str(tmp_path / "none"),), LIMIT_S)
    with pytest.raises(HostError):
        await SeatbeltProbe(str(tmp_path / "none")).ready()

    def refused(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match="Too many"):
        Child(("sleep", "300"), stdin=PIPE, output=print, errors=print)
    assert {one.birth for one in descendants()} == before


@pytest.mark.parametrize("turns", TURNS)
async def test_a_cancelled_run_leaves_nothing(turns: int) -> None:
    async with none_is_left():
        await cancelled_after(turns, lambda: run_program(SLEEPER, LIMIT_S, errors=True))


async def test_an_end_that_is_cancelled_leaves_nothing() -> None:
    async with none_is_left():
        child = Child(SLEEPER, stdin=PIPE, output=len, errors=len)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(LIMIT_S):
                ending = asyncio.ensure_future(child.end())
                await asyncio.sleep(0)
                ending.cancel()
                await ending
    assert await child.end() == -signal.SIGKILL


async def test_a_monitor_is_left_while_its_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation meets what follows the end."""
    ended = []
    original = Child.end

    async def end(self: Child) -> int:
        ended.append(status := await original(self))
        return status

    def tell(started: asyncio.Event, *_: object, **__: object) -> None:
        started.set()

    monkeypatch.setattr(Child, "end", end)
    for turns in TURNS:
        started = asyncio.Event()
        monitor = LogMonitor(partial(tell, started), lambda _: ("/bin/true",), pauses_s=(0.0,))
        async with monitor:
            await asyncio.wait_for(started.wait(), LIMIT_S)
            for _ in range(turns):
                await asyncio.sleep(0)
        assert len(ended) == monitor.status.starts, turns
        ended.clear()


@pytest.mark.parametrize("turns", TURNS)
async def test_monitor(turns: int) -> None:
    monitor = LogMonitor(lambda *_, **__: None, lambda suffix: SLEEPER)

    async def work() -> None:
        async with monitor:
            for _ in range(turns):
                await asyncio.sleep(0)

    async with none_is_left(), asyncio.timeout(20):
        await work()
    assert monitor.state is MonitorState.STOPPED


@pytest.mark.parametrize("turns", TURNS)
async def test_probe_can_be_asked_again(tmp_path: Path, turns: int) -> None:
    """The caller has gone; the next one gets an answer."""
    program = tmp_path / "sandbox-exec"
    program.write_text("#!/bin/sh\nsleep 0.05\nexit 1\n")
    program.chmod(0o755)
    probe = SeatbeltProbe(str(program))
    async with none_is_left():
        await cancelled_after(turns, probe.ready)
        async with asyncio.timeout(20):
            await probe.ready()


async def test_constructs_that_do_not_compile_are_named(tmp_path: Path) -> None:
    program = tmp_path / "sandbox-exec"
    program.write_text('#!/bin/sh\ncase "$*" in *mkdir*) exit 1;; *ioctl-command*|*string-append*) exit 65;; esac\n')
    program.chmod(0o755)
    assert await SeatbeltProbe(str(program)).ready() == {TIOCSTI, ADDRESS}
