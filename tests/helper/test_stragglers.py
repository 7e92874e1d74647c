"""bubblewrap, killed while it makes the namespaces, leaves a child that waits for ever. The daemon has to end it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import pytest

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, Listeners
from sandboxd.backends.linux.bwrap.orphans import end_orphans
from sandboxd.backends.linux.helper.bridge import Bridge, ExpectedLaunch
from sandboxd.backends.linux.helper.launch_configuration import Flags, LaunchConfiguration, Listener
from sandboxd.backends.linux.seccomp.filter import build_filter
from sandboxd.policy.violation import DenialEvent
from support import processes
from support.waiting import wait_until, wait_until_async

from .conftest import MACHINE, TICKET, Launcher

TRIES = 40
MOST_TRIES = 20 * TRIES


def kill_soon(pid: int, source: random.Random, within_s: float = 0.004) -> None:
    """Within the first milliseconds, during which bubblewrap is busy with the namespaces."""
    until = time.perf_counter() + source.random() * within_s
    while time.perf_counter() < until:
        pass
    os.kill(pid, signal.SIGKILL)


def left_below(before: set[int]) -> list[processes.Process]:
    return [process for process in processes.descendants() if process.pid not in before]


def test_what_is_stuck_is_ended(launch: Launcher) -> None:
    """Whether one gets stuck is chance. One that has not ended by itself shortly after its end is found."""
    source, before = random.Random(1), {process.pid for process in processes.descendants()}
    for _ in range(TRIES):
        sandbox = launch.start(launch.words())
        sandbox.accept()
        kill_soon(sandbox.process.pid, source)
        sandbox.process.wait()
        sandbox.close()

    ended: set[int] = set()

    def gone() -> bool:
        ended.update(end_orphans())
        return not left_below(before)

    wait_until(gone, "every process has ended")
    assert ended, "none was stuck"


def test_nobody_else_is_harmed(launch: Launcher) -> None:
    """Neither a launch that waits for its configuration, nor a sandbox that waits for GO, nor one that runs."""
    starting = launch.start(launch.words(stage="launch-args"))
    starting.accept()
    waiting = launch.connect()
    held = launch(["true"], flags=Flags.WAIT)
    running = launch(["sleep", "1000"])
    assert not set(end_orphans()) & {p.pid for p in processes.descendants()}
    assert [one.process.poll() for one in (starting, waiting, held, running)] == [None] * 4


@dataclass
class Observer:
    """Kills bubblewrap as soon as it is known who it is."""

    source: random.Random
    told: list[str] = field(default_factory=list)

    def lost(self, count: int) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        answer(0)

    def refused(self, refusal: DenialEvent) -> None:
        self.told.append("refused")

    def claimed(self, pid: int) -> None:
        self.told.append("claimed")
        kill_soon(pid, self.source)

    def listening(self, listeners: Listeners) -> None:
        for one in (listeners.http, listeners.socks):
            assert one is not None
            one.close()
        os.close(listeners.namespace)

    def starting(self, inside: object = None) -> None: ...

    def listens(self) -> None: ...

    def started(self) -> None:
        self.told.append("started")

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self.told.append("failed")

    def ended(self, status: int | None) -> None:
        self.told.append("ended")


def has_ended(observer: Observer) -> bool:
    return "ended" in observer.told


@dataclass
class Caller:
    pid: int


def identify(connection: socket.socket) -> Caller:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return Caller(int.from_bytes(credentials[:4], "little"))


async def test_the_bridge_sees_to_it(launch: Launcher) -> None:
    launch.listener.close()
    bridge = Bridge(launch.path, identify, lambda event, **values: None)
    bridge.open()
    os.chown(launch.path, launch.identity.uid, -1)
    listeners = (Listener.tcp("127.0.0.1", 3128), Listener.tcp("127.0.0.1", 1080))
    configuration = LaunchConfiguration((b"sleep", b"1000"), build_filter(MACHINE), listeners)
    source, before = random.Random(2), {process.pid for process in processes.descendants()}
    try:
        for _ in range(TRIES):
            observer = Observer(source)
            bridge.expect(TICKET, ExpectedLaunch(configuration, None, observer))
            sandbox = launch.start(launch.words())
            await wait_until_async(partial(has_ended, observer), "ended")
            sandbox.close()
        await wait_until_async(lambda: not left_below(before), "every process has ended")
    finally:
        bridge.close()


@pytest.mark.parametrize("late", [False, True])
async def test_the_bridge_sees_to_those_that_it_refuses(launch: Launcher, late: bool) -> None:
    """A ticket that has been called off meanwhile, and a bubblewrap that was killed before the daemon could look."""
    launch.listener.close()
    seen, told = list[str](), asyncio.Event()

    def log(event: str, **values: object) -> None:
        seen.append(event)
        told.set()

    bridge = Bridge(launch.path, identify, log)
    bridge.open()
    os.chown(launch.path, launch.identity.uid, -1)
    source, before = random.Random(3), {process.pid for process in processes.descendants()}
    refused = "bridge_peer_refused" if late else "bridge_ticket_unknown"
    tries = 0
    try:
        while tries < TRIES or (tries < MOST_TRIES and "bridge_straggler_ended" not in seen):
            tries += 1
            sandbox = launch.start(launch.words())
            while not late and seen.count(refused) < tries:  # a wait that polls would be over too late
                told.clear()
                await asyncio.wait_for(told.wait(), 30)
            kill_soon(sandbox.process.pid, source, 0.02 if late else 0.004)
            sandbox.process.wait()
            sandbox.close()
            await asyncio.sleep(0)  # the bridge hears of a late one after its end
        await wait_until_async(lambda: not left_below(before), "every process has ended")
    finally:
        bridge.close()
    assert refused in seen and "bridge_straggler_ended" in seen, (tries, Counter(seen))
