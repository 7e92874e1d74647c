"""Answers of one session, and how long they hold.

They go with the session.

A yes is a grant: for one command, for the session, or until its time is over. A no is remembered for the session, so
that a program which tries again does not wear people out. Both are about exactly what was asked: a host with its port,
a path to read or to write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from sandboxd.errors import CallerError
from sandboxd.policy.model import HostRule
from sandboxd.runtime.wrap import Overrides
from sandboxd_client.records import dataclass

Key = tuple[str, ...]
"""The key of a question: two questions of a session with the same key are the same question."""


class GrantScope(StrEnum):
    """The reach of an answer."""

    ONCE = "once"
    """The connections that wait for the answer now."""
    COMMAND = "command"
    SESSION = "session"
    ALWAYS = "always"
    """A rule in local settings."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant: `rule` is set for a host, `path` for a path.

    `asker` is who it was given to (None: the whole session), `uses` how many launches it is good for (None: any
    number), `expires_at` seconds since the epoch, `by` who gave it."""

    id: str
    subject: str
    scope: GrantScope
    asker: str | None
    by: str
    given_at: float
    expires_at: float | None = None
    rule: HostRule | None = None
    path: str | None = None
    write: bool = False
    uses: int | None = None
    command_id: str | None = None
    """The command it was given to, as its caller knows it."""
    key: Key | None = None
    """The command line that the grant is for."""


@dataclass(frozen=True, slots=True)
class GrantsRecord:
    """The answers of one session, for the next daemon.

    `denied` has for each no until when it holds."""

    given: tuple[Grant, ...] = ()
    denied: tuple[tuple[Key, float | None], ...] = ()
    last: int = 0


class Grants:
    """Grants and denials of one session. `changed` is called when a grant has ended."""

    def __init__(self, changed: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.time) -> None:
        self._changed = changed
        self._clock = clock
        self._last = 0
        self._given: dict[str, Grant] = {}
        self._denied: dict[Key, float | None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # yes

    def give(
        self,
        subject: str,
        scope: GrantScope,
        asker: str | None,
        by: str,
        *,
        ttl_s: float | None = None,
        rule: HostRule | None = None,
        path: str | None = None,
        write: bool = False,
        uses: int | None = None,
        command_id: str | None = None,
        key: Key | None = None,
    ) -> Grant:
        """Remember a yes; it ends by itself after `ttl_s` seconds."""
        now = self._clock()
        expires_at = None if ttl_s is None else now + ttl_s
        self._last += 1
        number = f"g-{self._last}"
        grant = Grant(number, subject, scope, asker, by, now, expires_at, rule, path, write, uses, command_id, key)
        self._given[grant.id] = grant
        if ttl_s is not None:
            self._timers[grant.id] = asyncio.get_running_loop().call_later(ttl_s, self._end, grant.id)
        return grant

    def list(self) -> list[Grant]:
        """Return the grants in force, oldest first."""
        return [grant for grant in self._given.values() if self._holds(grant)]

    def host_rules(self, asker: str) -> tuple[HostRule, ...]:
        """Return the host rules that grants add to the policy of this command."""
        if not self._given:
            return ()
        return tuple(
            grant.rule
            for grant in self.list()
            if grant.rule is not None and (grant.asker is None or grant.asker == asker)
        )

    def of_command(self, key: Key) -> Grant | None:
        """Return the session's grant for a command line, if any."""
        return next((grant for grant in self.list() if grant.key == key), None)

    def widen(self, overrides: Overrides, asker: str | None) -> Overrides:
        """Add granted paths to a launch's overrides.

        Uses up what was granted for one launch."""
        mine = [g for g in self.list() if g.path is not None and (g.asker is None or g.asker == asker)]
        if not mine:
            return overrides
        for grant in mine:
            if grant.uses is not None:
                self._given[grant.id] = replace(grant, uses=grant.uses - 1)
        return replace(
            overrides,
            granted_write=tuple(g.path for g in mine if g.path is not None and g.write),
            granted_read=tuple(g.path for g in mine if g.path is not None and not g.write),
            grants=tuple(g.id for g in mine),
        )

    def check(self, overrides: Overrides) -> Overrides:
        """Return the overrides, unless a grant that widened them has ended.

        Raises CallerError `grant_unknown`."""
        for grant_id in overrides.grants:
            grant = self._given.get(grant_id)
            if grant is None or not self._is_in_time(grant):
                raise CallerError("grant_unknown", f"the grant {grant_id} has ended", hint="ask for the path again")
        return overrides

    def revoke(self, grant_id: str) -> Grant:
        """Take a grant back.

        Raises CallerError `grant_unknown`."""
        grant = self._given.get(grant_id)
        if grant is None or not self._holds(grant):
            raise CallerError("grant_unknown", f"there is no grant {grant_id!r}", hint="see permission.list")
        self._end(grant_id)
        return grant

    def command_ended(self, asker: str) -> None:
        for grant in [g for g in self._given.values() if g.asker == asker and g.rule is not None]:
            self._forget(grant.id)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._given.clear()

    # the next daemon

    def record(self) -> GrantsRecord:
        given = tuple(filter(self._is_in_time, self._given.values()))
        return GrantsRecord(given, tuple(self._denied.items()), self._last)

    def resume(self, record: GrantsRecord) -> None:
        """Resume the answers of an earlier daemon that are still in force."""
        self._last = record.last
        self._denied.update(record.denied)
        loop = asyncio.get_running_loop()
        for grant in filter(self._is_in_time, record.given):
            self._given[grant.id] = grant
            if grant.expires_at is not None:
                left = grant.expires_at - self._clock()
                self._timers[grant.id] = loop.call_later(left, self._end, grant.id)

    # no

    def deny(self, key: Key, ttl_s: float | None = None) -> None:
        """Remember a no, for the session or for `ttl_s` seconds."""
        self._denied[key] = None if ttl_s is None else self._clock() + ttl_s

    def denied(self, key: Key) -> bool:
        """Return whether a user has denied this before."""
        if key not in self._denied:
            return False
        until = self._denied[key]
        if until is not None and until <= self._clock():
            del self._denied[key]
            return False
        return True

    def _holds(self, grant: Grant) -> bool:
        return self._is_in_time(grant) and grant.uses != 0

    def _is_in_time(self, grant: Grant) -> bool:
        return grant.expires_at is None or grant.expires_at > self._clock()

    def _end(self, grant_id: str) -> None:
        self._forget(grant_id)
        self._changed()

    def _forget(self, grant_id: str) -> None:
        self._given.pop(grant_id, None)
        timer = self._timers.pop(grant_id, None)
        if timer is not None:
            timer.cancel()
