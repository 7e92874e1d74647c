"""A daemon with a back end that starts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def running(machine: FakeMachine) -> AsyncIterator[RunningDaemon]:
    async with running_daemon(assemble=machine.assemble) as started:
        yield started


@pytest.fixture
async def client(running: RunningDaemon) -> AsyncIterator[RawClient]:
    async with running.client() as connected:
        yield connected
