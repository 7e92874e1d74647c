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


FRONT = ROOT / "vendor" / "seccomp" / os.uname().machine / "front"
BOTH_WAYS = ("test_run", "test_signals", "test_terminal", "test_told")
"""Modules that are tried through Python alone, and through the front, which needs Python for what it does not know."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cli" in metafunc.fixturenames and metafunc.module.__name__.endswith(BOTH_WAYS):
        metafunc.parametrize("cli", ["python", "front"], indirect=True)


class CommandLine:
    """`argv` is what starts `sandboxd`, `env` lets it find the code and the fake daemon."""

    def __init__(self, fake: FakeDaemon, way: str = "python") -> None:
        self.argv = [sys.executable, "-P", "-m", "sandboxd"]
        if way == "front":
            self.argv = [str(FRONT), sys.executable, str(ROOT / "scripts" / "sandboxd")]
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
def cli(fake: FakeDaemon, request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(fake, getattr(request, "param", "python"))
