"""What commands have left in repositories that mounts did not protect from them, and that a git on the host would obey.

Mounts close the hooks and the configuration of the repositories that a sandbox finds. All others below what a command
can write (made inside, given the shape of a repository, or too deep to be found) are looked through when it has ended,
at any depth, the session's temporary directory included. git takes a directory for a repository when it holds `HEAD`,
and `objects` and `refs` or a `commondir` (gitrepository-layout(5)), or when a `.git` leads to it; every such directory
is a candidate, whether anything leads to it yet or not, so it does not matter in which order the parts were made.

Told apart from what a person has made: what was there, unchanged, at a look before any command that still runs; what
is older than this daemon or was made while no command could write there, in directories on the way to it of which the
same is true: what came with a checkout is no repository until a command renames or adds something. Of the rest
everything that git would obey is made harmless. No program can set the inode change times that this rests on; those of
another machine, and of a file system in memory, prove nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from sandboxd.errors import HostError
from sandboxd.host.git.cleanup_memory import CleanupMemory
from sandboxd.host.git.cleanup_pass import CleanupPass
from sandboxd.host.git.launch_journal import LaunchJournal, StartedLaunch, started_at
from sandboxd.host.git.pending_cleanups import CouldWrite, PendingCleanups, Tell
from sandboxd.host.git.unfinished_cleanups import UnfinishedCleanup, UnfinishedCleanups
from sandboxd.host.watch.directory_index import Rest
from sandboxd.plan.host_facts import Neutralised, Territory

AT_ONCE = 3
"""Looks in threads: one for each session at most, so that no session takes all of them."""


class RepositoryCleanup:
    """One for each daemon. A look that failed, or that an earlier daemon did not make, is owed (`pending_cleanups.py`),
    and so is the rest of one that was not whole (`unfinished_cleanups.py`)."""

    def __init__(self, journal: LaunchJournal | None = None, tell: Tell = lambda territory, found: None) -> None:
        """`tell` hears what came of looks that were made up for."""
        self._journal = journal
        self.owed = PendingCleanups(self.look, self.resume, self._settled, tell)
        self.rests = UnfinishedCleanups(self._look_on, self._settled, self.owed.add, tell)
        self._memory = CleanupMemory()
        self._busy = self._memory.busy
        self._sessions: dict[str, _SessionCleanups] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._beginning = asyncio.Lock()

    async def begin(self, launch_id: str, territory: Territory) -> None:
        """A command is about to start. Remembers what repositories there are, where that is not known yet. One at a
        time, since a command that starts meanwhile could add some. What is owed there is looked at first."""
        await self.owed.make_up(territory.places)
        async with self._beginning:
            new = [place for place in territory.places if not self._memory.has_index(place)]
            if new:
                await asyncio.to_thread(self._remember, new, territory)
            self.resume(launch_id, territory)

    def claimed(self, launch_id: str, process: int) -> None:
        """The command starts now; `process` is its bubblewrap. Raises HostError."""
        territory = self._busy.running.get(launch_id)
        if self._journal is not None and territory is not None and territory.places:
            self._journal.add(StartedLaunch(launch_id, territory, process, started_at(process)))

    async def take_over(self, resumed: frozenset[str]) -> None:
        """Owe the looks that daemons which have ended did not make, but for commands that are `resumed`. Raises
        HostError."""
        left = [] if self._journal is None else await asyncio.to_thread(self._journal.take_over)
        for one in left:
            if one.launch_id not in resumed:
                self.owed.await_end(one)
        self.owed.begin()

    async def aclose(self) -> None:
        await self.owed.aclose()
        await self.rests.aclose()
        if self._journal is not None:
            self._journal.close()

    def hand_over(self) -> None:
        """A later daemon looks at what is owed."""
        if self._journal is not None:
            self._journal.hand_over()

    def resume(self, launch_id: str, territory: Territory) -> None:
        """A command that an earlier daemon has started, or that is about to start."""
        self._busy.begin(launch_id, territory)

    def forget(self, launch_id: str) -> None:
        """It never ran, or a later daemon looks after it."""
        self._busy.running.pop(launch_id, None)
        self._settled(launch_id)

    async def look(self, launch_id: str, could_write: CouldWrite) -> Neutralised:
        """The command has ended: make harmless what it has left. One look of a session serves all of its commands that
        had ended when the look began. What it did not come to is looked at afterwards."""
        territory = self._busy.running.get(launch_id)
        if territory is None:
            return Neutralised()
        ended = time.monotonic()
        turn = self._sessions.setdefault(territory.places[0] if territory.places else "", _SessionCleanups())
        turn.waiting += 1
        found = Neutralised(failed=HostError("look_failed", "it was not looked at", hint="see the log of the daemon"))
        rests: dict[str, Rest] | None = None
        try:
            async with turn.lock:
                if turn.covers(territory, ended):
                    found = Neutralised(unseen=turn.unseen)
                    return found
                async with self._slots:
                    began, since = time.monotonic(), self._busy.since(territory.since)
                    look = CleanupPass(self._memory, territory, could_write, since)
                    found = await asyncio.to_thread(look.run)
                    rests = look.rests
                    if found.failed is None:  # one that failed serves no other command
                        turn.began, turn.territory, turn.unseen = began, territory, found.unseen
                    return found
        finally:
            if found.failed is not None:
                self.owed.add(launch_id, territory, could_write)
            elif found.unseen:
                self.rests.add(launch_id, territory, could_write, rests)
            else:
                self._settled(launch_id)
            turn.waiting -= 1
            if not turn.waiting:
                self._sessions.pop(territory.places[0] if territory.places else "", None)
            self._busy.end(launch_id, territory)

    async def _look_on(self, rest: UnfinishedCleanup) -> Neutralised:
        """One part of what a look did not come to."""
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
    """The looks of one session, one after the other. `began`, `territory` and `unseen` are the last one's."""

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
            and (last.places, last.apart) == (territory.places, territory.apart)
            and set(last.known) <= set(territory.known)
        )
