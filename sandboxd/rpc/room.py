"""Room of all client connections of a daemon: unfinished lines, requests in flight, unread answers.

One connection takes little of each; a client may have many connections."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

MOST_HELD: Final = 16 << 20
"""Bytes of unfinished lines of all connections together, beside `LARGE` that any may have."""
LARGE: Final = 64 << 10
"""Characters that make a request, or what is buffered of it, large."""
MOST_LARGE: Final = 16 << 20
"""Characters of all large requests in flight. What is more is refused."""
MOST_LARGE_OF_ONE: Final = 1 << 20
"""The same of one process. What is more waits: each is kept several times, with its answer."""
MOST_CALLS_OF_ONE: Final = 256
"""Calls in flight of one process."""
MOST_CONNECTIONS_OF_ONE: Final = 1000
MOST_UNREAD: Final = 8 << 20
"""Bytes of answers and notifications that clients have not read. They are kept twice, for a hand-over."""


class InFlight:
    """Requests of one process in flight, and what waits for their answers."""

    __slots__ = ("_waiting", "_waiting_large", "calls", "large")

    def __init__(self) -> None:
        self.calls = self.large = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._waiting_large: deque[Callable[[], None]] = deque()

    def place_for(self, size: int) -> deque[Callable[[], None]] | None:
        """Return where to wait before a request of up to this size is taken, None for no wait."""
        if self.calls >= MOST_CALLS_OF_ONE:
            return self._waiting
        return self._waiting_large if size > 2 * LARGE and self.large >= MOST_LARGE_OF_ONE else None

    def add(self, calls: int, large: int) -> None:
        """Record begun or (negative) answered calls, and let others continue after an answer."""
        self.calls += calls
        self.large += large
        while self._waiting and self.calls < MOST_CALLS_OF_ONE:
            self._waiting.popleft()()
        while self._waiting_large and self.calls < MOST_CALLS_OF_ONE and self.large < MOST_LARGE_OF_ONE:
            self._waiting_large.popleft()()


class Reader(Protocol):
    """A connection with answers to read. Those of one process have one `in_flight`."""

    @property
    def in_flight(self) -> InFlight: ...

    @property
    def unread(self) -> int: ...

    def cut(self, reason: str) -> None: ...


class ClientRoom:
    """The room that all connections of a daemon have taken.

    `buffer` is that of the one read that is under way."""

    def __init__(self) -> None:
        self.held = self.large = self._unread = 0
        self._readers: dict[Reader, int] = {}
        self.buffer = bytearray(64 << 10)

    def note_unread(self, reader: Reader, size: int) -> None:
        """Record what a client has not read, and cut off who has most while all have too much."""
        self._unread += size - self._readers.pop(reader, 0)
        if size:
            self._readers[reader] = size
        if self._unread > MOST_UNREAD:
            self._readers = {one: left for one in self._readers if (left := one.unread)}
            self._unread = sum(self._readers.values())
        while self._unread > MOST_UNREAD:
            of_one: Counter[InFlight] = Counter()
            for one, left in self._readers.items():
                of_one[one.in_flight] += left
            (most, _), *_ = of_one.most_common(1)
            largest = max((one for one in self._readers if one.in_flight is most), key=self._readers.__getitem__)
            self._unread -= self._readers.pop(largest)
            largest.cut("clients do not read their answers, and this one has most of them")
