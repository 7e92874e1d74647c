"""docs/client.md is true: its examples run, its names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sandboxd_client
from sandboxd_client import Client
from sandboxd_client.running.launching import RunOptions
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.wire.messages.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(fake: FakeDaemon, example: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "client"), "SANDBOXD_SOCKET": fake.socket, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_every_error_and_keyword_and_method_is_there() -> None:
    for name in sandboxd_client.__all__:
        member = getattr(sandboxd_client, name)
        if isinstance(member, type) and issubclass(member, Exception):
            assert f"`{name}`" in PAGE or name in ("SandboxdError", "CommandRefused"), name
    words = set(re.findall(r"\w+", PAGE))
    assert set(RunOptions.__annotations__) <= words
    by_rule = {name.replace(".", "_") for name in METHODS}
    assert {name for name in dir(Client) if not name.startswith("_")} - by_rule - {"call", "connect", "close"} <= words
