"""The repository clean-up: remove what commands left for a git on the host.

Mounts close the hooks and the configuration of the repositories that a sandbox finds. All others below what a command
can write (made inside, given the shape of a repository, or too deep to be found) are searched when it has ended, at any
depth, the session's temporary directory included. git takes a directory for a repository when it holds `HEAD`, and
`objects` and `refs` or a `commondir` (gitrepository-layout(5)), or when a `.git` leads to it. Every such directory is a
candidate, whether anything leads to it yet or not, so the order of the steps does not matter.

Two things count as made by a person: what was there, unchanged, before any command that still runs; and what is older
than this daemon, or was made while no command could write there, with the same true of the directories on the way to
it. A directory of a checkout is no repository until a command renames or adds something. All else that git would obey
is made harmless."""

from __future__ import annotations

import asyncio
import time

from sandboxd.errors import HostError
from sandboxd.host.git.cleanup_memory import CleanupMemory
from sandboxd.host.git.cleanup_pass import CleanupPass
from sandboxd.host.git.launch_journal import LaunchJournal, StartedLaunch, started_at
from sandboxd.host.git.made_repositories import MadeRepositories
from sandboxd.host.git.pending_cleanups import CouldWrite, PendingCleanups, Report
from sandboxd.host.git.unfinished_cleanups import UnfinishedCleanup, UnfinishedCleanups
from sandboxd.host.watch.directory_index import Rest
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd_client.records import dataclass, field

AT_ONCE = 3
"""Passes at once, in threads: one a session, so that none takes all threads."""


class RepositoryCleanup:
    """The clean-ups of one daemon.

    A clean-up that failed, or that an earlier daemon did not do, goes to `pending_cleanups.py`. The rest of an
    incomplete one goes to `unfinished_cleanups.py`."""

    def __init__(self, journal: LaunchJournal | None = None, report: Report = lambda territory, found: None) -> None:
        """Set `report` as receiver of the results of pending and unfinished clean-ups."""
        self._journal = journal
        self.pending = PendingCleanups(self.look, self.resume, self._settled, report)
        self.unfinished = UnfinishedCleanups(self._look_on, self._settled, self.pending.add, report)
        self._memory = CleanupMemory()
        self._busy = self._memory.busy
        self.made = MadeRepositories(self._busy)
        self._sessions: dict[str, _SessionCleanups] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._beginning = asyncio.Lock()

    async def begin(self, launch_id: str, territory: Territory) -> None:
        """Prepare for the start of a command: note existing repositories.

        One at a time, since a command that starts meanwhile could add some. Pending clean-ups of these places come
        first."""
        await self.pending.make_up(territory.places)
        async with self._beginning:
            new = [place for place in territory.places if not self._memory.has_index(place)]
            if new:
                await asyncio.to_thread(self._remember, new, territory)
            self.resume(launch_id, territory)

    def claimed(self, launch_id: str, process: int) -> None:
        """Record a starting command with the process of its bubblewrap. Raises HostError."""
        territory = self._busy.running.get(launch_id)
        if self._journal is not None and territory is not None and territory.places:
            self._journal.add(StartedLaunch(launch_id, territory, process, started_at(process)))

    async def take_over(self, resumed: frozenset[str]) -> None:
        """Queue the clean-ups of ended daemons, but for `resumed`. Raises HostError."""
        left = [] if self._journal is None else await asyncio.to_thread(self._journal.take_over)
        for one in left:
            if one.launch_id not in resumed:
                self.pending.await_end(one)
        self.pending.begin()

    async def aclose(self) -> None:
        await self.pending.aclose()
        await self.unfinished.aclose()
        if self._journal is not None:
            self._journal.close()

    def hand_over(self) -> None:
        """Leave the pending clean-ups to a later daemon."""
        if self._journal is not None:
            self._journal.hand_over()

    def resume(self, launch_id: str, territory: Territory) -> None:
        """Register a command that is about to start, or that an earlier daemon started."""
        self._busy.begin(launch_id, territory)

    def forget(self, launch_id: str) -> None:
        """Drop a command that never ran, or that a later daemon has taken over."""
        self._busy.running.pop(launch_id, None)
        self.made.ended(launch_id, searched=False)
        self._settled(launch_id)

    def look_at_once(self, launch_id: str, could_write: CouldWrite) -> bool:
        """Clean up after a command that has left nothing to do; return False where that is not seen at once."""
        territory = self._busy.running.get(launch_id)
        if territory is None:
            return True
        if (territory.places[0] if territory.places else "") in self._sessions:
            return False
        if not CleanupPass(self._memory, territory, could_write, territory.since).has_nothing_to_do():
            return False
        self.made.ended(launch_id, searched=True)
        self._busy.end(launch_id, territory)
        asyncio.get_running_loop().call_soon(self._settled, launch_id)  # the command does not wait for it
        return True

    async def look(self, launch_id: str, could_write: CouldWrite) -> Neutralised:
        """Clean up after a command that has ended.

        One pass of a session serves all of its commands that had ended before the pass began. An incomplete pass goes
        on in the background."""
        territory = self._busy.running.get(launch_id)
        if territory is None:
            return Neutralised()
        ended = time.monotonic()
        turn = self._sessions.setdefault(territory.places[0] if territory.places else "", _SessionCleanups())
        turn.waiting += 1
        found = Neutralised(failed=HostError("look_failed", "the search did not end", hint="see the log of the daemon"))
        rests: dict[str, Rest] | None = None
        try:
            async with turn.lock:
                if turn.covers(territory, ended):
                    found = Neutralised(unseen=turn.unseen)
                    return found
                async with self._slots:
                    began, since = time.monotonic(), self._busy.since(territory.since)
                    look = CleanupPass(self._memory, territory, could_write, since, self.made.told())
                    found = await asyncio.to_thread(look.run)
                    rests = look.rests
                    if found.failed is None:  # a failed one serves no other command
                        turn.began, turn.territory, turn.unseen = began, territory, found.unseen
                    return found
        finally:
            self.made.ended(launch_id, searched=found.failed is None and not found.unseen)
            if found.failed is not None:
                self.pending.add(launch_id, territory, could_write)
            elif found.unseen:
                self.unfinished.add(launch_id, territory, could_write, rests)
            else:
                self._settled(launch_id)
            turn.waiting -= 1
            if not turn.waiting:
                self._sessions.pop(territory.places[0] if territory.places else "", None)
            self._busy.end(launch_id, territory)

    async def _look_on(self, rest: UnfinishedCleanup) -> Neutralised:
        """Search one part of an unfinished clean-up."""
        async with self._slots:
            since = min(rest.territory.since, self._busy.since(rest.territory.since))
            look = CleanupPass(self._memory, rest.territory, rest.could_write, since)
            return await asyncio.to_thread(look.go_on, rest.rests)

    def _settled(self, launch_id: str) -> None:
        if self._journal is not None:
            self._journal.remove(launch_id)

    def _remember(self, places: list[str], territory: Territory) -> None:
        since = self._busy.since(territory.since)
        look = CleanupPass(self._memory, territory, lambda path: False, since)
        look.remember(places)
        self._memory.shrink()


@dataclass(slots=True)
class _SessionCleanups:
    """The clean-ups of one session, one at a time; the fields describe the last one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    began: float = 0.0
    territory: Territory | None = None
    unseen: str = ""

    def covers(self, territory: Territory, ended: float) -> bool:
        last = self.territory
        return (
            last is not None
            and self.began > ended
            and (last.places, last.excluded) == (territory.places, territory.excluded)
            and set(last.known) <= set(territory.known)
        )
