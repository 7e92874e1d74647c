"""All sessions of a daemon: opened, found and ended here, and nowhere else."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from sandboxd.backends.base import LaunchSpec as LaunchSpec
from sandboxd.errors import CallerError
from sandboxd.handover.document import Outgoing
from sandboxd.policy.violation import Violation
from sandboxd.processes import Process, ProcessEnd
from sandboxd.runtime.command import Command
from sandboxd.runtime.session import STOP_GRACE_S, Inherited, PolicyOf, SandboxSession, SessionParts
from sandboxd.runtime.session_records import SessionSpec, SessionState
from sandboxd.runtime.wrap import WrapOutcome, WrapRequest
from sandboxd_client.records import dataclass

OUTCOMES_KEPT = 512
"""Outcomes of ended commands: a client asks right after the end, or never. One holds some 4 KB."""

_TRIES = 8
MOST_OF_CONNECTION = 256
"""Sessions that one connection may have open."""
MOST_IMPLICIT = 64
"""Of those, the implicit ones; the idle ones of them make way for others."""
SHORTEST_ID = 4
"""Characters of a wrap's id that may stand for it."""
MOST_DETACHED = 256
"""Detached sessions of a daemon: each keeps a temporary directory and its violations."""


@dataclass(slots=True)
class _KnownCommand:
    """A known command; `owner` is its connection, None after the end of that.

    A command may outlive its session."""

    command: Command
    session: SandboxSession
    owner: object


