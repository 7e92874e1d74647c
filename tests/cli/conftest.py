"""A fake daemon, and our command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client.testing import FakeDaemon

ROOT = Path(__file__).resolve().parents[2]


class CommandLine:
    """`argv` is what starts `sandboxd`, `env` lets it find the code and the fake daemon."""

    def __init__(self, fake: FakeDaemon) -> None:
        self.argv = [sys.executable, "-P", "-m", "sandboxd"]
        self.env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}",
            "SANDBOXD_SOCKET": fake.socket,
            "PYTHONWARNINGS": "error",
        }
        self.env.pop("PYTHONUNBUFFERED", None)  # with it, output that is never flushed would not be missed

    def run(self, *arguments: str | bytes, **keywords: Any) -> subprocess.CompletedProcess[str]:
        given: dict[str, Any] = {"capture_output": True, "text": True, "env": self.env, "timeout": 60, **keywords}
        return subprocess.run([*self.argv, *arguments], check=False, **given)

    def popen(self, *arguments: str, **keywords: Any) -> subprocess.Popen[str]:
        given: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "env": self.env, **keywords}
        return subprocess.Popen([*self.argv, *arguments], **given)


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    with FakeDaemon() as daemon:
        yield daemon


@pytest.fixture
def cli(fake: FakeDaemon) -> CommandLine:
    return CommandLine(fake)
