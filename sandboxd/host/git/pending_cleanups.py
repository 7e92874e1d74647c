"""Pending clean-ups: those that failed, and those of a daemon that was killed.

They run when the daemon has started, and before the next command that could write in the same place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sandboxd.host.git.launch_journal import StartedLaunch
from sandboxd.paths import is_below
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd_client.records import dataclass

CouldWrite = Callable[[str], bool]
Report = Callable[[Territory, Neutralised], None]
"""The receiver of the result of a pending clean-up."""

Where = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _PendingCleanup:
    launch_id: str
    territory: Territory
    could_write: CouldWrite


class PendingCleanups:
    """The pending clean-ups, by the places of their commands.

    `look` and `resume` are those of `RepositoryCleanup`. All commands that could write in the same places share one
    clean-up, that of the first. `settled` is called for the others."""

    def __init__(
        self,
        look: Callable[[str, CouldWrite], Awaitable[Neutralised]],
        resume: Callable[[str, Territory], None],
        settled: Callable[[str], None],
        report: Report,
    ) -> None:
        self._look = look
        self._resume = resume
        self._settled = settled
        self._report = report
        self._pending: dict[Where, _PendingCleanup] = {}
        self._under_way: dict[Where, asyncio.Task[None]] = {}
        self._awaiting: dict[str, asyncio.Task[None]] = {}
        self._all: asyncio.Task[None] | None = None

    def add(self, launch_id: str, territory: Territory, could_write: CouldWrite) -> None:
        where = where_of(territory)
        before = self._pending.get(where)
        if before is None:
            self._pending[where] = _PendingCleanup(launch_id, territory, could_write)
        elif launch_id != before.launch_id:
            first = min(before, _PendingCleanup(launch_id, territory, anywhere), key=lambda one: one.territory.since)
            self._pending[where] = _PendingCleanup(first.launch_id, first.territory, anywhere)
            self._settled(launch_id if first is before else before.launch_id)

    def await_end(self, started: StartedLaunch) -> None:
        """Add a command of an earlier daemon, at its end when it still runs."""
        if started.runs:
            self._resume(started.launch_id, started.territory)
            waiting = asyncio.get_running_loop().create_task(self._when_ended(started), name="owed-look-awaits-end")
            self._awaiting[started.launch_id] = waiting
            waiting.add_done_callback(lambda _: self._awaiting.pop(started.launch_id, None))
        else:
            self.add(started.launch_id, started.territory, anywhere)

    def begin(self) -> None:
        """Start the pending clean-ups, one after the other."""
        self._all = asyncio.get_running_loop().create_task(self._make_up_all(), name="owed-looks")

    async def aclose(self) -> None:
        """Leave what is still pending to the next daemon."""
        tasks = [one for one in (self._all, *self._awaiting.values(), *self._under_way.values()) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def make_up(self, places: tuple[str, ...]) -> None:
        """Run the pending clean-ups of these places. A failed one stays pending."""
        for where in [where for where in self._pending if _meet(where[0], places)]:
            await self._make_up_one(where)

    async def _make_up_all(self) -> None:
        for where in list(self._pending):
            await self._make_up_one(where)

    async def _make_up_one(self, where: Where) -> None:
        task = self._under_way.get(where)
        if task is None:
            if where not in self._pending:
                return
            task = asyncio.get_running_loop().create_task(self._look_again(where), name="owed-look")
            self._under_way[where] = task
            task.add_done_callback(lambda _: self._under_way.pop(where, None))
        await asyncio.shield(task)

    async def _look_again(self, where: Where) -> None:
        pending = self._pending.pop(where)
        self._resume(pending.launch_id, pending.territory)
        self._report(pending.territory, await self._run(pending.launch_id, pending.could_write))

    async def _run(self, launch_id: str, could_write: CouldWrite) -> Neutralised:
        try:
            return await self._look(launch_id, could_write)
        except Exception as error:  # it is pending again, and only `report` shows it
            return Neutralised(failed=error)

    async def _when_ended(self, started: StartedLaunch) -> None:
        with suppress(OSError):
            await _end_of(started)
        self._report(started.territory, await self._run(started.launch_id, anywhere))


def log_results(log: Callable[..., object]) -> Report:
    """Return a `Report` that writes the result to the log."""

    def report(territory: Territory, found: Neutralised) -> None:
        for path in found.moved:
            log("moved aside what an earlier command has left in a repository", path=path)
        if found.failed is not None or found.unseen:
            place = next(reversed(territory.places), "")
            error = str(found.failed or found.unseen)
            log("cannot search all that an earlier command has left", place=place, error=error)

    return report


async def _end_of(started: StartedLaunch) -> None:
    process = os.pidfd_open(started.process)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        loop.add_reader(process, ended.set)
        if started.runs:  # and the pidfd is not of a process that reused its number
            await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


def anywhere(path: str) -> bool:
    return True


def where_of(territory: Territory) -> Where:
    return territory.places, territory.excluded, territory.known


def _meet(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return any(is_below(one, other) or is_below(other, one) for one in some for other in others)
