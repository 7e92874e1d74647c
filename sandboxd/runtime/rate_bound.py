"""Rate bound for new violations of one command."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST = 400
PER_SECOND = 100.0


class RateBound:
    """A bucket of `burst` that fills again with `per_second`.

    `lost` counts what it refused, `admitted` what it did not."""

    def __init__(
        self, burst: int = BURST, per_second: float = PER_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst = float(burst)
        self._per_second = per_second
        self._clock = clock
        self._left = self._burst
        self._at = clock()
        self.lost = 0
        self.admitted = 0

    def admits(self, count: int = 1) -> bool:
        """Return whether one more may be recorded, else count `count` as lost."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1.0:
            self.lost += count
            return False
        self._left -= 1.0
        self.admitted += 1
        return True
