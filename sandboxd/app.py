"""The composition root: the one place where the parts of the daemon are made and put together, from top to bottom.

What is entered first is left last, so the end is the beginning read backwards: no more calls, sessions and their
commands ended, the bridge closed, the socket and the lock removed, and at the very last the connections hung up. A
client that asked for the end knows by that, that another daemon can be started.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from structlog.typing import FilteringBoundLogger

import sandboxd
import sandboxd_client
from sandboxd.app_commands import explaining, explaining_sockets, make_proxies_of, placing
from sandboxd.app_configuration import DaemonConfig, ServeOptions, configure
from sandboxd.app_handover import DaemonRecord, Parts, Predecessor, TakingOver, hand_over
from sandboxd.app_keeping import kept
from sandboxd.backends.base import Backend
from sandboxd.daemon import descriptor_store
from sandboxd.daemon.audit import Audit
from sandboxd.daemon.blocked import Blocked
from sandboxd.daemon.idle import stop_when_idle
from sandboxd.daemon.keeping import Keeping
from sandboxd.daemon.lifecycle import (
    ServiceManager,
    StopRequest,
    raise_descriptor_limit,
    signals_handled,
    signals_heard,
)
from sandboxd.daemon.log import LEVELS, StandardLogs, choose_format, make_logger
from sandboxd.daemon.metrics import Gauge, Metrics
from sandboxd.daemon.permissions import Permissions, rule_writer
from sandboxd.daemon.policies import Policies, SettingsPlaces
from sandboxd.daemon.questions import Questions
from sandboxd.daemon.reload import Reloading
from sandboxd.daemon.restarting import HANDOVER, Program, Restarting, answer_trial, take_handed_over, take_trial
from sandboxd.daemon.startup import StartUp
from sandboxd.daemon.state import Daemon, Step
from sandboxd.daemon.subscriptions import SettingsSubscriptions
from sandboxd.errors import HostError, SandboxdError
from sandboxd.handover.document import Incoming, Outgoing, read_document
from sandboxd.host.directories import temporary_base
from sandboxd.plan.request import Place
from sandboxd.policy.decision import Decision
from sandboxd.policy.display import neutralise
from sandboxd.policy.policy import Policy
from sandboxd.policy.upstream import read_environment
from sandboxd.proxy.dial import PinnedResolver, SystemResolver
from sandboxd.rpc.connection import Connection as ClientConnection
from sandboxd.rpc.dispatch import Dispatcher
from sandboxd.rpc.server import Connections
from sandboxd.rpc.socket import DirectoryLock, ListeningSocket, listen, prepare_directory
from sandboxd.runtime.events import Events, SettingsChanged
from sandboxd.runtime.name_files import read_nsswitch, write_name_files
from sandboxd.runtime.prompts import Prompts
from sandboxd.runtime.session import Inherited, Planner, SessionParts
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.temporary import TemporaryRoot
from sandboxd.runtime.violations import ViolationFeed

EXIT_CANNOT_START = 125


@dataclass(frozen=True, slots=True)
class Ground:
    """What a back end stands on: the daemon's private directory, and the policy of the daemon itself."""

    directory: str
    kept: str
    """A private directory that outlives the daemon and the machine's next start."""
    policy: Callable[[], Policy]
    environment: Mapping[str, str]
    log: FilteringBoundLogger
    before: Incoming = field(default_factory=Incoming)
    """What another daemon has left; a back end takes its parts of it."""


@dataclass(frozen=True, slots=True)
class Succession:
    """How the sandboxes of a back end go from one daemon to the next. `prepared` takes nothing more in and waits, so
    long at most, until none is in the middle of being completed; `hand_over` lets go of them; `inherited` goes on with
    one, and `end_inherited` ends those that nobody has resumed and says which they were. `keep` writes down what is
    needed of one that runs, and lets go of nothing; False when it does not run."""

    prepared: Callable[[float], Awaitable[None]]
    hand_over: Callable[[Outgoing], None]
    inherited: Inherited
    end_inherited: Callable[[], list[str]]
    keep: Callable[[str, Outgoing], bool] = lambda launch_id, outgoing: False


