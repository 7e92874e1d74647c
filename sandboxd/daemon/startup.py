"""How long the start took, phase by phase, for `status`: a slow start is looked into where it was slow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float


class StartUp:
    """`reached(name)` ends the phase of that name; the next one has begun with it."""

    def __init__(self, begun: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock() if begun is None else begun
        self._phases: list[Phase] = []

    @classmethod
    def of_this_process(cls) -> StartUp:
        """The first phase, `program`, is what came before: the interpreter, and our code being read."""
        startup = cls(_process_start())
        startup.reached("program")
        return startup

    def reached(self, name: str) -> None:
        now = self._clock()
        self._phases.append(Phase(name, max(now - self._last, 0.0)))
        self._last = now

    @property
    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._phases)

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self._phases)


def _process_start() -> float | None:
    """When this process began, on the monotonic clock (proc(5), field 22 of stat: ticks since the machine's start,
    which count while it sleeps). None where that is not known."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    return time.monotonic() - age
