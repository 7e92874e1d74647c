"""Hand-over of state from one daemon to the next (docs/restarts.md).

`hand_over` collects the state of the parts of a running daemon. `TakingOver` resumes it in the parts of the next one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from structlog.typing import FilteringBoundLogger

from sandboxd import __version__
from sandboxd.app.platform import LaunchHandover
from sandboxd.backends.base import SandboxNetwork
from sandboxd.daemon.permissions import PermissionQueries
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.restart.crash_store import CrashStore
from sandboxd.daemon.restart.restarting import Restarted, Restarting
from sandboxd.daemon.settings.kept_settings import KeptSettings
from sandboxd.daemon.settings.subscriptions import SettingsSubscriptions
from sandboxd.daemon.state import DaemonState
from sandboxd.daemon.violation_queries import ViolationQueries
from sandboxd.errors import DaemonError
from sandboxd.handover.document import Incoming, Outgoing, Part
from sandboxd.handover.record import Descriptor
from sandboxd.proxy.host_addresses import ClosedPorts
from sandboxd.proxy.tls.authority import AuthorityRecord
from sandboxd.rpc.connection import ConnectionRecord, RpcConnection
from sandboxd.rpc.handlers import permissions as permission_methods
from sandboxd.rpc.handlers import settings as settings_methods
from sandboxd.rpc.handlers import violations as violation_methods
from sandboxd.rpc.server import Connections
from sandboxd.rpc.socket import DirectoryLock, ListeningSocket, ListeningSocketRecord
from sandboxd.runtime.certificate_trust import CertificateTrust
from sandboxd.runtime.command_record import close_descriptors
from sandboxd.runtime.prompts.open_prompts import Prompts, QuestionsRecord
from sandboxd.runtime.session import Inherited, PlanningPolicy, SandboxSession
from sandboxd.runtime.session_records import SessionState, joined
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.temporary_directories import TemporaryRecord, TemporaryRoot
from sandboxd.runtime.violations.violation_store import FeedRecord, ViolationFeed
from sandboxd_client.records import dataclass, field

SETTLING_S = 0.4
"""Seconds that unfinished work may take before it is cut."""
PREPARING_S = 5.0
"""Seconds that sandbox set-ups may take, which processes of their own complete."""
LOOK_S = 0.01
OF_COMMAND = 24
"""Descriptors of a command and its session, besides connections, that find room in the manager's store."""


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """State that a daemon has once; `since` is the end of service (monotonic)."""

    version: str
    lock: Descriptor
    listener: ListeningSocketRecord
    temporary: TemporaryRecord
    feed: FeedRecord
    annotation_key: bytes
    generation: int
    started_at: float = 0.0
    restarts: int = 0
    since: float = 0.0
    authorities: tuple[AuthorityRecord, ...] = ()
    settings: tuple[KeptSettings, ...] = ()


class Predecessor:
    """State that an earlier daemon left; everything is empty without one."""

    def __init__(self, incoming: Incoming | None) -> None:
        self.incoming = incoming or Incoming()
        records = self.incoming.take("daemon", DaemonRecord)
        self.daemon = records[0] if records else None
        self.exists = incoming is not None


@dataclass(slots=True)
class RunningDaemon:
    """Parts of a running daemon: those with state to hand over, and those that its process uses."""

    lock: DirectoryLock
    listening: ListeningSocket
    temporary: TemporaryRoot
    policies: Policies
    prompts: Prompts
    feed: ViolationFeed
    blocked: ViolationQueries
    subscriptions: SettingsSubscriptions
    permissions: PermissionQueries
    trust: CertificateTrust
    closed_ports: ClosedPorts
    sessions: Sessions
    connections: Connections
    launch_handover: LaunchHandover | None
    crash_store: CrashStore | None
    restarting: Restarting
    state: DaemonState


async def hand_over(parts: RunningDaemon, for_manager: bool = False) -> Outgoing:
    """Release everything that the next daemon can continue.

    `for_manager`: the service manager passes it on, in a store of limited capacity.

    Leaving the daemon's context afterwards ends nothing. An error ends everything, also the parts that were released
    before: no daemon can continue a fraction of the state."""
    outgoing = Outgoing()
    outgoing.for_manager = for_manager
    try:
        await _hand_over(parts, outgoing)
    except BaseException:
        for part in outgoing.parts:
            end_part(part)
        raise
    return outgoing