class ExplainingPlanner(Planner, Protocol):
    async def explain(self, policy: Policy, place: Place, path: str, *, write: bool) -> Decision: ...

    async def explain_socket(self, policy: Policy, place: Place, path: str) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What differs between operating systems, and what tests replace."""

    backend: Backend
    planner: ExplainingPlanner
    steps: Callable[[], Awaitable[Sequence[Step]]]
    layers: Callable[[], tuple[str, ...]]
    daemon_paths: tuple[str, ...] = ()
    """Our own files, which no sandbox may write."""
    warnings: Callable[[], tuple[str, ...]] = tuple
    """What is not as it should be now, for `status`."""
    captures: Callable[[], bool] = bool
    """Whether connections that ignore the proxy variables are captured; asked once the back end is ready."""
    succession: Succession | None = None
    """None where the sandboxes cannot outlive their daemon."""


Assemble = Callable[[Ground], AbstractAsyncContextManager[Machine]]


def main(options: ServeOptions) -> int:
    """Run the daemon until it is asked to stop; returns the exit status. What keeps it from starting goes to stderr."""
    environment = dict(os.environ)
    program = Program.own(environment)
    trial = take_trial(environment)
    log_format = choose_format(options.log_format, sys.stderr, environment.pop("JOURNAL_STREAM", ""))
    level = LEVELS.get(environment.get("SANDBOXD_LOG_LEVEL", "info").lower(), logging.INFO)
    log = make_logger(sys.stderr, log_format, level)
    manager = ServiceManager(os.environ)
    try:
        with StandardLogs.installed(log):
            os.environ.pop(HANDOVER, None)
            before = None if trial else take_handed_over(environment)
            stored: tuple[str, ...] = ()
            store_size = environment.pop("FDSTORE", "")
            if before is None and not trial:
                before, stored = descriptor_store.take_stored(environment)
            config = configure(options, environment)
            if trial:
                sys.stdout.write(try_out(config, log) + "\n")
                return 0
            raise_descriptor_limit()
            store = None
            if manager.address:
                store = descriptor_store.Store(manager.address, store_size)
            if store is not None and before is not None and before.crashed:
                store.old = stored  # until it is there by new names: this daemon may crash as well
            elif stored:
                descriptor_store.empty(manager.address, stored)
            try:
                while (outgoing := asyncio.run(_serve(config, log, manager, program, before, store))) is not None:
                    try:
                        if outgoing.for_manager:
                            descriptor_store.keep(manager.address, outgoing)
                            break
                        program.execute(outgoing)
                    except OSError as error:
                        log.error("what runs cannot be handed over; this process goes on", reason=str(error))
                        before = read_document(outgoing.text())
            finally:
                if store is not None and store.old:  # we fell over it, and the next daemon would as well
                    descriptor_store.empty(manager.address, store.take_old())
    except (SandboxdError, OSError) as fault:
        why = fault if isinstance(fault, SandboxdError) else _unusable(fault)
        manager.cannot_start(neutralise(why.message))
        hint = f"hint: {neutralise(why.hint)}\n" if why.hint else ""
        sys.stderr.write(f"sandboxd: {neutralise(why.message)}\n{hint}")
        return EXIT_CANNOT_START
    return 0


def _unusable(error: OSError) -> HostError:
    """For what stands in the way in our own directories, in whatever form."""
    where = f": {error.filename}" if isinstance(error.filename, str) else ""
    return HostError(
        "daemon_failed",
        f"the daemon cannot be here{where}: {error.strerror or error}",
        hint="what stands there is not the daemon's: move it away" if where else "its disk must have room",
    )


def try_out(config: DaemonConfig, log: FilteringBoundLogger) -> str:
    """What a program says that may take over from a running daemon, when it is good for that: everything is there and
    the settings can be read. Raises SandboxdError."""
    machine_of(config.platform)
    Policies(_places(config, own_paths=()), log)
    return answer_trial()


async def _serve(
    config: DaemonConfig,
    log: FilteringBoundLogger,
    manager: ServiceManager,
    program: Program,
    before: Incoming | None,
    store: descriptor_store.Store | None,
) -> Outgoing | None:
    """Serve until it is asked to stop. What is to be handed over when that is for a restart."""
    outgoing = None
    stop = StopRequest()
    running: Daemon | None = None

    def reload() -> None:
        if running is not None:
            manager.reloading()
            running.reloading.reload()
            manager.ready(_state(running))

    # From the start, so that a signal during it is not lost, and to the last, when another program goes on.
    with signals_handled(stop, reload, goes_on=lambda: outgoing is not None):
        async with run_daemon(
            config,
            log,
            stop=stop,
            startup=StartUp() if before else StartUp.of_this_process(),
            program=program,
            before=before,
            store=store,
        ) as daemon:
            running = daemon
            gc.collect()
            gc.freeze()  # what is here now stays; looking through it again and again takes 20 ms each time
            manager.ready(_state(daemon))
            log.info("ready", socket=daemon.socket, pid=os.getpid(), seconds=round(daemon.startup.seconds, 3))
            with manager.watchdog_fed():
                reason = await stop.wait()
                for_manager = not stop.restart and await _comes_again(manager, daemon, reason)
                restarts = stop.restart or for_manager
                log.info("restarting" if restarts else "stopping", reason=reason)
                if restarts:
                    outgoing = await daemon.hand_over()
                    outgoing.for_manager = for_manager
                    outgoing.ends_at_once = lambda: stop.restart and stop.overruled
            manager.stopping() if outgoing is None else manager.restarting(for_manager)
        running = None
        if outgoing is not None:
            await signals_heard()
    if outgoing is None:
        log.info("stopped")
    return outgoing


async def _comes_again(manager: ServiceManager, daemon: Daemon, reason: str) -> bool:
    """Whether the service manager ends this daemon to start it again, and keeps what it is given for that."""
    if not manager.address or reason != "SIGTERM" or not daemon.restarting.supported:
        return False
    return await descriptor_store.restart_intended()


def _state(daemon: Daemon) -> str:
    """For `systemctl status`."""
    own = daemon.policies.own
    problems = len(own.complaints)
    return f"listening at {daemon.socket}, settings generation {daemon.policies.generation}" + (
        f", {problems} warnings (see: sandboxd status)" if problems else ""
    )


@asynccontextmanager
async def run_daemon(
    config: DaemonConfig,
    log: FilteringBoundLogger,
    *,
    stop: StopRequest | None = None,
    assemble: Assemble | None = None,
    startup: StartUp | None = None,
    program: Program | None = None,
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
        connections = Connections()
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
            _places(config, own_paths=(directory, base.path)),
            log,
            generation=0 if earlier is None else earlier.generation,
            written=() if earlier is None else earlier.written,
        )
        reloading = Reloading(policies, log)
        await stack.enter_async_context(reloading.following())

        startup.reached("settings")

        # what runs commands
        ground = Ground(
            directory, base.path, lambda: policies.own.now.policy, config.environment, log, predecessor.incoming
        )
        machine = await stack.enter_async_context((assemble or machine_of(config.platform))(ground))
        startup.reached("back end")
        resolver = PinnedResolver(config.pins, SystemResolver())
        events = Events()
        audit = await stack.enter_async_context(
            Audit(lambda: policies.own.now.policy.audit, config.home, log).running()
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
        prompts = Prompts(rule_writer(policies), observe=events.tell)
        proxies = read_environment(config.environment)
        feed = ViolationFeed(events.tell, None if earlier is None else earlier.feed)
        name_files = await asyncio.to_thread(_write_name_files, temporary.path, earlier is not None)
        place = placing(config.home, directory, base.path, machine, name_files, audit.directories)
        parts = SessionParts(
            backend=machine.backend,
            planner=machine.planner,
            temporary=temporary,
            place=place,
            make_proxies=make_proxies_of(resolver, prompts, proxies, events, metrics),
            session_ended=prompts.end_session,
            violations=feed,
            events=events,
            proxies=proxies,
        )
        keeping: Keeping | None = None
        if store is not None and machine.succession is not None:
            keeping = Keeping(store, lambda is_ripe: kept(running, is_ripe), log)
            stack.push_async_callback(keeping.close)
            events.listen(keeping.listen)
        sessions = await stack.enter_async_context(Sessions(parts, None if keeping is None else keeping.session))
        policies.on_change(lambda outcome: sessions.policy_changed())
        policies.on_change(lambda outcome: events.tell(SettingsChanged(policies.generation, outcome.changed)))
        stop = stop or StopRequest()
        stack.callback(_apply_grace, stop, sessions)

        # the door
        questions = Questions(
            policies,
            sessions,
            machine.backend,
            explaining(machine.planner, place, temporary),
            explaining_sockets(machine.planner, place, temporary),
            config.environment,
            config.platform,
            log.warning,
        )
        taken_back = keeping.taken_back if keeping is not None else lambda session_id: None
        permissions = Permissions(prompts, questions, sessions, taken_back)
        blocked = Blocked(
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
            blocked=blocked,
            backend=machine.backend,
            events=events,
            audit=audit,
            metrics=metrics,
            steps=machine.steps,
            layers=machine.layers,
            stop=stop,
            warnings=tuple(filter(None, [base.warning])),
            machine_warnings=lambda: (*machine.warnings(), *(() if keeping is None else keeping.warnings)),
            proxies=proxies,
            startup=startup,
            activated=config.passed is not None or (earlier is not None and not earlier.listener.own),
            restarting=Restarting(program, machine.succession is not None, policies.broken),
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

        running = Parts(
            lock, listening, temporary, policies, prompts, feed, blocked, daemon.subscriptions, permissions, sessions,
            connections, machine.succession, daemon, keeping,
        )  # fmt: skip
        taking_over = TakingOver(
            predecessor, running, lambda record: connections.make(dispatcher, log, lost, lambda _: record.caller), log
        )
        taking_over.sessions()
        daemon.restarted = await taking_over.settle()
        if keeping is not None:
            keeping.start()
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


def _places(config: DaemonConfig, own_paths: tuple[str, ...]) -> SettingsPlaces:
    return SettingsPlaces(
        environment=config.environment,
        home=config.home,
        cli_file=config.settings,
        own_paths=own_paths,
        managed_root=config.managed_root,
    )


def own_paths(helper: str) -> tuple[str, ...]:
    """Our own code, the interpreter that runs it and the helper: whoever can write these decides what we do next."""
    return tuple(dict.fromkeys((*own_code(), os.path.dirname(os.path.dirname(helper)))))


def own_code() -> tuple[str, ...]:
    package = os.path.dirname(os.path.abspath(sandboxd.__file__))
    client = os.path.dirname(os.path.abspath(sandboxd_client.__file__))
    return package, client, sys.prefix


def machine_of(platform: str) -> Assemble:
    """The back end of a platform: chosen here and nowhere else."""
    if platform == "macos":
        from sandboxd.app_macos import mac_machine  # what it imports is of no use elsewhere

        return mac_machine
    from sandboxd.app_linux import linux_machine

    return linux_machine
