"""A fake daemon and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd_client import Client
from sandboxd_client.testing import FakeDaemon


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    with FakeDaemon() as daemon:
        yield daemon


@pytest.fixture
def box(fake: FakeDaemon) -> Iterator[Client]:
    with Client(fake.socket, autostart=False, timeout=20) as client:
        yield client
