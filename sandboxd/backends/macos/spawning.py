"""A child process start that survives cancellation.

A cancelled `asyncio.create_subprocess_exec` waits for the child's end and for pipes that it has not opened: it can wait
for ever (Python 3.11 to 3.13 at least)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import IO

PIPE = asyncio.subprocess.PIPE
DEVNULL = asyncio.subprocess.DEVNULL


async def spawn(
    *words: str,
    stdin: int | IO[bytes] = DEVNULL,
    stdout: int | IO[bytes] = DEVNULL,
    stderr: int | IO[bytes] = DEVNULL,
    env: Mapping[str, str] | None = None,
    limit: int = 64 * 1024,
) -> asyncio.subprocess.Process:
    """Start a child in its own session. Cancelled, it leaves none. Raises OSError."""
    starting = asyncio.get_running_loop().create_task(
        asyncio.create_subprocess_exec(
            *words, stdin=stdin, stdout=stdout, stderr=stderr, env=env, limit=limit, start_new_session=True
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        if starting.exception() is None:
            await end(starting.result())
        raise


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill the child with its session, and wait. A second call is no error."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
