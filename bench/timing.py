"""Timing things in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

Action = Callable[[], object]


def in_turns(actions: Mapping[str, Action], rounds: int, *, warm_up: int = 3) -> dict[str, list[float]]:
    """Seconds of each action, sorted.

    They are measured one after the other in every round, so that other load hits all of them alike."""
    for _ in range(warm_up):
        for action in actions.values():
            action()
    taken: dict[str, list[float]] = {name: [] for name in actions}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, action in actions.items():
                begin = time.perf_counter()
                action()
                taken[name].append(time.perf_counter() - begin)
    finally:
        gc.enable()
    return {name: sorted(seconds) for name, seconds in taken.items()}


def median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def percentile(seconds: list[float], percent: float) -> float:
    """Of sorted values, the nearest rank."""
    return seconds[min(len(seconds) - 1, int(len(seconds) * percent / 100))]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
