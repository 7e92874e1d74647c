"""The rest of looks that were too large to be whole: it is owed, and looked at in the background, in small parts.

A command in a big tree ends after a look at a part, with a warning. The look goes on where it stopped, a quarter of a
processor at most, until all of it was seen. No command waits for that. Where another look in the same places stops
meanwhile, its rest comes after the one that is under way, so that each comes to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from sandboxd.host.git.pending_cleanups import CouldWrite, Tell, Where, anywhere, where_of
from sandboxd.host.watch.directory_index import Rest
from sandboxd.plan.host_facts import Neutralised, Territory

PART_S = 0.1
"""Of processor time, for one part."""
PAUSE_S = 3 * PART_S


@dataclass(slots=True)
class UnfinishedCleanup:
    """What one look has left. `rests` has for each place what is still to be looked at; parts take it out. `moved` are
    the paths that were moved aside so far, `unseen` says what cannot be looked at."""

    launch_id: str
    territory: Territory
    could_write: CouldWrite
    rests: dict[str, Rest]
    moved: list[str] = field(default_factory=list)
    unseen: str = ""


class UnfinishedCleanups:
    """`look_on` looks at one part. `settled` hears of commands that need no further look, `failed` of one that needs
    a whole one, `tell` what came of it."""

    def __init__(
        self,
        look_on: Callable[[UnfinishedCleanup], Awaitable[Neutralised]],
        settled: Callable[[str], None],
        failed: Callable[[str, Territory, CouldWrite], None],
        tell: Tell,
    ) -> None:
        self._look_on = look_on
        self._settled = settled
        self._failed = failed
        self._tell = tell
        self._waiting: dict[Where, UnfinishedCleanup] = {}
        self._under_way: dict[Where, UnfinishedCleanup] = {}
        """One at most."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be looked at."""
        return self._task is not None and not self._task.done()

    def add(
        self, launch_id: str, territory: Territory, could_write: CouldWrite, rests: Mapping[str, Rest] | None
    ) -> None:
        """Without `rests` another command's look was made for this one as well: its rest counts for both."""
        where = where_of(territory)
        before = self._waiting.get(where)
        if before is None and rests is None:
            before = self._under_way.get(where)
        if before is not None:
            self._merge(before, launch_id, territory)
            before.rests = before.rests if rests is None else dict(rests)  # what this look has seen needs no other
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
        """Leave what is still owed to the next daemon."""
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
            except Exception as error:  # a whole look is owed, and nobody else would tell
                self._failed(rest.launch_id, rest.territory, rest.could_write)
                self._tell(rest.territory, Neutralised(tuple(rest.moved), error))
            else:
                self._settled(rest.launch_id)
                self._tell(rest.territory, Neutralised(tuple(rest.moved), unseen=rest.unseen))
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
