"""The page beside a daemon with a back end that starts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.web_page import Opened, opened_page


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def running(machine: FakeMachine) -> AsyncIterator[RunningDaemon]:
    async with running_daemon(assemble=machine.assemble) as started:
        yield started


@pytest.fixture
async def opened(running: RunningDaemon) -> AsyncIterator[Opened]:
    async with opened_page(running) as page:
        yield page
