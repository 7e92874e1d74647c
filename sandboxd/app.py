"""The composition root: the one place where the parts of the daemon are made and put together, from top to bottom.

What is entered first is left last, so the end is the beginning read backwards: no more calls, sessions and their
commands ended, the bridge closed, the socket and the lock removed, and at the very last the connections hung up. A
client that asked for the end knows by that, that another daemon can be started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from sandboxd.backends.base import Backend
from sandboxd.daemon.lifecycle import ServiceManager, StopRequest, raise_descriptor_limit, signals_handled
from sandboxd.daemon.log import LEVELS, StandardLogs, choose_format, make_logger
from sandboxd.daemon.policies import Policies, SettingsPlaces
from sandboxd.daemon.questions import Questions
from sandboxd.daemon.reload import Reloading
from sandboxd.daemon.state import Daemon, Step
from sandboxd.errors import CallerError, HostError, SandboxdError
from sandboxd.plan.request import Place
from sandboxd.policy.display import neutralise
from sandboxd.policy.policy import Policy
from sandboxd.proxy.dial import Dialer, PinnedResolver, SystemResolver
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.interfaces import OwnAddresses
from sandboxd.proxy.server import ProxyServer
from sandboxd.rpc.dispatch import Dispatcher
from sandboxd.rpc.server import Connections
from sandboxd.rpc.socket import DirectoryLock, ListeningSocket, listen, prepare_directory, take_passed
from sandboxd.runtime.command import Command
from sandboxd.runtime.session import Planner, SessionParts
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.temporary import TemporaryRoot
from sandboxd_client.wire.location import LocationError, make_directory, socket_path

EXIT_CANNOT_START = 125


class ServeOptions(Protocol):
    """What `sandboxd serve` was told: paths absolute, `resolve` as written (NAME=ADDR)."""

    @property
    def socket(self) -> str | None: ...
    @property
    def settings(self) -> str | None: ...
    @property
    def log_format(self) -> str | None: ...
    @property
    def resolve(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Everything that differs between two daemons. `environment` is what settings and defaults are read from; the
    process's own is not looked at again."""

    socket: str
    home: str
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: str | None = None
    pins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    temporary: str = "/tmp"
    """Where the temporary directories of sessions are made (below a private directory)."""
    platform: str = "linux"
    managed_root: str = "/"
    passed: ListeningSocket | None = None
    """A socket that the service manager has opened."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a back end stands on: the daemon's private directory, and the policy of the daemon itself."""

    directory: str
    policy: Callable[[], Policy]
    environment: Mapping[str, str]
    log: FilteringBoundLogger


@dataclass(frozen=True, slots=True)
class Machine:
    """What differs between operating systems, and what tests replace."""

    backend: Backend
    planner: Planner
    steps: Callable[[], Awaitable[Sequence[Step]]]
    layers: Callable[[], tuple[str, ...]]
    daemon_paths: tuple[str, ...] = ()
    """Our own files, which no sandbox may write."""


Assemble = Callable[[Ground], AbstractAsyncContextManager[Machine]]


def main(options: ServeOptions) -> int:
    """Run the daemon until it is asked to stop; returns the exit status. What keeps it from starting goes to stderr."""
    environment = dict(os.environ)
    log_format = choose_format(options.log_format, sys.stderr)
    level = LEVELS.get(environment.get("SANDBOXD_LOG_LEVEL", "info").lower(), logging.INFO)
    log = make_logger(sys.stderr, log_format, level)
    try:
        with StandardLogs.installed(log):
            config = configure(options, environment)
            raise_descriptor_limit()
            asyncio.run(_serve(config, log))
    except SandboxdError as error:
        hint = f"hint: {neutralise(error.hint)}\n" if error.hint else ""
        sys.stderr.write(f"sandboxd: {neutralise(error.message)}\n{hint}")
        return EXIT_CANNOT_START
    return 0


def configure(options: ServeOptions, environment: dict[str, str]) -> DaemonConfig:
    """The configuration that the command line and the environment mean. Takes the variables of the service manager out
    of the environment. Raises CallerError, HostError."""
    passed = take_passed(environment)
    if passed is not None:
        path = passed.path
    elif options.socket is not None:
        path = options.socket
    else:
        try:
            path = socket_path(environment)
        except LocationError as error:
            raise HostError(error.slug, error.message, hint=error.hint) from error
    return DaemonConfig(
        socket=path,
        home=environment.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir,
        environment=environment,
        settings=options.settings,
        pins=parse_pins((*options.resolve, *environment.get("SANDBOXD_RESOLVE", "").split(","))),
        temporary=environment.get("TMPDIR") or "/tmp",
        platform="wsl" if "microsoft" in os.uname().release.lower() else "linux",
        passed=passed,
    )


