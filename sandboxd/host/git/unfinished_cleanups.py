"""The rest of clean-ups that were too large for one pass, done in the background.

A command in a big tree ends after a first pass, with a warning. The rest is searched in small parts, with a quarter of
a processor at most. No command waits for that. The rest of a later pass in the same places comes after the one under
way, so that each ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from sandboxd.host.git.pending_cleanups import CouldWrite, Report, Where, anywhere, where_of
from sandboxd.host.watch.directory_index import Rest
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd_client.records import dataclass, field

PART_S = 0.1
"""Seconds of processor time for one part."""
PAUSE_S = 3 * PART_S


@dataclass(slots=True)
class UnfinishedCleanup:
    """The rest of one pass.

    `rests` has for each place what is still to be searched; parts take it out. `moved` are the paths moved so far,
    `unseen` says what cannot be searched."""

    launch_id: str
    territory: Territory
    could_write: CouldWrite
    rests: dict[str, Rest]
    moved: list[str] = field(default_factory=list)
    unseen: str = ""


class UnfinishedCleanups:
    """The queue of unfinished clean-ups.

    `look_on` searches one part. `settled` is called for commands that are done, `failed` for one that needs a whole
    clean-up, `report` with the result."""

    def __init__(
        self,
        look_on: Callable[[UnfinishedCleanup], Awaitable[Neutralised]],
        settled: Callable[[str], None],
        failed: Callable[[str, Territory, CouldWrite], None],
        report: Report,
    ) -> None:
        self._look_on = look_on
        self._settled = settled
        self._failed = failed
        self._report = report
        self._waiting: dict[Where, UnfinishedCleanup] = {}
        self._under_way: dict[Where, UnfinishedCleanup] = {}
        """One at most."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether something is still to be searched."""
        return self._task is not None and not self._task.done()

    def add(
        self, launch_id: str, territory: Territory, could_write: CouldWrite, rests: Mapping[str, Rest] | None
    ) -> None:
        """Queue the rest of a pass; without `rests`, that of the shared pass counts."""
        where = where_of(territory)
        before = self._waiting.get(where)
        if before is None and rests is None:
            before = self._under_way.get(where)
        if before is not None:
            self._merge(before, launch_id, territory)
            before.rests = before.rests if rests is None else dict(rests)  # its own rest replaces the earlier one
        elif rests is None:
            self._settled(launch_id)
        else:
            self._waiting[where] = UnfinishedCleanup(launch_id, territory, could_write, dict(rests))
        if not self.is_busy:
            self._task = asyncio.get_running_loop().create_task(self._look_at_all(), name="unseen-rests")

    def _merge(self, before: UnfinishedCleanup, launch_id: str, territory: Territory) -> None:
        if launch_id == before.launch_id:
            return
        older, later = launch_id, before.launch_id
        if before.territory.since <= territory.since:
            older, later = later, older
        else:
            before.territory = territory
        before.launch_id, before.could_write = older, anywhere
        self._settled(later)

    async def aclose(self) -> None:
        """Leave what is still pending to the next daemon."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_at_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(PAUSE_S)
            where = next(iter(self._waiting))
            rest = self._under_way[where] = self._waiting.pop(where)
            try:
                await self._look_at(rest)
            except Exception as error:  # a whole clean-up is pending, and only `report` shows it
                self._failed(rest.launch_id, rest.territory, rest.could_write)
                self._report(rest.territory, Neutralised(tuple(rest.moved), error))
            else:
                self._settled(rest.launch_id)
                self._report(rest.territory, Neutralised(tuple(rest.moved), unseen=rest.unseen))
            finally:
                self._under_way.clear()

    async def _look_at(self, rest: UnfinishedCleanup) -> None:
        while rest.rests:
            found = await self._look_on(rest)
            rest.moved += found.moved
            rest.unseen = rest.unseen or found.unseen
            if found.failed is not None:
                raise found.failed
            await asyncio.sleep(PAUSE_S)
