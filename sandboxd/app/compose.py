"""Composition root: the only module that makes and connects the daemon's parts.

The parts end in the reverse order of their start. Calls stop first, then sessions and their commands end, the bridge
closes, and the socket and the lock are removed. Connections are closed last: a client that asked for the end learns by
it that another daemon can be started. `app.process` is the process around the daemon."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from structlog.typing import FilteringBoundLogger

from sandboxd.app.commands import explaining, explaining_sockets, make_proxies_of, placing, put_commands_first
from sandboxd.app.configuration import DaemonConfig, own_trust
from sandboxd.app.crash_records import crash_entries
from sandboxd.app.handover import DaemonRecord, Predecessor, RunningDaemon, TakingOver
from sandboxd.app.platform import Assemble, BackendContext, Platform
from sandboxd.daemon.audit.audit_recorder import AuditRecorder
from sandboxd.daemon.lifecycle import StopRequest, stop_when_idle
from sandboxd.daemon.metrics import Gauge, Metrics
from sandboxd.daemon.permissions import PermissionQueries, rule_writer
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.daemon.restart import descriptor_store
from sandboxd.daemon.restart.crash_store import CrashStore
from sandboxd.daemon.restart.restarting import DaemonProgram, Restarting
from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.settings.settings_notices import SettingsNotices
from sandboxd.daemon.settings.subscriptions import SettingsSubscriptions
from sandboxd.daemon.settings.trusting import Trusting
from sandboxd.daemon.startup import StartUp
from sandboxd.daemon.state import DaemonState
from sandboxd.daemon.violation_queries import ViolationQueries
from sandboxd.handover.document import Incoming
from sandboxd.host.directories import (
    TEMPORARY_VARIABLE,
    TemporaryBase,
    chosen_base,
    remove_if_empty,
    temporary_base,
    user_directories,
)
from sandboxd.host.tools import safe_program
from sandboxd.plan.request import Place
from sandboxd.policy.display import neutralise
from sandboxd.policy.hosts.parent_proxies import EnvironmentProxies, read_environment
from sandboxd.proxy.dial import PinnedResolver, SystemResolver
from sandboxd.proxy.fair_share import Turns
from sandboxd.proxy.host_addresses import ClosedPorts
from sandboxd.rpc.call import CallSurroundings, ConnectedClient
from sandboxd.rpc.connection import ConnectionRecord, RpcConnection
from sandboxd.rpc.dispatch import Dispatcher, routes
from sandboxd.rpc.handlers.commands import CommandMethods
from sandboxd.rpc.handlers.credentials import CredentialMethods
from sandboxd.rpc.handlers.decisions import DecisionMethods
from sandboxd.rpc.handlers.hello import HelloMethods
from sandboxd.rpc.handlers.lifecycle import LifecycleMethods
from sandboxd.rpc.handlers.permissions import PermissionMethods
from sandboxd.rpc.handlers.policy import PolicyMethods
from sandboxd.rpc.handlers.sessions import SessionMethods
from sandboxd.rpc.handlers.settings import SettingsMethods
from sandboxd.rpc.handlers.status import StatusMethods
from sandboxd.rpc.handlers.violations import ViolationMethods
from sandboxd.rpc.handlers.wrap import WrapMethods
from sandboxd.rpc.server import Connections
from sandboxd.rpc.shares import Workers
from sandboxd.rpc.socket import DirectoryLock, ListeningSocket, listen, prepare_directory
from sandboxd.runtime.certificate_trust import CertificateTrust
from sandboxd.runtime.credentials.credential_store import CredentialStore
from sandboxd.runtime.events import Events, PolicyChanged
from sandboxd.runtime.name_files import read_nsswitch, write_name_files
from sandboxd.runtime.prompts.notifying import Notifying
from sandboxd.runtime.prompts.open_prompts import Prompts
from sandboxd.runtime.session import SessionParts
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.temporary_directories import TemporaryRoot
from sandboxd.runtime.violations.violation_store import ViolationFeed
from sandboxd_client import programs
from sandboxd_client.records import dataclass
from sandboxd_client.wire.location import STATE_DIRECTORY


def platform_factory(name: str) -> Assemble:
    """Return the function that makes a back end. Imports no other back end."""
    if name == "macos":
        from sandboxd.app.macos import macos_platform

        return macos_platform
    from sandboxd.app.linux import linux_platform

    return linux_platform


@dataclass(frozen=True, slots=True)
class _Directories:
    runtime: str
    lock: DirectoryLock
    base: TemporaryBase
    kept: str
    """Directory that all daemons of the user share: journals, and the lock for writes of settings."""
    temporary: TemporaryRoot


@dataclass(frozen=True, slots=True)
class _Observers:
    events: Events
    audit: AuditRecorder
    metrics: Metrics
    feed: ViolationFeed


@dataclass(frozen=True, slots=True)
class _Base:
    """Parts that do not depend on sessions."""

    directories: _Directories
    policies: Policies
    platform: Platform
    observers: _Observers
    crash_store: CrashStore | None


@dataclass(frozen=True, slots=True)
class _Runtime:
    place: Callable[..., Place]
    prompts: Prompts
    trusting: Trusting
    proxies: EnvironmentProxies
    trust: CertificateTrust
    credentials: CredentialStore
    closed_ports: ClosedPorts
    sessions: Sessions


@dataclass(frozen=True, slots=True)
class _Queries:
    policy: PolicyQueries
    permissions: PermissionQueries
    violations: ViolationQueries
    subscriptions: SettingsSubscriptions

    def restricted(self, client: ConnectedClient) -> None:
        """End the subscriptions that a connection made with all its powers."""
        self.permissions.connection_lost(client)
        self.violations.connection_lost(client)
        self.subscriptions.remove(client)

    async def connection_lost(self, sessions: Sessions, connection: RpcConnection) -> None:
        self.permissions.connection_lost(connection)
        self.violations.connection_lost(connection)
        self.policy.closed_ports.close(connection, frozenset())
        await sessions.connection_lost(connection)


@asynccontextmanager
async def run_daemon(
    config: DaemonConfig,
    log: FilteringBoundLogger,
    *,
    stop: StopRequest | None = None,
    assemble: Assemble | None = None,
    startup: StartUp | None = None,
    program: DaemonProgram | None = None,
    before: Incoming | None = None,
    store: descriptor_store.Store | None = None,
) -> AsyncIterator[RunningDaemon]:
    """Serve as long as the context lasts.

    `stop` receives requests to end; the caller has to leave the context. `program` can be executed in place of this
    daemon, `before` is the state of an earlier daemon, `store` holds the state that a crash must not lose. Raises
    HostError, SettingsError or CallerError when the daemon cannot serve; then nothing is left behind."""
    stop, startup = stop or StopRequest(), startup or StartUp()
    async with AsyncExitStack() as stack:
        steps = _Steps(config, log, stack, Predecessor(before))
        turns = Turns()
        asyncio.get_running_loop().set_default_executor(Workers())
        connections = Connections(turns.hurry)
        stack.callback(connections.hang_up)
        directories = await steps.directories()
        startup.reached("directories")
        policies = steps.policies(directories)
        reloading = Reloading(policies, log)
        await stack.enter_async_context(reloading.following())
        startup.reached("settings")
        platform = await steps.platform(directories, policies, assemble)
        startup.reached("back end")
        observers = await steps.observers(policies)
        crash_store = steps.crash_store(store, platform, observers)
        base = _Base(directories, policies, platform, observers, crash_store)
        runtime = await steps.runtime(base, turns)
        sessions = runtime.sessions
        stack.callback(_apply_grace, stop, sessions)
        queries = steps.queries(base, runtime)
        restarting = Restarting(program, platform.launch_handover is not None, policies.broken)
        state = steps.state(base, runtime, reloading, startup)
        running = steps.running(base, runtime, queries, connections, state, restarting)
        methods = routes(
            HelloMethods(),
            StatusMethods(state, observers.metrics, queries.policy),
            LifecycleMethods(stop, restarting, sessions),
            SessionMethods(sessions, policies, partial(_session_changed, queries.subscriptions, crash_store)),
            CommandMethods(sessions),
            DecisionMethods(queries.policy, sessions, observers.events),
            WrapMethods(
                sessions,
                policies,
                queries.policy,
                observers.events,
                reloading,
                runtime.trusting,
                runtime.prompts,
                platform.scan_warnings,
                SettingsNotices(),
            ),
            PermissionMethods(queries.permissions, sessions, policies),
            ViolationMethods(queries.violations, policies),
            SettingsMethods(policies, sessions, runtime.trusting, queries.subscriptions),
            CredentialMethods(runtime.credentials, policies),
            PolicyMethods(queries.policy, sessions),
        )
        put_commands_first(observers.events, turns, connections.turns)
        around = CallSurroundings(sessions, policies.places, reloading)
        dispatcher = Dispatcher(methods, around, log, controlled=observers.events.tell, restricted=queries.restricted)
        lost = partial(queries.connection_lost, sessions)

        def resumed(record: ConnectionRecord) -> RpcConnection:
            return connections.make(dispatcher, log, lost, lambda _: record.caller)

        taking_over = TakingOver(steps.predecessor, running, resumed, log)
        taking_over.sessions()
        state.restarted = await taking_over.settle()
        if crash_store is not None:
            crash_store.start(partial(crash_entries, running))
        await stack.enter_async_context(connections.serving(running.listening, dispatcher, log, lost))
        await taking_over.connect()
        startup.reached("socket")
        steps.end_when_idle(connections, sessions, stop)
        yield running


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of a start. Each returns one part; its clean-up is on `stack`."""

    config: DaemonConfig
    log: FilteringBoundLogger
    stack: AsyncExitStack
    predecessor: Predecessor

    @property
    def earlier(self) -> DaemonRecord | None:
        return self.predecessor.daemon

    @property
    def is_activated(self) -> bool:
        """Return whether a service manager owns the listening socket."""
        return self.config.passed is not None or (self.earlier is not None and not self.earlier.listener.own)

    async def directories(self) -> _Directories:
        """Make the private directories and take the lock of the only daemon in them."""
        earlier = self.earlier
        runtime = prepare_directory(self.config.socket)
        lock = DirectoryLock(runtime, -1 if earlier is None else earlier.lock)
        self.stack.callback(lock.release)
        default = temporary_base(os.geteuid(), runtime, self.config.temporary)
        chosen = self.config.environment.get(TEMPORARY_VARIABLE, "")
        opened = programs.opened_place((chosen,), (self.config.home, programs.home_of_the_user()))
        base = chosen_base(os.geteuid(), chosen, neutralise(opened), default)
        if base.path != default.path:
            self.stack.callback(remove_if_empty, default.path)
        root = TemporaryRoot(base.path, None if earlier is None else earlier.temporary, user_directories())
        return _Directories(runtime, lock, base, default.path, await self.stack.enter_async_context(root))

    def policies(self, directories: _Directories) -> Policies:
        own = dict.fromkeys((directories.runtime, directories.base.path, directories.kept))
        places = self.config.settings_places(own_paths=tuple(own), lock_directory=directories.kept)
        if self.earlier is None:
            return Policies(places, self.log)
        return Policies(places, self.log, generation=self.earlier.generation, kept=self.earlier.settings)

    async def platform(self, directories: _Directories, policies: Policies, assemble: Assemble | None) -> Platform:
        context = BackendContext(
            directories.runtime,
            directories.kept,
            lambda: policies.own.now.policy,
            self.config.environment,
            self.log,
            directories.temporary.path,
            self.predecessor.incoming,
        )
        return await self.stack.enter_async_context((assemble or platform_factory(self.config.platform))(context))

    async def observers(self, policies: Policies) -> _Observers:
        events = Events()
        recorder = AuditRecorder(lambda: policies.own.now.policy.audit, self.config.home, self.log)
        audit = await self.stack.enter_async_context(recorder.running())
        events.guard(audit.guard)
        events.listen(audit.listen)
        metrics = Metrics()
        events.listen(metrics.listen)
        feed = ViolationFeed(events.tell, None if self.earlier is None else self.earlier.feed)
        return _Observers(events, audit, metrics, feed)

    def crash_store(
        self, store: descriptor_store.Store | None, platform: Platform, observers: _Observers
    ) -> CrashStore | None:
        if store is None or platform.launch_handover is None:
            return None
        crash_store = CrashStore(store, self.log)
        self.stack.push_async_callback(crash_store.close)
        observers.events.listen(crash_store.listen)
        return crash_store

    async def runtime(self, base: _Base, turns: Turns) -> _Runtime:
        config, policies, platform, observers = self.config, base.policies, base.platform, base.observers
        events, directories, temporary = observers.events, base.directories, base.directories.temporary
        resolver = PinnedResolver(config.pins, SystemResolver())
        trusting = Trusting(policies, self.log)
        self.stack.callback(trusting.close)
        closed_ports = ClosedPorts()
        notifying = Notifying(
            lambda: policies.own.now.policy.notify,
            safe_program,
            policies.places.could_be_written,
            self.log.warning,
            config.environment,
            page=closed_ports.page,
        )
        self.stack.push_async_callback(notifying.aclose)
        events.listen(notifying.listen)
        prompts = Prompts(rule_writer(policies, trusting), observe=events.tell, can_notify=notifying.can_tell)
        notifying.unseen = prompts.unseen
        proxies = read_environment(config.environment)
        kept = () if directories.kept == directories.base.path else (directories.kept,)
        credentials = CredentialStore(config.environment)
        own = own_trust(config.environment, (config.home, programs.home_of_the_user()))
        trust = CertificateTrust(os.path.join(temporary.path, "trust"), own)
        await trust.resume(() if self.earlier is None else self.earlier.authorities)
        name_files = await asyncio.to_thread(_write_name_files, temporary.path, self.earlier is not None)
        place = placing(
            config.home,
            directories.runtime,
            directories.base.path,
            platform,
            name_files,
            trust,
            lambda: (*observers.audit.directories(), os.path.join(config.home, STATE_DIRECTORY), *kept),
        )
        parts = SessionParts(
            backend=platform.backend,
            planner=platform.planner,
            temporary=temporary,
            place=place,
            make_proxies=make_proxies_of(
                resolver, prompts, proxies, events, observers.metrics, turns, trust, closed_ports
            ),
            prepare_trust=trust.prepare,
            credentials=credentials,
            session_ended=prompts.end_session,
            violations=observers.feed,
            events=events,
            proxies=proxies,
            look_at_settings=policies.look,
            record_places=policies.places.record,
            find_sockets=platform.find_sockets,
            prepare=platform.prepare,
        )
        sessions = await self.stack.enter_async_context(
            Sessions(parts, None if base.crash_store is None else base.crash_store.session)
        )
        policies.on_change(lambda outcome: sessions.policy_changed())
        policies.on_change(lambda outcome: events.tell(PolicyChanged(policies.generation, outcome.changed)))
        observers.metrics.add_gauges(_gauges(policies, sessions, observers.audit))
        return _Runtime(place, prompts, trusting, proxies, trust, credentials, closed_ports, sessions)

    def queries(self, base: _Base, runtime: _Runtime) -> _Queries:
        config, sessions, policies, platform = self.config, runtime.sessions, base.policies, base.platform
        crash_store, temporary = base.crash_store, base.directories.temporary
        policy = PolicyQueries(
            policies,
            sessions,
            platform.backend,
            explaining(platform.planner, runtime.place, temporary),
            explaining_sockets(platform.planner, runtime.place, temporary),
            config.platform,
            self.log.warning,
            runtime.closed_ports,
        )
        grants_revoked = crash_store.grants_revoked if crash_store is not None else lambda session_id: None
        permissions = PermissionQueries(runtime.prompts, policy, sessions, grants_revoked, policies.places.home)
        violations = ViolationQueries(
            base.observers.feed,
            sessions,
            slow_reports=config.platform == "macos",
            key=policies.places.trust.seal_key() if self.earlier is None else self.earlier.annotation_key,
        )
        return _Queries(policy, permissions, violations, SettingsSubscriptions(policies))

    def state(self, base: _Base, runtime: _Runtime, reloading: Reloading, startup: StartUp) -> DaemonState:
        platform, policies, observers = base.platform, base.policies, base.observers
        earlier, crashed = self.earlier, self.predecessor.incoming.crashed
        return DaemonState(
            socket=self.config.socket,
            policies=policies,
            reloading=reloading,
            sessions=runtime.sessions,
            backend=platform.backend,
            audit=observers.audit,
            steps=platform.steps,
            layers=platform.layers,
            warnings=tuple(filter(None, [base.directories.base.warning])),
            machine_warnings=partial(_machine_warnings, platform, base.crash_store),
            proxies=runtime.proxies,
            startup=startup,
            activated=self.is_activated,
            started_at=time.time() if earlier is None or crashed else earlier.started_at,
            restarts=0 if earlier is None else earlier.restarts + 1,
        )

    def running(
        self,
        base: _Base,
        runtime: _Runtime,
        queries: _Queries,
        connections: Connections,
        state: DaemonState,
        restarting: Restarting,
    ) -> RunningDaemon:
        """Open the listening socket, and collect the parts with state to hand over."""
        listening = _listening(self.config, self.earlier)
        self.stack.callback(listening.close)
        return RunningDaemon(
            lock=base.directories.lock,
            listening=listening,
            temporary=base.directories.temporary,
            policies=base.policies,
            prompts=runtime.prompts,
            feed=base.observers.feed,
            blocked=queries.violations,
            subscriptions=queries.subscriptions,
            permissions=queries.permissions,
            trust=runtime.trust,
            closed_ports=runtime.closed_ports,
            sessions=runtime.sessions,
            connections=connections,
            launch_handover=base.platform.launch_handover,
            crash_store=base.crash_store,
            restarting=restarting,
            state=state,
        )

    def end_when_idle(self, connections: Connections, sessions: Sessions, stop: StopRequest) -> None:
        """Start the timer of `serve --idle-exit`."""
        if self.config.idle_exit_s is None:
            return
        idle = stop_when_idle(
            self.config.idle_exit_s, lambda: bool(connections or sessions.all()), lambda: connections.admitted, stop
        )
        self.stack.callback(asyncio.get_running_loop().create_task(idle, name="idle-exit").cancel)