async def _hand_over(parts: RunningDaemon, outgoing: Outgoing) -> None:
    assert parts.launch_handover is not None, "Restarting refuses a restart where it is not supported"
    since = time.monotonic()
    if parts.crash_store is not None:
        parts.crash_store.pause()
    connections, sessions, prompts = parts.connections, parts.sessions, parts.prompts
    connections.pause()
    connections.stop_accepting()
    sessions.pause()
    if outgoing.for_manager and parts.crash_store is not None and (most := await parts.crash_store.capacity()):
        outgoing.cut += await _shed(parts, most)
    await _settled(parts)
    await parts.launch_handover.prepared(PREPARING_S)
    connections.pause()  # also connections accepted in the meantime
    prompts.suspend()
    subscribed = {one: _subscriptions(parts, one) for one in connections.open}
    handed = await connections.hand_over()
    keys = {connection: record.key for connection, record in handed}

    def owner(connection: object) -> str:
        return keys.get(connection, "") if isinstance(connection, RpcConnection) else ""

    await sessions.hand_over(outgoing, owner, opened_with)
    outgoing.add("questions", prompts.hand_over())
    for connection, record in handed:
        outgoing.add("connection", subscribed[connection].on(record), f"pid {record.pid}")
    parts.launch_handover.hand_over(outgoing)
    outgoing.add(
        "daemon",
        DaemonRecord(
            version=__version__,
            lock=parts.lock.hand_over(),
            listener=parts.listening.hand_over(),
            temporary=parts.temporary.hand_over(),
            feed=parts.feed.record(),
            annotation_key=parts.blocked.key,
            generation=parts.policies.generation,
            started_at=parts.state.started_at,
            restarts=parts.state.restarts,
            since=since,
            authorities=parts.trust.records,
            settings=parts.policies.hand_over(),
        ),
    )
    if parts.crash_store is not None:  # the manager stores a descriptor once, under one name
        await parts.crash_store.close()


def opened_with(session: SandboxSession) -> object:
    """Return the settings that a session was opened with."""
    policy = session.policy_of
    return getattr(policy.base if isinstance(policy, PlanningPolicy) else policy, "settings", None)


async def _settled(parts: RunningDaemon) -> None:
    """Wait a moment for unfinished work; at least one turn of the event loop."""
    until = time.monotonic() + SETTLING_S
    while True:
        await asyncio.sleep(LOOK_S)
        busy = parts.connections.is_busy or parts.sessions.is_busy or parts.prompts.is_answering
        if not busy or time.monotonic() >= until:
            return


