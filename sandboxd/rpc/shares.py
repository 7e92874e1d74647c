"""Share of one client process in the event loop and the worker threads.

Each process has credit for occasional requests, which wait for nothing. Work beyond it is measured by the clock. It
waits for the turns of other processes, and has one thread at a time. At most `HEAVY_AT_ONCE` requests that need threads
are in progress. While a command starts or ends, or another process sends a request, all such work together gets a part
of the time (`PACE`)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from sandboxd.errors import CallerError
from sandboxd.proxy.fair_share import STEP, Share, Turns
from sandboxd.rpc.room import MOST_CONNECTIONS_OF_ONE, InFlight

T = TypeVar("T")

BUDGET: Final = 100
"""Units of one turn of the event loop, for all clients together."""
PACE: Final = 300_000
"""Units of a second for all clients together, while others are at work."""
TICK_S: Final = 0.001
MOST_SAVED: Final = 1_000
"""The most units of one turn at `PACE`, however late the turn comes."""
LIVE_S: Final = 0.1
"""How long others count as at work after they did something."""
MOST_OWED: Final = 1_000_000
CREDIT: Final = 20_000
"""Units that a client has at the beginning, and can save at most."""
FREE: Final = 100_000
"""Units of its credit that a client gets back in a second."""
MOST_CREDIT: Final = 200_000
"""Units of credit for all clients together, given back in a second.

Many short processes get no more."""
HEAVY_AT_ONCE: Final = 4

_CALLER: ContextVar[ClientShare | None] = ContextVar("caller", default=None)


class _Bucket:
    """Units that come back with time."""

    __slots__ = ("_at", "_clock", "_left", "_most", "_per_s")

    def __init__(self, most: int, per_s: int, clock: Callable[[], float]) -> None:
        self._most = self._left = most
        self._per_s = per_s
        self._clock = clock
        self._at = clock()

    @property
    def left(self) -> int:
        now = self._clock()
        back = int((now - self._at) * self._per_s)
        if back:  # else the parts of a unit would be lost
            self._left = min(self._most, self._left + back)
            self._at = now
        return self._left

    def take(self, units: int) -> None:
        self._left -= units


class ClientTurns(Turns):
    """The shares of all client processes."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(BUDGET)
        self.clock = clock
        self.credit = _Bucket(MOST_CREDIT, MOST_CREDIT, clock)
        self._pace = _Bucket(MOST_SAVED, PACE, clock)
        self._paced_until = 0.0

    def hurry(self, seconds: float = LIVE_S) -> None:
        """Keep to the pace for a while, because others are at work."""
        self._paced_until = self.clock() + max(seconds, LIVE_S)

    def _schedule(self) -> asyncio.Handle:
        loop = asyncio.get_running_loop()
        paced = self.clock() < self._paced_until
        return loop.call_later(TICK_S, self._begin) if paced else loop.call_soon(self._begin)

    def _begin(self) -> None:
        if len(self._active) > 1:
            self.hurry()
        self._budget = BUDGET
        if self.clock() < self._paced_until:
            self._budget = self._pace.left
            self._pace.take(self._budget)
        super()._begin()


class ClientShare(Share):
    """The share of one client process.

    What is over the credit comes from its share of a turn, and all of it is owed."""

    __slots__ = ("_all", "_credit", "_heavy", "at_work", "connections", "in_flight", "in_threads", "jobs")

    def __init__(self, turns: ClientTurns) -> None:
        super().__init__(turns, most_owed=MOST_OWED, least_price=BUDGET)  # one in a turn: a line may be enormous
        self._all = turns.credit
        self._credit = _Bucket(CREDIT, FREE, turns.clock)
        self._heavy = asyncio.Semaphore(HEAVY_AT_ONCE)
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        """Work that waits for a thread of `Workers`.

        `at_work`: a thread is busy with one such work. `in_threads` counts the units of threads not yet charged."""
        self.at_work = False
        self.in_threads = 0
        self.connections = 0
        self.in_flight = InFlight()

    def connect(self) -> None:
        """Count a connection. Raises CallerError `connections_too_many`."""
        if self.connections >= MOST_CONNECTIONS_OF_ONE:
            text = f"this process has {MOST_CONNECTIONS_OF_ONE:,} connections"
            raise CallerError("connections_too_many", text, hint="use one of them: requests may be pipelined")
        self.connections += 1

    def spend(self, cost: int = STEP, size: int = 0) -> None:
        cost, self.in_threads = cost + self.in_threads, 0
        paid = min(cost, self._credit.left, self._all.left)
        self._credit.take(paid)
        self._all.take(paid)
        super().spend(cost - paid, size)

    async def timed(self, work: Coroutine[Any, Any, T]) -> T:
        _CALLER.set(self)
        return await super().timed(work)


async def heavy(work: Coroutine[Any, Any, T]) -> T:
    """Do what needs threads: only so much at once for one caller."""
    share = _CALLER.get()
    if share is None:
        return await work
    try:
        async with share._heavy:
            return await work
    finally:
        work.close()


class Workers(ThreadPoolExecutor):
    """The threads of the daemon.

    Of what one caller wants done there, one thing is done at a time, so that others do not wait behind it."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="worker")
        self._guard = threading.Lock()

    def submit(self, work: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        share = _CALLER.get()
        if share is None:
            return super().submit(work, *args, **named)
        done: Future[T] = Future()
        share.jobs.append((done, partial(work, *args, **named)))
        self._begin(share)
        return done

    def _begin(self, share: ClientShare) -> None:
        with self._guard:
            if share.at_work or not share.jobs:
                return
            share.at_work = True
            done, work = share.jobs.popleft()
        super().submit(self._do, share, done, work)

    def _do(self, share: ClientShare, done: Future[Any], work: Callable[[], Any]) -> None:
        begun = time.thread_time()
        try:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
        finally:
            share.in_threads += int((time.thread_time() - begun) * 1e6)
            with self._guard:
                share.at_work = False
            self._begin(share)
