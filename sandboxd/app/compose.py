"""The composition root: the one place where the parts of the daemon are made and put together, from top to bottom. The
process around it is `app.process`.

What is entered first is left last, so the end is the beginning read backwards: no more calls, sessions and their
commands ended, the bridge closed, the socket and the lock removed, and at the very last the connections hung up. A
client that asked for the end knows by that, that another daemon can be started.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from structlog.typing import FilteringBoundLogger

from sandboxd.app.commands import explaining, explaining_sockets, make_proxies_of, placing
from sandboxd.app.configuration import DaemonConfig
from sandboxd.app.crash_records import crash_entries
from sandboxd.app.handover import DaemonRecord, Predecessor, RunningDaemon, TakingOver, hand_over
from sandboxd.app.platform import Assemble, BackendContext, platform_factory
from sandboxd.daemon.audit.audit_recorder import AuditRecorder
from sandboxd.daemon.idle import stop_when_idle
from sandboxd.daemon.lifecycle import StopRequest
from sandboxd.daemon.metrics import Gauge, Metrics
from sandboxd.daemon.permissions import PermissionQueries, rule_writer
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.daemon.restart import descriptor_store
from sandboxd.daemon.restart.crash_store import CrashStore
from sandboxd.daemon.restart.restarting import DaemonProgram, Restarting
from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.settings.subscriptions import SettingsSubscriptions
from sandboxd.daemon.settings.trusting import Trusting
from sandboxd.daemon.startup import StartUp
from sandboxd.daemon.state import Daemon
from sandboxd.daemon.violation_queries import ViolationQueries
from sandboxd.handover.document import Incoming
from sandboxd.host.directories import temporary_base
from sandboxd.policy.hosts.parent_proxies import read_environment
from sandboxd.proxy.dial import PinnedResolver, SystemResolver
from sandboxd.proxy.fair_share import Turns
from sandboxd.rpc.connection import RpcConnection as ClientConnection
from sandboxd.rpc.dispatch import Dispatcher
from sandboxd.rpc.server import Connections
from sandboxd.rpc.shares import Workers
from sandboxd.rpc.socket import DirectoryLock, ListeningSocket, listen, prepare_directory
from sandboxd.runtime.events import Events, PolicyChanged
from sandboxd.runtime.name_files import read_nsswitch, write_name_files
from sandboxd.runtime.prompts.open_prompts import Prompts
from sandboxd.runtime.session import SessionParts
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.temporary_directories import TemporaryRoot
from sandboxd.runtime.violations.violation_store import ViolationFeed


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
) -> AsyncIterator[Daemon]:
    """A daemon that serves as long as the context lasts; `stop` only tells whoever entered it that it should end.
    `program` is what can be executed in its place, `before` what another daemon has left for this one, `store` where it
    keeps what a crash must not lose. Raises HostError, SettingsError or CallerError when it cannot serve; then nothing
    is left behind."""
    predecessor = Predecessor(before)
    earlier = predecessor.daemon
    startup = startup or StartUp()
    async with AsyncExitStack() as stack:
        turns = Turns()
        asyncio.get_running_loop().set_default_executor(Workers())
        connections = Connections(turns.hurry)
        stack.callback(connections.hang_up)

        # directories and the right to be the daemon of this one
        directory = prepare_directory(config.socket)
        lock = DirectoryLock(directory, -1 if earlier is None else earlier.lock)
        stack.callback(lock.release)
        base = temporary_base(os.geteuid(), directory, config.temporary)
        temporary = await stack.enter_async_context(
            TemporaryRoot(base.path, None if earlier is None else earlier.temporary)
        )

        startup.reached("directories")

        # settings
        policies = Policies(
            config.settings_places(own_paths=(directory, base.path), lock_directory=base.path),
            log,
            generation=0 if earlier is None else earlier.generation,
        )
        trust = policies.places.trust
        reloading = Reloading(policies, log)
        await stack.enter_async_context(reloading.following())

        startup.reached("settings")

        # what runs commands
        backend_context = BackendContext(
            directory, base.path, lambda: policies.own.now.policy, config.environment, log, predecessor.incoming
        )
        machine = await stack.enter_async_context((assemble or platform_factory(config.platform))(backend_context))
        startup.reached("back end")
        resolver = PinnedResolver(config.pins, SystemResolver())
        events = Events()
        audit = await stack.enter_async_context(
            AuditRecorder(lambda: policies.own.now.policy.audit, config.home, log).running()
        )
        events.guard(audit.guard)
        events.listen(audit.listen)
        metrics = Metrics(
            (
                Gauge("policy_generation", "Number of the policy in force", lambda: policies.generation),
                Gauge("sessions", "Open sessions", lambda: len(sessions.all())),
                Gauge(
                    "commands", "Prepared and running commands", lambda: sum(len(s.commands()) for s in sessions.all())
                ),
                Gauge("tunnels", "Connections of commands that are open now", lambda: sessions.connections),
                Gauge("audit_lines_lost", "Lines that could not be written to the audit log", lambda: audit.state.lost),
            )
        )
        events.listen(metrics.listen)
        trusting = Trusting(policies, log)
        stack.callback(trusting.close)
        prompts = Prompts(rule_writer(policies, trusting), observe=events.tell)
        proxies = read_environment(config.environment)
        feed = ViolationFeed(events.tell, None if earlier is None else earlier.feed)
        name_files = await asyncio.to_thread(_write_name_files, temporary.path, earlier is not None)
        place = placing(
            config.home, directory, base.path, machine, name_files, lambda: (*audit.directories(), trust.directory)
        )
        parts = SessionParts(
            backend=machine.backend,
            planner=machine.planner,
            temporary=temporary,
            place=place,
            make_proxies=make_proxies_of(resolver, prompts, proxies, events, metrics, turns),
            session_ended=prompts.end_session,
            violations=feed,
            events=events,
            proxies=proxies,
            look_at_settings=policies.look,
            record_places=policies.places.record,
            find_sockets=machine.find_sockets,
        )
        crash_store: CrashStore | None = None
        if store is not None and machine.launch_handover is not None:
            crash_store = CrashStore(store, lambda is_old_enough: crash_entries(running, is_old_enough), log)
            stack.push_async_callback(crash_store.close)
            events.listen(crash_store.listen)
        sessions = await stack.enter_async_context(
            Sessions(parts, None if crash_store is None else crash_store.session)
        )
        policies.on_change(lambda outcome: sessions.policy_changed())
        policies.on_change(lambda outcome: events.tell(PolicyChanged(policies.generation, outcome.changed)))
        stop = stop or StopRequest()
        stack.callback(_apply_grace, stop, sessions)

        # the door
        questions = PolicyQueries(
            policies,
            sessions,
            machine.backend,
            explaining(machine.planner, place, temporary),
            explaining_sockets(machine.planner, place, temporary),
            config.environment,
            config.platform,
            log.warning,
        )
        grants_revoked = crash_store.grants_revoked if crash_store is not None else lambda session_id: None
        permissions = PermissionQueries(prompts, questions, sessions, grants_revoked, policies.places.home)
        blocked = ViolationQueries(
            feed,
            sessions,
            slow_reports=config.platform == "macos",
            key=None if earlier is None else earlier.annotation_key,
        )
        daemon = Daemon(
            socket=config.socket,
            policies=policies,
            reloading=reloading,
            subscriptions=SettingsSubscriptions(policies),
            sessions=sessions,
            questions=questions,
            permissions=permissions,
            trusting=trusting,
            blocked=blocked,
            backend=machine.backend,
            events=events,
            audit=audit,
            metrics=metrics,
            steps=machine.steps,
            layers=machine.layers,
            stop=stop,
            warnings=tuple(filter(None, [base.warning])),
            scan_warnings=machine.scan_warnings,
            machine_warnings=lambda: (
                *machine.warnings(),
                *machine.scan_warnings(),
                *(() if crash_store is None else crash_store.warnings),
            ),
            proxies=proxies,
            startup=startup,
            activated=config.passed is not None or (earlier is not None and not earlier.listener.own),
            restarting=Restarting(program, machine.launch_handover is not None, policies.broken),
            hand_over=lambda: hand_over(running),
        )
        if earlier is not None:
            daemon.restarts = earlier.restarts + 1
            if not predecessor.incoming.crashed:
                daemon.started_at = earlier.started_at
        listening = _listening(config, earlier)
        stack.callback(listening.close)
        dispatcher = Dispatcher(daemon, log, controlled=events.tell)

        async def lost(connection: ClientConnection) -> None:
            permissions.connection_lost(connection)
            blocked.connection_lost(connection)
            await sessions.connection_lost(connection)

        running = RunningDaemon(
            lock, listening, temporary, policies, prompts, feed, blocked, daemon.subscriptions, permissions, sessions,
            connections, machine.launch_handover, daemon, crash_store,
        )  # fmt: skip
        taking_over = TakingOver(
            predecessor, running, lambda record: connections.make(dispatcher, log, lost, lambda _: record.caller), log
        )
        taking_over.sessions()
        daemon.restarted = await taking_over.settle()
        if crash_store is not None:
            crash_store.start()
        await stack.enter_async_context(connections.serving(listening, dispatcher, log, lost))
        await taking_over.connect()
        lock.has_served = True
        startup.reached("socket")
        if config.idle_exit_s is not None:
            idle = stop_when_idle(
                config.idle_exit_s, lambda: bool(connections or sessions.all()), lambda: connections.admitted, stop
            )
            stack.callback(asyncio.get_running_loop().create_task(idle, name="idle-exit").cancel)
        yield daemon


def _listening(config: DaemonConfig, earlier: DaemonRecord | None) -> ListeningSocket:
    if earlier is not None and earlier.listener.socket >= 0:
        if config.passed is not None:  # the same one once more
            config.passed.socket.close()
        return ListeningSocket.resumed(earlier.listener)
    return config.passed or listen(config.socket)


def _write_name_files(directory: str, inherited: bool) -> tuple[tuple[str, str], ...]:
    return write_name_files(directory, os.uname().nodename, read_nsswitch(), inherited=inherited)


def _apply_grace(stop: StopRequest, sessions: Sessions) -> None:
    """Whoever asked for the end may have said how long commands have."""
    if stop.grace_s is not None:
        sessions.grace_s = stop.grace_s