class Sessions:
    """All sessions of a daemon. Leaving the context ends every session."""

    def __init__(self, parts: SessionParts, changed: Callable[[str, bool], None] | None = None) -> None:
        """Call `changed` with each session that opens (True) or ends."""
        self._parts = parts
        self._changed = changed
        self._sessions: dict[str, SandboxSession] = {}
        self._owners: dict[str, object] = {}
        self._implicit: dict[tuple[object, str], SandboxSession] = {}
        self._commands: OrderedDict[str, _KnownCommand] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._agents: dict[str, ProcessEnd] = {}
        self.grace_s = STOP_GRACE_S
        """How long commands have between TERM and KILL when their session ends. The helper has a limit of its own."""

    async def __aenter__(self) -> Sessions:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end_all(self.all())
        finally:
            while self._ending:
                await asyncio.wait(self._ending)

    def is_owner(self, session_id: str, owner: object) -> bool:
        """Return whether `owner` opened a session that has not ended."""
        return owner is not None and self._owners.get(session_id) is owner

    def open(self, spec: SessionSpec, policy: PolicyOf, owner: object) -> SandboxSession:
        """Open a session of the connection `owner`.

        Raises CallerError `sessions_too_many`."""
        self._check_room(spec, owner)
        session = SandboxSession(f"s-{secrets.token_hex(6)}", spec, policy, self._parts)
        self._sessions[session.id] = session
        self._owners[session.id] = owner
        if self._changed is not None:
            self._changed(session.id, True)
        self._end_with_agent(session)
        return session

    def _end_with_agent(self, session: SandboxSession) -> None:
        if session.spec.agent is None:
            return
        try:
            self._agents[session.id] = ProcessEnd(session.spec.agent, partial(self._end_later, session))
        except OSError:
            self._end_later(session)

    def joined(self, key: str, agent: Process | None) -> SandboxSession | None:
        """Return the open session of an agent, or of a key, if there is one."""
        found = (one for one in self.all() if not one.closed and (one.spec.key, one.spec.agent) == (key, agent))
        return next(found, None)

    def id_of(self, name: str) -> str:
        """Return the id of the detached session with this name, or the name itself.

        Raises CallerError `session_ambiguous`."""
        if name in self._sessions:
            return name
        found = [one.id for one in self.all() if one.spec.detached and one.spec.name == name]
        if len(found) > 1:
            raise CallerError(
                "session_ambiguous",
                f"{len(found)} sessions have the name {name!r}",
                hint="list them with: sandboxd session list",
            )
        return found[0] if found else name

    def implicit(self, owner: object, cwd: str, policy: PolicyOf) -> SandboxSession:
        """Return the implicit session of a connection and a project directory."""
        session = self._implicit.get((owner, cwd))
        if session is None or session.closed:
            self._end_idle_implicit(owner)
            session = self.open(SessionSpec(cwd=cwd, implicit=True), policy, owner)
            self._implicit[(owner, cwd)] = session
        return session

    def _check_room(self, spec: SessionSpec, owner: object) -> None:
        self._end_idle_keyed()
        opened = sum(one is owner for one in self._owners.values())
        detached = sum(session.spec.detached for session in self._sessions.values())
        if opened >= MOST_OF_CONNECTION or (spec.detached and detached >= MOST_DETACHED):
            whose = (
                f"{detached} detached sessions"
                if opened < MOST_OF_CONNECTION
                else f"{opened} sessions of one connection"
            )
            raise CallerError(
                "sessions_too_many", f"there are {whose} already", hint="close some with session.close, or reuse one"
            )

    def _end_idle_keyed(self) -> None:
        """End the oldest idle session with a key to make room for another detached one."""
        detached = [session for session in self.all() if session.spec.detached and not session.closed]
        idle = (session for session in detached if session.spec.key and session.idle)
        if len(detached) >= MOST_DETACHED and (oldest := next(idle, None)) is not None:
            self._end_later(oldest)
            self._sessions.pop(oldest.id)

    def _end_idle_implicit(self, owner: object) -> None:
        """End an idle implicit session of a connection to make room for another one."""
        implicit = [key for key in self._implicit if key[0] is owner]
        if len(implicit) < MOST_IMPLICIT:
            return
        for key in implicit:
            if self._implicit[key].idle:
                self._end_later(self._implicit.pop(key))
                return

    def get(self, session_id: str) -> SandboxSession:
        """Return a session by its id. Raises CallerError `session_unknown`."""
        session = self._sessions.get(session_id)
        if session is None:
            raise CallerError(
                "session_unknown",
                f"there is no session {session_id!r}",
                hint="start another with: sandboxd session start (in a program: session.open)",
            )
        return session

    def all(self) -> list[SandboxSession]:
        return list(self._sessions.values())

    @property
    def connections(self) -> int:
        """Return the number of open connections of commands."""
        proxies = (command.proxies for session in self.all() for command in session.commands())
        return sum(one.connections for one in proxies if one is not None)

    async def wrap(self, session: SandboxSession, request: WrapRequest) -> tuple[Command, LaunchSpec]:
        command, launch = await session.wrap(request)
        if session.command(command.wrap_id) is not None:
            self._commands[command.wrap_id] = _KnownCommand(command, session, self._owners.get(session.id))
            for _ in range(_TRIES if len(self._commands) > OUTCOMES_KEPT else 0):
                oldest = next(iter(self._commands))
                if self._commands[oldest].command.outcome.exited:
                    del self._commands[oldest]
                    break
                self._commands.move_to_end(oldest)  # it runs: its client will ask
        return command, launch

    def check_made(self, wrap_id: str, owner: object) -> None:
        """Check the owner of a wrap. Raises CallerError `wrap_unknown`."""
        entry = self._commands.get(wrap_id)
        if entry is None or owner is None or entry.owner is not owner:
            raise _unknown(wrap_id)

    async def outcome(self, wrap_id: str) -> tuple[WrapOutcome, list[Violation]]:
        """Return the outcome of a wrap, with its violations.

        Raises CallerError `wrap_unknown`."""
        command, session = self.wrapped(wrap_id)
        return await command.settled_outcome(), session.violations.list(command.command_id)

    def wrapped(self, wrap_id: str) -> tuple[Command, SandboxSession]:
        """Return the command of a wrap, also one that has ended.

        Raises CallerError `wrap_unknown`."""
        entry = self._commands.get(wrap_id)
        if entry is None:
            raise _unknown(wrap_id)
        return entry.command, entry.session

    def running(self, among: Callable[[str], bool]) -> list[tuple[Command, SandboxSession]]:
        """Return the commands that have been spawned and not ended, with their sessions."""
        every = ((command, session) for session in self.all() if among(session.id) for command in session.commands())
        return [(command, session) for command, session in every if command.claimed_at is not None]

    def running_command(self, name: str, among: Callable[[str], bool]) -> Command:
        """Return a running command by its id, or the beginning of its wrap's.

        Raises CallerError `command_unknown`."""
        running = [command for command, _ in self.running(among)]
        found = [one for one in running if name in (one.wrap_id, one.command_id)]
        if not found and len(name) >= SHORTEST_ID:
            found = [one for one in running if one.wrap_id.startswith(name)]
        if len(found) != 1:
            what = "no running command has" if not found else f"{len(found)} running commands have"
            raise CallerError("command_unknown", f"{what} the id {name!r}", hint="list them with: sandboxd ps")
        return found[0]

    def commands_called(self, command_id: str, among: Callable[[str], bool] = lambda session_id: True) -> list[Command]:
        """Return the commands with this id of their callers, also ended ones."""
        every = self._commands.values()
        return [one.command for one in every if one.command.command_id == command_id and among(one.session.id)]

    # from one daemon to the next (docs/restarts.md)

    @property
    def is_busy(self) -> bool:
        """Return whether a connection is busy with a part that is not handed over."""
        return any(c.proxies is not None and c.proxies.is_busy for s in self.all() for c in s.commands())

    def pause(self) -> None:
        """Accept no more connections of commands: they wait. What is prepared ends."""
        for session in self.all():
            session.prepared.clear()
            for command in session.commands():
                if command.proxies is not None:
                    command.proxies.pause()

    async def shed(self, most: int) -> int:
        """Reset connections of each command, so that they have at most so many descriptors; return their number."""
        every = [command for session in self.all() for command in session.commands()]
        return sum([await one.proxies.shed(most) for one in every if one.proxies is not None])

    async def hand_over(
        self, outgoing: Outgoing, owner: Callable[[object], str], settings: Callable[[SandboxSession], object]
    ) -> None:
        """Let go of every session.

        `owner` names a connection (empty for one that is gone), `settings` are those that a session was opened with."""
        known: dict[SandboxSession, list[Command]] = {session: [] for session in self.all()}
        owners = {session: self._owners.get(session.id) for session in known}
        for one in self._commands.values():
            known.setdefault(one.session, []).append(one.command)
            owners.setdefault(one.session, one.owner)
        for session, commands in known.items():
            of = owner(owners[session])
            over = [one for one in commands if session.command(one.wrap_id) is None]  # by now
            record, cut = await session.hand_over(settings(session), of, over)
            outgoing.add("session", record, session.id)
            outgoing.cut += cut
        for watched in self._agents.values():
            watched.close()
        self._agents.clear()
        self._sessions.clear()
        self._commands.clear()
        self._implicit.clear()

    def resume(self, record: SessionState, policy: PolicyOf, owner: object, inherited: Inherited) -> None:
        """Resume a session of an earlier daemon; `owner` is None without connection."""
        session = SandboxSession(record.session_id, record.spec, policy, self._parts)
        if not record.closed:
            self._sessions[session.id] = session
            self._owners[session.id] = owner
            self._end_with_agent(session)
            if record.spec.implicit and owner is not None:
                self._implicit[(owner, record.spec.cwd)] = session
            elif record.spec.implicit or record.orphaned:
                session.on_idle = self._end_later
        for command in session.resume(record, inherited):
            self._commands[command.wrap_id] = _KnownCommand(command, session, owner)

    async def resumed(self) -> None:
        """End resumed sessions whose connection has ended meanwhile.

        Raises OSError."""
        try:
            await self.connection_lost(None)
        finally:
            await self._end_all([one for one in self.all() if one.on_idle is not None and one.idle])

    async def close(self, session_id: str) -> None:
        """End a session: its commands die.

        Raises CallerError `session_unknown`."""
        await self._end(self.get(session_id))

    async def connection_lost(self, owner: object) -> None:
        """End the sessions of a lost connection, except detached ones.

        A command of an implicit session lives on: it is bound to the process that spawned it, which need not be the
        one that asked for the wrap."""
        for session in self.all():
            session.prepared.drop(owner)
        for one in self._commands.values():
            if one.owner is owner:
                one.owner = None
        for key in [key for key in self._implicit if key[0] is owner]:
            session = self._implicit.pop(key)
            if session.idle:
                await self._end(session)
            else:
                session.on_idle = self._end_later
        opened = [session for session in self.all() if self._owners.get(session.id) is owner]
        gone = [one for one in opened if not (one.spec.implicit or one.spec.detached or one.on_idle is not None)]
        await self._end_all(gone)

    def policy_changed(self) -> None:
        """Apply new rules to the next connections, and cut tunnels they deny."""
        for session in self._sessions.values():
            session.recheck()

    def _end_later(self, session: SandboxSession) -> None:
        task = asyncio.get_running_loop().create_task(self._end(session), name=f"end-{session.id}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_all(self, sessions: Iterable[SandboxSession]) -> None:
        """End sessions, also when one fails; raise the first error."""
        outcomes = await asyncio.gather(*map(self._end, sessions), return_exceptions=True)
        for fault in filter(None, outcomes):
            raise fault

    async def _end(self, session: SandboxSession) -> None:
        """End a session.

        Raises OSError when its temporary directory cannot be removed."""
        self._owners.pop(session.id, None)
        if (watched := self._agents.pop(session.id, None)) is not None:
            watched.close()
        try:
            await session.aclose(self.grace_s)
        except OSError:
            self._ended(session)
            raise
        self._ended(session)

    def _ended(self, session: SandboxSession) -> None:
        self._sessions.pop(session.id, None)
        if self._changed is not None:
            self._changed(session.id, False)


def _unknown(wrap_id: str) -> CallerError:
    return CallerError("wrap_unknown", f"there is no wrap {wrap_id!r}", hint="wrap the command again")
