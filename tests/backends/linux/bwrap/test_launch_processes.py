"""The two processes of a launch: which end is awaited, and that either is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from sandboxd.backends.linux.bwrap import launch_processes
from sandboxd.backends.linux.bwrap.launch_processes import LaunchProcesses, OrphanSearch
from support.waiting import wait_until_async


@dataclass
class Pair:
    """Stand-ins for bubblewrap and process 1, unrelated here."""

    processes: LaunchProcesses
    bubblewrap: subprocess.Popen[bytes]
    init: subprocess.Popen[bytes]
    heard: list[str] = field(default_factory=list)

    def await_end(self) -> None:
        self.processes.await_end(lambda: self.heard.append("gone"))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with ExitStack() as stack:
        started = []
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
            stack.callback(process.kill)
            started.append(process)
        bubblewrap, init = started
        orphans: list[str] = []
        search = OrphanSearch(lambda pids: orphans.append(str(pids)))
        processes = LaunchProcesses(bubblewrap.pid, os.pidfd_open(bubblewrap.pid), search.ask)
        made = Pair(processes, bubblewrap, init, orphans)
        processes.watch()
        yield made
        processes.close()
        assert processes.is_closed and processes.ends == ()


async def test_once_process_1_has_spoken_its_end_is_awaited(pair: Pair) -> None:
    pair.processes.heard_from(pair.init.pid)
    pair.processes.heard_from(pair.bubblewrap.pid)
    assert pair.processes.init == pair.init.pid
    pair.await_end()
    pair.bubblewrap.kill()
    pair.bubblewrap.wait()
    assert pair.heard == []
    pair.init.kill()
    await wait_until_async(lambda: pair.heard == ["gone"], "the end is told")


@pytest.mark.parametrize("sender", ["nobody known", "bubblewrap"])
async def test_without_a_helper_the_end_is_bubblewraps(pair: Pair, sender: str) -> None:
    pair.processes.heard_from(0 if sender == "nobody known" else pair.bubblewrap.pid)
    assert pair.processes.init is None
    pair.await_end()
    pair.bubblewrap.kill()
    await wait_until_async(lambda: pair.heard == ["gone"], "the end is told")


async def test_a_process_1_that_is_gone_already(pair: Pair) -> None:
    pair.init.kill()
    pair.init.wait()
    pair.processes.heard_from(pair.init.pid)
    assert pair.processes.ends == (pair.processes.pidfd,)


async def test_both_are_killed(pair: Pair) -> None:
    pair.processes.heard_from(pair.init.pid)
    pair.processes.kill()
    assert (pair.bubblewrap.wait(), pair.init.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    pair.processes.kill()  # no process is left


@pytest.mark.parametrize("spoken", [False, True])
async def test_what_bubblewrap_may_have_left_is_looked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, spoken: bool
) -> None:
    monkeypatch.setattr(launch_processes, "end_orphans", lambda: (7,))
    monkeypatch.setattr(launch_processes, "_ORPHANS_AFTER_S", 0.0)
    if spoken:
        pair.processes.heard_from(pair.init.pid)
    pair.bubblewrap.kill()
    if spoken:
        pair.bubblewrap.wait()
        pair.init.kill()
        pair.await_end()
        await wait_until_async(lambda: bool(pair.heard), "the end is told")
        assert pair.heard == ["gone"]
    else:
        await wait_until_async(lambda: pair.heard == ["(7,)"], "it is told")


async def test_who_has_them_now_can_end_them(pair: Pair) -> None:
    pidfd = pair.processes.pidfd
    pair.processes.let_go()
    assert pair.processes.is_closed
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert pair.bubblewrap.wait() == -signal.SIGKILL
    os.close(pidfd)
