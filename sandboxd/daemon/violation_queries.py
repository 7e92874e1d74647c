"""Queries about the violations of all sessions, and their subscriptions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from sandboxd.daemon.suggestions import Lesson, lesson_of
from sandboxd.errors import CallerError
from sandboxd.policy.explain.annotation import annotate, strip
from sandboxd.policy.violation import Violation
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.violations.violation_store import Cleared, Tell, ViolationFeed, ViolationStore
from sandboxd_client.records import dataclass

__all__ = ["Cleared", "ViolationQueries", "ViolationSnapshot"]

STRAGGLERS_S = 0.1
"""Seconds that an annotation waits for late reports."""
LONG_TEXT = 32 << 10

Among = Callable[[str], bool]
"""Return whether the session of an id may be seen."""


def _every(session_id: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ViolationSnapshot:
    """Kept violations up to a cursor.

    `total` counts also those that are not kept. `hidden` and `lost` are parts of it: ignored by settings,
    and over the bounds of a command. `complete` means that none is missing between the given cursor and `cursor`."""

    violations: tuple[Violation, ...]
    total: int
    hidden: int
    cursor: str
    complete: bool = True
    lost: int = 0


async def _processed(text: str, work: Callable[[], str]) -> str:
    """Return the result of `work` on a text; for a long one, a thread computes it."""
    return work() if len(text) < LONG_TEXT else await asyncio.to_thread(work)


class ViolationQueries:
    """Violation queries of a daemon.

    With `slow_reports` the system reports violations after the end of the command (macOS). `key` marks the annotations
    of this daemon and of the earlier one."""

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
        """Return violations after `since`. Raises CallerError `session_unknown`."""
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
        """Return the snapshot, and report later changes to `tell`. Raises as above."""
        snapshot = self.snapshot(session_id, None, since)
        self._feed.subscribe(subscriber, session_id, tell)
        return snapshot

    async def suggest(self, number: int, home: str, among: Among = _every) -> Lesson:
        """Return the smallest settings that open one violation. Raises CallerError `violation_unknown`."""
        found = [one for store in self._stores(None, among) for one in store.list() if one.id == number]
        if not found:
            raise CallerError("violation_unknown", f"no violation {number} is kept", hint="see: sandboxd violations")
        return await lesson_of(found, self._sessions.commands_called(found[0].command_id, among), home)

    @property
    def subscribers(self) -> int:
        return self._feed.subscribers

    def connection_lost(self, subscriber: object) -> None:
        self._feed.unsubscribe(subscriber)

    def clear(self, session_id: str | None, among: Among = _every) -> int:
        """Delete violations; return their number. Raises CallerError `session_unknown`."""
        return sum(store.clear() for store in self._stores(session_id, among))

    async def annotate(
        self, command_id: str, text: str, session_id: str | None, among: Among = _every
    ) -> tuple[str, int]:
        """Return the text with a block about the command's violations, and their number."""
        stores = self._stores(session_id, among)
        await self._settle(command_id, among)
        for command in self._sessions.commands_called(command_id, among):
            command.infer(text)
        found = [violation for store in stores for violation in store.list(command_id)]
        lost = sum(command.violations_lost for command in self._sessions.commands_called(command_id, among))
        return await _processed(text, lambda: annotate(text, found, self.key, lost=lost)), len(found)

    async def strip(self, text: str) -> str:
        return await _processed(text, lambda: strip(text, self.key))

    async def _settle(self, command_id: str, among: Among) -> None:
        """Wait for late reports about a command.

        A client may see the end of its command before the daemon does. There is no wait when no report can come."""
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