async def _shed(parts: RunningDaemon, most: int) -> int:
    """Cut the connections for which a store of this capacity has no room; return their number.

    The store drops what is too much, and all that a part needs is in it or the part is lost. So no command's tunnels
    take the room of other commands, and no client's connections that of other clients."""
    commands = sum(1 for session in parts.sessions.all() for _ in session.commands())
    room = max(most - OF_COMMAND * (commands + 1), 0)
    return parts.connections.shed(room // 2) + await parts.sessions.shed(room // 2 // max(commands, 1))


@dataclass(frozen=True, slots=True)
class _Subscribed:
    questions: bool
    original_names: bool
    watching: bool
    violations: tuple[str | None, ...]
    settings: tuple[tuple[str | None, str | None], ...]
    closed_ports: tuple[int, ...]
    page: str

    def on(self, record: ConnectionRecord) -> ConnectionRecord:
        return replace(
            record,
            questions=self.questions,
            original_names=self.original_names,
            watching=self.watching,
            violations=self.violations,
            settings=self.settings,
            closed_ports=self.closed_ports,
            page=self.page,
        )


def _subscriptions(parts: RunningDaemon, connection: RpcConnection) -> _Subscribed:
    return _Subscribed(
        parts.prompts.is_subscribed(connection),
        parts.prompts.is_subscribed(connection, permission_methods.tell_original),
        parts.prompts.is_watching(connection),
        parts.feed.subscribed(connection),
        parts.subscriptions.scopes(connection),
        *parts.closed_ports.of(connection),
    )


@dataclass(slots=True)
class TakingOver:
    """Resumption of state, in the order `sessions`, `settle`, `connect`."""

    predecessor: Predecessor
    parts: RunningDaemon
    make: Callable[[ConnectionRecord], RpcConnection]
    log: FilteringBoundLogger
    lost: list[str] = field(default_factory=list)
    _broken: list[str] = field(default_factory=list)
    _connections: list[tuple[RpcConnection, ConnectionRecord]] = field(default_factory=list)

    def sessions(self) -> None:
        """Resume everything but the connections, without waiting."""
        incoming, parts = self.predecessor.incoming, self.parts
        owners: dict[str, RpcConnection] = {}
        for record in incoming.take("connection", ConnectionRecord):
            owners[record.key] = connection = self.make(record)
            self._connections.append((connection, record))
        records = incoming.take("session", SessionState)
        for session in joined(records) if incoming.crashed else records:
            self._session(session, owners.get(session.owner))
        questions = incoming.take("questions", QuestionsRecord)
        known = {session.id: session for session in parts.sessions.all()}
        for one in questions:
            parts.prompts.resume(one, lambda name: known[name].grants if name in known else None)
        for connection, record in self._connections:
            self._subscribe(connection, record)
        for launch in () if parts.launch_handover is None else parts.launch_handover.end_inherited():
            self.lost.append(f"command {launch}: its session could not be taken over, so it was ended")
        parts.policies.taken_over()

    def _session(self, record: SessionState, owner: RpcConnection | None) -> None:
        inherited = _NOTHING if self.parts.launch_handover is None else self.parts.launch_handover.inherited
        try:
            try:
                spec = record.spec
                planning = spec.is_planning
                policy = self.parts.policies.of_session(
                    spec.cwd, record.settings, restricted=spec.only_tightens, added=record.added, planning=planning
                )
                policy()
            except DaemonError:
                close_descriptors(record)
                raise
            self.parts.sessions.resume(record, policy, owner, inherited)
            self.parts.policies.keep(record.session_id, policy)
        except DaemonError as error:
            if not record.closed:
                self._mark_broken(record.session_id, error.message)
        except Exception:  # an internal error in one session must not end the others
            self.log.exception("a session could not be taken over", session=record.session_id)
            self._mark_broken(record.session_id, "internal error; see the log")

    def _mark_broken(self, session_id: str, reason: str) -> None:
        """Report a session that could not be resumed; `settle` ends its resumed parts."""
        self.lost.append(f"session {session_id}: {reason}")
        self._broken.append(session_id)

    def _subscribe(self, connection: RpcConnection, record: ConnectionRecord) -> None:
        parts = self.parts
        if record.questions:
            names = permission_methods.tell_original if record.original_names else permission_methods.tell
            parts.permissions.subscribe(connection, names, watch=record.watching)
        for session_id in record.violations:
            parts.feed.subscribe(connection, session_id, violation_methods.tell)
        if record.closed_ports:
            parts.closed_ports.close(connection, frozenset(record.closed_ports), record.page)
        for session_id, directory in record.settings:
            try:
                parts.subscriptions.add(connection, session_id, directory, settings_methods.tell)
            except DaemonError as error:
                self.log.warning("a subscription to settings could not be taken over", reason=error.message)

    async def connect(self) -> None:
        """Resume the connections."""
        for connection, record in self._connections:
            await self.parts.connections.connect(connection, record)

    async def settle(self) -> Restarted | None:
        """End what could not be resumed, and report the result."""
        for part, reason in self.predecessor.incoming.rest():
            self.lost.append(f"{part.kind} {part.name}: {reason}")
            end_part(part)
        left = []
        for session_id in self._broken:
            try:
                await self.parts.sessions.close(session_id)
            except OSError as error:
                left.append(error)
            except DaemonError:  # it was never resumed
                continue
        known = frozenset(session.id for session in self.parts.sessions.all())
        left += await self.parts.temporary.keep_only(known)
        try:
            await self.parts.sessions.resumed()
        except OSError as error:
            left.append(error)
        for fault in left:  # running commands do not depend on it
            self.log.error("the temporary directory of an ended session cannot be removed", reason=str(fault))
        await asyncio.sleep(0)  # lets the tasks of resumed tunnels begin, which register them
        self.parts.sessions.policy_changed()  # rules may be stricter now, and grants may have expired
        before = self.predecessor.daemon
        if not self.predecessor.exists:
            return None
        restarted = Restarted(
            from_version="" if before is None else before.version,
            commands=sum(len(session.commands()) for session in self.parts.sessions.all()),
            cut=self.predecessor.incoming.cut,
            lost=tuple(self.lost),
            stall_s=max(time.monotonic() - before.since, 0.0) if before is not None and before.since else 0.0,
            crashed=self.predecessor.incoming.crashed,
        )
        for text in self.lost:
            self.log.error("not taken over from the daemon before", what=text)
        self.log.info(
            "taken over from the daemon before",
            version=restarted.from_version,
            commands=restarted.commands,
            cut=restarted.cut,
            lost=len(self.lost),
            stall_ms=round(restarted.stall_s * 1000),
            crashed=restarted.crashed,
        )
        return restarted


def _no_network(descriptor: int) -> SandboxNetwork:
    raise AssertionError("no back end handed over a sandbox network")


_NOTHING = Inherited(lambda launch_id, observer: None, _no_network)


def end_part(part: Part) -> None:
    """Kill the process trees of a part and close its descriptors."""
    for pidfd in part.ends:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except (OSError, ValueError):  # gone already, or missing
            continue
    for descriptor in part.descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue
