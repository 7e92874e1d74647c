"""Processor time of proxies and clients: how much each may do before everything else has its turn.

An await that can complete at once does not suspend: asyncio's loop goes on with the same task for as long as its
sockets are ready. So a command counts what its connections do, and when its share of a turn of the event loop is used
up they wait for a later one, first come, first served. All commands together have `BUDGET` for a turn. What a step has
cost over the share is owed, and taken from the turns that follow.

A unit of cost is about a microsecond of the daemon; the figures need no more precision than that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

BUDGET: Final = 400
"""Of one turn of the event loop, of all commands together."""
LEAST: Final = 40
"""Of one command, however many others there are."""
MOST_OWED: Final = 50 * BUDGET
HURRIED_TURNS: Final = 64
"""That a launch or an end takes, about: connections have less meanwhile."""
LESS: Final = 4
"""By how much their shares are divided then."""

STEP: Final = 10
"""Of any step: a call of the system, and what leads to it."""
LINE: Final = 3
"""Of a head or of a chunked body, beside its bytes (`TEXT`)."""
TEXT: Final = 100
"""Bytes of such lines that cost a unit."""
CONNECTION: Final = 200
"""To accept a connection, or to take a request to where it goes."""
QUESTION: Final = 200
"""To answer a name look-up."""
_BYTES: Final = 8192
"""That are read or written for one unit."""


class Turns:
    """The shares of all commands of a daemon, on its event loop."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._active: dict[Share, None] = {}
        self._share = budget
        self._begun: asyncio.Handle | None = None
        self._hurried = 0
        self.count = 0
        """Turns in which something was done, so far."""

    @property
    def share(self) -> int:
        """Of each command in this turn."""
        return self._share

    def hurry(self) -> None:
        """A command is launched, or ends: let connections do less for some turns."""
        self._hurried = HURRIED_TURNS

    def activate(self, share: Share) -> None:
        """Something is done, or waits: there is to be another turn."""
        self._active[share] = None
        if self._begun is None:
            self._begun = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = None
        self.count += 1
        active, self._active = self._active, {}
        less = LESS if self._hurried else 1
        self._hurried = max(self._hurried - 1, 0)
        self._share = max(self._budget // len(active), min(LEAST, self._budget)) // less
        for share in active:
            share.begin(self._share)


class Share:
    """What one command may do. `held` counts bytes that are kept for requests which are not complete."""

    __slots__ = (
        "__weakref__", "_least_price", "_left", "_most_owed", "_price", "_spent", "_turns", "_waiting", "_woken", "held"
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
        """Of one that was woken, by experience: as many are woken as can go on."""
        self.held = 0

    def has_some(self) -> bool:
        """Whether something may still be done in this turn."""
        return self._left > 0

    def spend(self, cost: int = STEP, size: int = 0) -> None:
        """Something was done, `size` bytes were moved with it."""
        cost += size // _BYTES
        self._left -= cost
        self._spent += cost
        self._turns.activate(self)

    async def timed(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in turns: it begins when something may be done, and costs what its steps take on the clock."""
        try:
            await self.turn()
        except BaseException:
            work.close()
            raise
        result: T = await Timed(self, work)
        return result

    def spend_since(self, begun: float) -> None:
        """As `spend`, for something that has begun at that time of `time.perf_counter`."""
        self.spend(STEP + int((time.perf_counter() - begun) * 1e6))

    async def turn(self) -> None:
        """Return when something may be done: at once, or in a later turn."""
        while self._left <= 0:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.later(partial(_wake, woken))
            await woken

    def later(self, work: Callable[[], None]) -> None:
        """Have it called in a later turn; to be used when there is nothing left."""
        self._waiting.append(work)
        self._turns.activate(self)

    @property
    def waiting(self) -> int:
        """How many wait for a later turn."""
        return len(self._waiting)

    def begin(self, share: int) -> None:
        """A turn begins; for `Turns`."""
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
    """Awaits a coroutine; each of its steps is spent."""

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
