"""Fair shares of processor time for proxies and clients.

An await that can complete at once does not suspend: asyncio continues the same task for as long as its sockets are
ready. So a command counts the work of its connections. Once its share of a turn of the event loop is used up, they wait
for a later turn, first come, first served. All commands together have `BUDGET` for a turn. A step that exceeds the
share is a debt, taken from the following turns.

While another command starts or ends, a command that has lately done more than a little waits altogether, and costs no
turn meanwhile. Such a pause is short, and a part of the time after it is free of pauses, so that launches one after the
other do not starve connections.

A unit of cost is about a microsecond of the daemon. The figures need no more precision."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

BUDGET: Final = 400
"""Units of one turn of the event loop, for all commands together."""
LEAST: Final = 40
"""Units of one command, whatever the number of commands."""
MOST_OWED: Final = 50 * BUDGET
LESS: Final = 4
"""Divisor of all shares while a command starts or ends, or a request is answered."""
LONGEST_PAUSE_S: Final = 0.06
"""Of one pause, however often it is extended."""
PAUSED: Final = 4
"""A pause is followed by a time without pause: this part of its length."""
ANSWER_S: Final = 0.003
"""Pause for a request of a client."""
CREDIT: Final = 20_000
"""Units that make a command heavy, beyond what it may have done since (`FREE`)."""
FREE: Final = 50_000
"""Units of a second that do not make a command heavy."""

STEP: Final = 10
"""Cost of any step: a system call and the code around it."""
LINE: Final = 3
"""Cost of a line of a head or a chunked body, besides its bytes (`TEXT`)."""
TEXT: Final = 100
"""Bytes of such lines for one unit."""
CIPHER: Final = 2
"""Cost of bytes to encrypt or decrypt, as a multiple of that of moving them."""
CONNECTION: Final = 200
"""Cost of accepting a connection, or of routing a request."""
QUESTION: Final = 200
"""Cost of answering a name look-up."""
_BYTES: Final = 6144
"""Bytes moved for one unit: a splice in and out of a pipe takes 1.4 us for 8 KiB, with its part of the step."""


class Turns:
    """The shares of all commands of a daemon, on its event loop."""

    def __init__(self, budget: int = BUDGET, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._active: dict[Share, None] = {}
        self._share = budget
        self._begun: asyncio.Handle | None = None
        self._hurried_until = 0.0
        self._pause_began = self._paused_until = self._no_pause_before = 0.0
        self._paused: dict[Share, None] = {}
        self._pause: asyncio.TimerHandle | None = None
        self.count = 0
        """Turns with any work, so far."""

    @property
    def share(self) -> int:
        """Return the share of each command in this turn."""
        return self._share

    @property
    def is_pausing(self) -> bool:
        """Return whether heavy commands wait."""
        return self._clock() < self._paused_until

    def hurry(self, seconds: float = ANSWER_S) -> None:
        """Reduce the shares for this time, and pause heavy commands, because a command starts or ends."""
        now = self._clock()
        self._hurried_until = max(self._hurried_until, now + seconds)
        if now >= self._paused_until:
            if now < self._no_pause_before:
                return
            self._pause_began = now
        end = self._paused_until = min(self._hurried_until, self._pause_began + LONGEST_PAUSE_S)
        self._no_pause_before = end + (end - self._pause_began) / PAUSED

    def activate(self, share: Share) -> None:
        """Request another turn for a share with work done or waiting."""
        self._active[share] = None
        if self._begun is None:
            self._begun = self._schedule()

    def _schedule(self) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = None
        self.count += 1
        now = self._clock()
        active, self._active = self._active, {}
        heavy = [share for share in active if share.is_heavy(now)] if self.is_pausing else []
        for share in heavy:
            del active[share]
            self._paused[share] = None
        if heavy and self._pause is None:
            self._end_pause_later()
        less = LESS if now < self._hurried_until else 1
        self._share = max(self._budget // max(len(active), 1), min(LEAST, self._budget)) // less
        for share in active:
            share.begin(self._share)

    def _end_pause_later(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(self._paused_until - self._clock(), self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        if self.is_pausing:  # it was extended
            self._end_pause_later()
            return
        paused, self._paused = self._paused, {}
        for share in paused:
            self.activate(share)


class Share:
    """One command's share; `held` counts the bytes kept for incomplete requests."""

    __slots__ = (
        "__weakref__", "_least_price", "_left", "_most_owed", "_price", "_recent", "_recent_at", "_spent", "_turns",
        "_waiting", "_woken", "held",
    )  # fmt: skip

    def __init__(self, turns: Turns | None = None, most_owed: int = MOST_OWED, least_price: int = STEP) -> None:
        self._least_price = least_price
        self._most_owed = most_owed
        self._turns = turns or Turns()
        self._left = self._turns.share
        self._waiting: deque[Callable[[], None]] = deque()
        self._spent = self._woken = 0
        """In this turn."""
        self._price = least_price
        """Average cost of a woken waiter, so that only as many are woken as can go on."""
        self._recent = 0.0
        """Units lately, less `FREE` for each second."""
        self._recent_at = 0.0
        self.held = 0

    def is_heavy(self, now: float) -> bool:
        """Return whether the command has lately done more than a little. For `Turns` only."""
        left = self._recent - (now - self._recent_at) * FREE
        self._recent, self._recent_at = min(max(left, 0.0), CREDIT + FREE), now
        return self._recent > CREDIT

    def has_some(self) -> bool:
        """Return whether units are left in this turn."""
        return self._left > 0

    def spend(self, cost: int = STEP, size: int = 0) -> None:
        """Record a step that moved `size` bytes."""
        cost += size // _BYTES
        self._left -= cost
        self._spent += cost
        self._recent += cost
        self._turns.activate(self)

    async def timed(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in turns, and charge each step by the clock."""
        try:
            await self.turn()
        except BaseException:
            work.close()
            raise
        result: T = await Timed(self, work)
        return result

    def spend_since(self, begun: float) -> None:
        """Record a step that began at this time of `time.perf_counter`."""
        self.spend(STEP + int((time.perf_counter() - begun) * 1e6))

    async def turn(self) -> None:
        """Wait until units are left, now or in a later turn."""
        while self._left <= 0:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.later(partial(_wake, woken))
            await woken

    def later(self, work: Callable[[], None]) -> None:
        """Schedule a call for a later turn. For use when no units are left."""
        self._waiting.append(work)
        self._turns.activate(self)

    @property
    def waiting(self) -> int:
        """Return the number of calls waiting for a later turn."""
        return len(self._waiting)

    def begin(self, share: int) -> None:
        """Begin a turn. For `Turns` only."""
        if self._woken:
            self._price = max(self._least_price, self._spent // self._woken)
        self._spent = self._woken = 0
        self._left = max(min(self._left, 0), -self._most_owed) + share
        expected = self._left
        while self._waiting and self._left > 0 and expected > 0:
            expected -= self._price
            self._woken += 1
            self._waiting.popleft()()
        if self._waiting or self._left <= 0:
            self._turns.activate(self)


class Timed:
    """Awaitable that charges each step of a coroutine."""

    def __init__(self, share: Share, work: Coroutine[Any, Any, T]) -> None:
        self._share = share
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            begun = time.perf_counter()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self._share.spend_since(begun)
            try:
                yield waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, None)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