def _session_changed(subscriptions: SettingsSubscriptions, crash_store: CrashStore | None, session_id: str) -> None:
    """Tell what depends on the settings of a session that they are others."""
    subscriptions.session_changed(session_id)
    if crash_store is not None:
        crash_store.grants_revoked(session_id)
        crash_store.changed(session_id)


def _gauges(policies: Policies, sessions: Sessions, audit: AuditRecorder) -> tuple[Gauge, ...]:
    return (
        Gauge("policy_generation", "Number of the policy in force", lambda: policies.generation),
        Gauge("sessions", "Open sessions", lambda: len(sessions.all())),
        Gauge("commands", "Prepared and running commands", lambda: sum(len(s.commands()) for s in sessions.all())),
        Gauge("tunnels", "Connections of commands that are open now", lambda: sessions.connections),
        Gauge("sent_bytes", "Bytes that open sessions have sent", lambda: sum(s.bounds.total for s in sessions.all())),
        Gauge("names", "Names that open sessions have looked up", lambda: sum(s.bounds.names for s in sessions.all())),
        Gauge("audit_lines_lost", "Lines that could not be written to the audit log", lambda: audit.state.lost),
    )


def _machine_warnings(platform: Platform, crash_store: CrashStore | None) -> tuple[str, ...]:
    return (*platform.warnings(), *platform.scan_warnings(), *(() if crash_store is None else crash_store.warnings))


def _listening(config: DaemonConfig, earlier: DaemonRecord | None) -> ListeningSocket:
    if earlier is not None and earlier.listener.socket >= 0:
        if config.passed is not None:  # the same socket, passed again
            config.passed.socket.close()
        return ListeningSocket.resumed(earlier.listener)
    return config.passed or listen(config.socket)


def _write_name_files(directory: str, inherited: bool) -> tuple[tuple[str, str], ...]:
    return write_name_files(directory, os.uname().nodename, read_nsswitch(), inherited=inherited)


def _apply_grace(stop: StopRequest, sessions: Sessions) -> None:
    """Use the time between TERM and KILL that the request to end named."""
    if stop.grace_s is not None:
        sessions.grace_s = stop.grace_s
