"""Fair shares of processor time for proxies and clients.

An await that can complete at once does not suspend: asyncio continues the same task for as long as its sockets are
ready. So a command counts the work of its connections. Once its share of a turn of the event loop is used up, they wait
for a later turn, first come, first served. All commands together have `BUDGET` for a turn. A step that exceeds the
share is a debt, taken from the following turns.

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
HURRIED_TURNS: Final = 64
"""Approximate turns that a launch or an end takes. Connections get less meanwhile."""
LESS: Final = 4
"""Divisor of all shares during a launch or an end."""

STEP: Final = 10
"""Cost of any step: a system call and the code around it."""
LINE: Final = 3
"""Cost of a line of a head or a chunked body, besides its bytes (`TEXT`)."""
TEXT: Final = 100
"""Bytes of such lines for one unit."""
CONNECTION: Final = 200
"""Cost of accepting a connection, or of routing a request."""
QUESTION: Final = 200
"""Cost of answering a name look-up."""
_BYTES: Final = 8192
"""Bytes read or written for one unit."""


class Turns:
    """The shares of all commands of a daemon, on its event loop."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._active: dict[Share, None] = {}
        self._share = budget
        self._begun: asyncio.Handle | None = None
        self._hurried = 0
        self.count = 0
        """Turns with any work, so far."""

    @property
    def share(self) -> int:
        """Return the share of each command in this turn."""
        return self._share

    def hurry(self) -> None:
        """Reduce the shares for some turns, because a command starts or ends."""
        self._hurried = HURRIED_TURNS

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
        active, self._active = self._active, {}
        less = LESS if self._hurried else 1
        self._hurried = max(self._hurried - 1, 0)
        self._share = max(self._budget // len(active), min(LEAST, self._budget)) // less
        for share in active:
            share.begin(self._share)


class Share:
    """One command's share; `held` counts the bytes kept for incomplete requests."""

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
        """Average cost of a woken waiter, so that only as many are woken as can go on."""
        self.held = 0

    def has_some(self) -> bool:
        """Return whether units are left in this turn."""
        return self._left > 0

    def spend(self, cost: int = STEP, size: int = 0) -> None:
        """Record a step that moved `size` bytes."""
        cost += size // _BYTES
        self._left -= cost
        self._spent += cost
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
