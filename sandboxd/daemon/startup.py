"""Duration of the start, phase by phase, for `status`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float


class StartUp:
    """Clock of the phases. `reached(name)` ends a phase and begins the next."""

    def __init__(self, begun: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock() if begun is None else begun
        self._phases: list[Phase] = []

    @classmethod
    def of_this_process(cls) -> StartUp:
        """Begin with a phase `program`: the start of the interpreter and the imports."""
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
    """Return the start of this process on the monotonic clock; None where unknown.

    proc(5), field 22 of stat, has ticks since the start of the host, which count during suspend."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    return time.monotonic() - age
