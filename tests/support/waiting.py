"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 30.0
"""How long a condition may take before the test gives up. Generous: it is reached only when the test fails."""

_INTERVAL_S = 0.01


def wait_until(condition: Callable[[], T], what: str = "", *, limit_s: float = LIMIT_S) -> T:
    """Calls `condition` until its result is true and returns that result. AssertionError naming `what` otherwise."""
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {limit_s:g} s: {what or condition}")
        time.sleep(_INTERVAL_S)
    return result


async def wait_until_async(condition: Callable[[], T], what: str = "", *, limit_s: float = LIMIT_S) -> T:
    """The same on the event loop, which goes on working in between."""
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {limit_s:g} s: {what or condition}")
        await asyncio.sleep(_INTERVAL_S)
    return result


def time_limits(first_s: float, has_begun: Callable[[], bool]) -> Iterator[float]:
    """For a command whose time runs out: limits to try it with, each ten times longer, until it has begun before its
    time was up. What is to be seen of its end cannot be seen of one that a slow machine has not started yet."""
    limit_s = first_s
    while True:
        yield limit_s
        if has_begun():
            return
        assert limit_s < LIMIT_S, f"did not begin within {limit_s:g} s"
        limit_s *= 10
