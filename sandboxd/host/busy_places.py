"""Times at which commands could write in a place.

A file that was made at another time was not made by a command. A command that can write in several places can move
there what another one has left. So where something may have been moved, the time counts for every place that it can
have come from."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from sandboxd.paths import is_below
from sandboxd.plan.host_facts import Territory

_MOST_INTERVALS = 5_000
_MOST_GONE = 1_000


class BusyPlaces:
    """The times of one daemon's commands; `running` holds the present ones."""

    def __init__(self) -> None:
        self.started = time.time_ns()
        self.running: dict[str, Territory] = {}
        self._guard = threading.Lock()
        self._busy: dict[str, list[tuple[int, int]]] = {}
        """By place: disjoint intervals in order, in ns of the wall clock."""
        self._together: set[tuple[str, ...]] = set()
        """Sets of places that one command could write."""
        self._gone: deque[tuple[str, int]] = deque(maxlen=_MOST_GONE)
        """Removed places, each with the end of its last command."""

    def begin(self, launch_id: str, territory: Territory) -> None:
        with self._guard:
            self._together.add(territory.places)
        self.running[launch_id] = territory

    def end(self, launch_id: str, territory: Territory) -> None:
        """Record the end of a command, after its clean-up."""
        self.running.pop(launch_id, None)
        end = time.time_ns()
        with self._guard:
            for place in territory.places:
                start, busy = territory.since, self._busy.setdefault(place, [])
                while busy and busy[-1][1] >= start:
                    start = min(start, busy.pop()[0])
                busy.append((start, end))
                if len(busy) > _MOST_INTERVALS:
                    busy[:2] = [(busy[0][0], busy[1][1])]

    def since(self, default: int) -> int:
        """Return the start of the earliest command that still runs."""
        return min((one.since for one in self.running.values()), default=default)

    def runs_alone(self, path: str, territory: Territory) -> bool:
        """Return whether only the command with this territory can write at a path now."""
        others = (one for one in list(self.running.values()) if one is not territory)
        return not any(is_below(path, place) for one in others for place in one.places)

    def was_quiet(self, moment: int, path: str, others: frozenset[str] = frozenset()) -> bool:
        """Return whether no command could write at a path at a moment.

        The places in `others` count as well. False for times before the start of this daemon."""
        with self._guard:
            for place, busy in self._busy.items():
                at = bisect_right(busy, moment, key=lambda one: one[0])
                if at and busy[at - 1][1] >= moment and (place in others or is_below(path, place)):
                    return False
            if any(moment <= end and _is_near(place, others) for place, end in self._gone):
                return False
        running = (place for one in list(self.running.values()) if one.since <= moment for place in one.places)
        return self.started < moment and not any(place in others or is_below(path, place) for place in running)

    def connected(self, places: Iterable[str]) -> frozenset[str]:
        """Return the places from which commands could have moved something here."""
        found, more = set[str](), set(places)
        with self._guard:
            rest = set(self._together)
        while more:
            found |= more
            near = {one for one in rest if any(_is_near(place, more) for place in one)}
            rest -= near
            more = {place for one in near for place in one} - found
        return frozenset(found)

    def in_use(self) -> set[str]:
        return {place for territory in list(self.running.values()) for place in territory.places}

    def forget_what_is_gone(self) -> None:
        used = self.in_use()
        with self._guard:
            known = {place for one in self._together for place in one} | set(self._busy)
            gone = {place for place in known if place not in used and not os.path.isdir(place)}
            self._together = {tuple(place for place in one if place not in gone) for one in self._together}
            for place in gone.intersection(self._busy):
                self._gone.append((place, self._busy.pop(place)[-1][1]))


def _is_near(place: str, others: Iterable[str]) -> bool:
    return any(is_below(place, one) or is_below(one, place) for one in others)
