"""Ending a daemon that nobody uses, for whoever wants that (`serve --idle-exit`). Without it there is no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def stop_when_idle(
    seconds: float, is_busy: Callable[[], bool], uses: Callable[[], int], stop: Callable[[str], None]
) -> None:
    """Ask for the end once nothing was in use for that long. `uses` counts what has begun since the start, so that what
    comes and goes between two looks is seen too. One look each `seconds`: it may take up to twice as long."""
    while True:
        before = uses()
        await asyncio.sleep(seconds)
        if uses() == before and not is_busy():
            stop(f"idle for {seconds:g} s")
            return