def parse_pins(texts: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=ADDR` items as names with their addresses; a name may come more than once. Raises CallerError
    `resolve_invalid`."""
    pins: dict[str, list[str]] = {}
    for text in filter(None, (text.strip() for text in texts)):
        name, separator, address = text.partition("=")
        if not (name and separator and address):
            raise CallerError("resolve_invalid", f"cannot pin {text!a}", hint="write --resolve NAME=ADDRESS")
        pins.setdefault(name, []).append(address)
    return pins


async def _serve(config: DaemonConfig, log: FilteringBoundLogger) -> None:
    manager = ServiceManager(os.environ)
    stop = StopRequest()
    running: Daemon | None = None

    def reload() -> None:
        if running is not None:
            running.reloading.reload()

    with signals_handled(stop, reload):  # from the start, so that a signal during it is not lost
        async with run_daemon(config, log, stop=stop) as daemon:
            running = daemon
            manager.ready(f"listening at {daemon.socket}")
            log.info("ready", socket=daemon.socket, pid=os.getpid())
            log.info("stopping", reason=await stop.wait())
            manager.stopping()
    log.info("stopped")


@asynccontextmanager
async def run_daemon(
    config: DaemonConfig,
    log: FilteringBoundLogger,
    *,
    stop: StopRequest | None = None,
    assemble: Assemble | None = None,
) -> AsyncIterator[Daemon]:
    """A daemon that serves as long as the context lasts; `stop` only tells whoever entered it that it should end.
    Raises HostError, SettingsError or CallerError when it cannot serve; then nothing is left behind."""
    async with AsyncExitStack() as stack:
        connections = Connections()
        stack.callback(connections.hang_up)

        # directories and the right to be the daemon of this one
        directory = prepare_directory(config.socket)
        lock = DirectoryLock(directory)
        stack.callback(lock.release)
        base = _temporary_base(config.temporary)
        temporary = await stack.enter_async_context(TemporaryRoot(base))

        # settings
        policies = Policies(_places(config, own_paths=(directory, base)), log)
        reloading = Reloading(policies, log)
        await stack.enter_async_context(reloading.following())

        # what runs commands
        ground = Ground(directory, lambda: policies.own.now.policy, config.environment, log)
        machine = await stack.enter_async_context((assemble or linux_machine)(ground))
        resolver = PinnedResolver(config.pins, SystemResolver())
        parts = SessionParts(
            backend=machine.backend,
            planner=machine.planner,
            temporary=temporary,
            place=_placing(config.home, directory, base, machine.daemon_paths),
            make_proxies=_proxies(resolver),
        )
        sessions = await stack.enter_async_context(Sessions(parts))
        policies.on_change(lambda outcome: sessions.policy_changed())

        # the door
        daemon = Daemon(
            socket=config.socket,
            policies=policies,
            reloading=reloading,
            sessions=sessions,
            questions=Questions(policies, sessions, machine.backend, config.environment, config.platform),
            backend=machine.backend,
            steps=machine.steps,
            layers=machine.layers,
            stop=stop or StopRequest(),
        )
        listening = config.passed or listen(config.socket)
        stack.callback(listening.close)
        dispatcher = Dispatcher(daemon, log)
        await stack.enter_async_context(connections.serving(listening, dispatcher, log, sessions.connection_lost))
        yield daemon


def _places(config: DaemonConfig, own_paths: tuple[str, ...]) -> SettingsPlaces:
    return SettingsPlaces(
        environment=config.environment,
        home=config.home,
        cli_file=config.settings,
        own_paths=own_paths,
        managed_root=config.managed_root,
    )


def _temporary_base(place: str) -> str:
    """The private directory below which all daemons of this user have theirs; made, and checked to be private: its
    parent is anybody's. Raises HostError."""
    base = f"{place.rstrip('/')}/sandboxd-tmp-{os.geteuid()}"
    try:
        make_directory(f"{base}/any")
    except LocationError as error:
        raise HostError(error.slug, error.message, hint="remove it, or set TMPDIR to another directory") from error
    return base


def _placing(home: str, directory: str, base: str, daemon_paths: tuple[str, ...]) -> Callable[..., Place]:
    """Completes where a command runs with what every command of this daemon shares."""
    uid = os.geteuid()

    def place(cwd: str, project_root: str, session_tmp: str, mask_file: str) -> Place:
        return Place(
            cwd=cwd,
            project_root=project_root,
            session_tmp=session_tmp,
            home=home,
            uid=uid,
            runtime_dir=directory,
            mask_file=mask_file,
            temporary_base=base,
            daemon_paths=daemon_paths,
        )

    return place


def _proxies(resolver: PinnedResolver) -> Callable[[Callable[[], Policy], Command], ProxyServer]:
    """Makes the proxies of one command: its own, so that a connection is known by the listener it came in by."""
    own_addresses = OwnAddresses()
    dialer = Dialer()

    def make(policy: Callable[[], Policy], command: Command) -> ProxyServer:
        gate = Gate(lambda: policy().network, None, resolver, resolver.pins, own_addresses=own_addresses)
        return ProxyServer(gate, dialer, command.blocked, command.wrap_id)

    return make


@asynccontextmanager
async def linux_machine(ground: Ground) -> AsyncIterator[Machine]:
    raise HostError("backend_missing", "the Linux back end is not part of this build")
    yield
