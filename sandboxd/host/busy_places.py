"""When commands have run that could write in a place: a file that was made at another time is no command's.

A command that can write in several places can move there what another one has left. So where something may have been
moved, the time counts for every place that it can have come from.
"""

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
    """For one daemon. `running` are the commands that have not ended, by the ids of their launches."""

    def __init__(self) -> None:
        self.started = time.time_ns()
        self.running: dict[str, Territory] = {}
        self._guard = threading.Lock()
        self._busy: dict[str, list[tuple[int, int]]] = {}
        """By place (ns of the wall clock), in order, none in another."""
        self._together: set[tuple[str, ...]] = set()
        """Places that one command could write."""
        self._gone: deque[tuple[str, int]] = deque(maxlen=_MOST_GONE)
        """Places that are there no longer, and when the last command ended there."""

    def begin(self, launch_id: str, territory: Territory) -> None:
        with self._guard:
            self._together.add(territory.places)
        self.running[launch_id] = territory

    def end(self, launch_id: str, territory: Territory) -> None:
        """It was looked at after it."""
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
        """When the first of the commands that still run has started."""
        return min((one.since for one in self.running.values()), default=default)

    def runs_alone(self, path: str, territory: Territory) -> bool:
        """Whether no other command can write at a path now than the one with this territory."""
        others = (one for one in list(self.running.values()) if one is not territory)
        return not any(is_below(path, place) for one in others for place in one.places)

    def was_quiet(self, moment: int, path: str, others: frozenset[str] = frozenset()) -> bool:
        """Whether no command could write at a path then, nor in one of the `others`. False for times before this
        daemon's."""
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
        """From where commands could have moved something to these places, one after the other."""
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
