"""What the violation methods see: the stores of all sessions, and who wants to hear of changes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxd.policy.explain.annotation import annotate, strip
from sandboxd.policy.violation import Violation
from sandboxd.runtime.violations.violation_store import Cleared, Tell, ViolationFeed, ViolationStore

if TYPE_CHECKING:
    from sandboxd.runtime.sessions import Sessions

__all__ = ["Cleared", "ViolationQueries", "ViolationSnapshot"]

STRAGGLERS_S = 0.1
"""How long an annotation waits for reports that are still under way."""
LONG_TEXT = 32 << 10

Among = Callable[[str], bool]
"""Whether the session of an id may be looked at."""


def _every(session_id: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ViolationSnapshot:
    """`total` counts also what is not kept, `hidden` what nobody wants to see, `lost` that part of `total` that was not
    recorded because a command made too many. `complete` says that nothing is missing between the cursor that was given
    and `cursor`."""

    violations: tuple[Violation, ...]
    total: int
    hidden: int
    cursor: str
    complete: bool = True
    lost: int = 0


async def _apart(text: str, work: Callable[[], str]) -> str:
    """The result of work on a text that a command has written. A long one is none for the event loop."""
    return work() if len(text) < LONG_TEXT else await asyncio.to_thread(work)


class ViolationQueries:
    """`slow_reports`: the system's reports may come after the command has ended (macOS). `key` is that of an earlier
    daemon, whose annotations can be told from others by it."""

    def __init__(
        self, feed: ViolationFeed, sessions: Sessions, *, slow_reports: bool, key: bytes | None = None
    ) -> None:
        self._feed = feed
        self._sessions = sessions
        self._slow_reports = slow_reports
        self.key = key or secrets.token_bytes(32)

    def snapshot(
        self,
        session_id: str | None = None,
        command_id: str | None = None,
        since: str | None = None,
        among: Among = _every,
    ) -> ViolationSnapshot:
        """What is kept, oldest first, after the cursor `since`. Raises CallerError `session_unknown`."""
        stores = self._stores(session_id, among)
        position = self._feed.position(since)
        found = [violation for store in stores for violation in store.list(command_id, position)]
        forgotten = self._feed.forgotten(stores, all_sessions=session_id is None)
        complete = since is None or (position is not None and position >= forgotten)
        return ViolationSnapshot(
            tuple(sorted(found, key=lambda violation: violation.id)),
            sum(store.total for store in stores),
            sum(store.hidden for store in stores),
            self._feed.cursor,
            complete,
            sum(store.lost for store in stores),
        )

    def subscribe(self, subscriber: object, session_id: str | None, since: str | None, tell: Tell) -> ViolationSnapshot:
        """The snapshot; from then on `tell` hears of each change. Raises CallerError `session_unknown`."""
        snapshot = self.snapshot(session_id, None, since)
        self._feed.subscribe(subscriber, session_id, tell)
        return snapshot

    @property
    def subscribers(self) -> int:
        return self._feed.subscribers

    def connection_lost(self, subscriber: object) -> None:
        self._feed.unsubscribe(subscriber)

    def clear(self, session_id: str | None, among: Among = _every) -> int:
        """Forget what is kept; how many. Raises CallerError `session_unknown`."""
        return sum(store.clear() for store in self._stores(session_id, among))

    async def annotate(
        self, command_id: str, text: str, session_id: str | None, among: Among = _every
    ) -> tuple[str, int]:
        """The text with a block of what was blocked in the command, and how many that were."""
        stores = self._stores(session_id, among)
        await self._settle(command_id, among)
        for command in self._sessions.commands_called(command_id, among):
            command.infer(text)
        found = [violation for store in stores for violation in store.list(command_id)]
        lost = sum(command.violations_lost for command in self._sessions.commands_called(command_id, among))
        return await _apart(text, lambda: annotate(text, found, self.key, lost=lost)), len(found)

    async def strip(self, text: str) -> str:
        return await _apart(text, lambda: strip(text, self.key))

    async def _settle(self, command_id: str, among: Among) -> None:
        """A client sees its command's end before we do, and some reports come later than that. Nothing is waited for
        when nothing can come any more."""
        commands = self._sessions.commands_called(command_id, among)
        if self._slow_reports:
            since = [time.monotonic() - command.ended_at for command in commands if command.ended_at is not None]
            running = len(since) < len(commands)
            wait_s = STRAGGLERS_S if running else STRAGGLERS_S - min(since, default=STRAGGLERS_S)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        else:
            await asyncio.gather(*(command.settled_outcome(STRAGGLERS_S) for command in commands))

    def _stores(self, session_id: str | None, among: Among = _every) -> list[ViolationStore]:
        if session_id is not None:
            return [self._sessions.get(session_id).violations]
        every = [*(session.violations for session in self._sessions.all()), *self._feed.ended]
        return [store for store in every if among(store.session_id)]
