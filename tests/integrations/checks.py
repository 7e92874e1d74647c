"""Tasks for every framework, with a model of the tests: run by the interpreter that has the framework."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

LONG = f"sleep 1000.{os.getpid()}"
OUTSIDE = Path.home() / "outside"
COMMANDS = (
    "echo it works; echo $SANDBOX_RUNTIME >mark",
    f"touch {OUTSIDE}",
    "echo kept >/tmp/kept; (exit 3)",
    "cat /tmp/kept",
)


def check(results: list[str], *, says_status: bool = True) -> None:
    """Compare what the model got for COMMANDS, and what is on this machine."""
    first, blocked, failed, kept = results
    assert "it works" in first and Path("mark").read_text() == "1\n", first
    assert not OUTSIDE.exists() and "<sandbox_violations>" in blocked and str(OUTSIDE) in blocked, blocked
    assert "3" in failed or not says_status, failed
    assert "kept" in kept, "the commands share a session"
    assert not os.path.exists("/tmp/kept")


def runs(line: str) -> bool:
    """Whether a process of this machine has these words."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if line in file.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                return True
        except OSError:
            continue
    return False


async def started(line: str) -> None:
    """Wait until such a process runs."""
    for _ in range(3000):
        if runs(line):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{line} does not run")
