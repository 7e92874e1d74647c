"""One browser for all tests of the page, which `./dev screens` runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.browser import PRESENT, Chromium, chromium
from support.daemon import running_daemon
from support.fake_runtime import FakeMachine
from support.web_page import Opened, opened_page

SETTINGS = {"sandbox": {"enabled": True, "network": {"allowedDomains": ["pypi.test"]}}}


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def opened(machine: FakeMachine) -> AsyncIterator[Opened]:
    async with running_daemon(settings=SETTINGS, assemble=machine.assemble) as daemon, opened_page(daemon) as page:
        yield page


@pytest.fixture
async def browser() -> AsyncIterator[Chromium]:
    if "SANDBOXD_SCREENS" not in os.environ:
        pytest.skip("./dev screens runs it: a browser is heavy")
    assert PRESENT, "install chromium"
    with tempfile.TemporaryDirectory(prefix="chromium-", dir="/var/tmp") as directory:
        async with chromium(Path(directory)) as started:
            yield started
