"""Children that are cancelled while they start: no caller waits for ever, and no process is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.macos.monitor import LogMonitor, MonitorState
from sandboxd.backends.macos.probe import SeatbeltProbe
from sandboxd.backends.macos.seatbelt.dialect import ADDRESS, TIOCSTI
from sandboxd.backends.macos.spawning import PIPE, end, spawn
from sandboxd.errors import HostError
from support.processes import is_alive
from support.waiting import wait_until_async

TURNS = range(12)
"""How often the event loop turns before the cancellation: from before the child exists until it runs."""


async def cancelled_after(turns: int, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    task = asyncio.ensure_future(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=20)
    assert done, f"still waiting, {turns} turns after its start"
    if not task.cancelled():
        assert task.exception() is None


def sleeper(tmp_path: Path) -> tuple[str, ...]:
    return ("sh", "-c", f"echo $$ >> {tmp_path}/pids; sleep 300 & echo $! >> {tmp_path}/pids; wait")


async def nobody_is_left(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    await asyncio.sleep(0.05)
    pids = [int(word) for word in note.read_text().split()] if note.exists() else []
    await wait_until_async(lambda: not any(map(is_alive, pids)), "all have ended")


@pytest.mark.parametrize("turns", TURNS)
async def test_spawn(tmp_path: Path, turns: int) -> None:
    async def work() -> None:
        process = await spawn(*sleeper(tmp_path), stdin=PIPE, stdout=PIPE, stderr=PIPE)
        try:
            await process.wait()
        finally:
            await end(process)

    await cancelled_after(turns, work)
    await nobody_is_left(tmp_path)


@pytest.mark.parametrize("turns", TURNS)
async def test_monitor(tmp_path: Path, turns: int) -> None:
    monitor = LogMonitor(lambda *_, **__: None, lambda suffix: sleeper(tmp_path))

    async def work() -> None:
        async with monitor:
            for _ in range(turns):
                await asyncio.sleep(0)

    async with asyncio.timeout(20):
        await work()
    assert monitor.state is MonitorState.STOPPED
    await nobody_is_left(tmp_path)


@pytest.mark.parametrize("turns", TURNS)
async def test_probe_can_be_asked_again(tmp_path: Path, turns: int) -> None:
    """The caller has gone; the next one gets an answer."""
    program = tmp_path / "sandbox-exec"
    program.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nsleep 0.05\nexit 1\n")
    program.chmod(0o755)
    probe = SeatbeltProbe(str(program))
    await cancelled_after(turns, probe.ready)
    async with asyncio.timeout(20):
        await probe.ready()
    await nobody_is_left(tmp_path)


async def test_constructs_that_do_not_compile_are_named(tmp_path: Path) -> None:
    program = tmp_path / "sandbox-exec"
    program.write_text('#!/bin/sh\ncase "$*" in *mkdir*) exit 1;; *ioctl-command*|*string-append*) exit 65;; esac\n')
    program.chmod(0o755)
    assert await SeatbeltProbe(str(program)).ready() == {TIOCSTI, ADDRESS}


async def test_what_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await spawn(str(tmp_path / "none"))
    with pytest.raises(HostError):
        await SeatbeltProbe(str(tmp_path / "none")).ready()


async def test_end_takes_the_session_along(tmp_path: Path) -> None:
    process = await spawn(*sleeper(tmp_path))
    await wait_until_async(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    await end(process)
    await nobody_is_left(tmp_path)
    await end(process)
