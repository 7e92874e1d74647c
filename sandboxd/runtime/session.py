"""A session: policy, temporary directory, commands and violations of one project."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from sandboxd.backends.base import Backend, LaunchHandle, LaunchSpec, Observer, Prepare, SandboxNetwork
from sandboxd.errors import CallerError, DaemonError, HostError
from sandboxd.plan.environment import session_variables
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.host_facts import ResolvedPath, SocketFile, SocketsAtStart
from sandboxd.plan.plan import Plan
from sandboxd.plan.request import Argv, Place, ShellText
from sandboxd.policy.build import planning
from sandboxd.policy.decision import PermissionMode
from sandboxd.policy.hosts.egress import actual_layers, way_out_warnings
from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies
from sandboxd.policy.hosts.publication import Publication, check_publications
from sandboxd.policy.ignored_violations import is_ignored
from sandboxd.policy.model import NetworkPolicy, Policy
from sandboxd.proxy.server import ProxyServer
from sandboxd.proxy.session_bounds import SessionBounds
from sandboxd.runtime.command import Command
from sandboxd.runtime.command_record import CommandRecord, State, close_descriptors
from sandboxd.runtime.credentials.credential_store import CredentialStore
from sandboxd.runtime.credentials.session_credentials import SessionCredentials
from sandboxd.runtime.events import Events, Fallback, RunPrepared, RunRefused
from sandboxd.runtime.prepared import PreparedSandbox, PreparedSandboxes, env_tag, is_memory_short
from sandboxd.runtime.prompts.grants import Grants
from sandboxd.runtime.servers.published_ports import PublishedPorts
from sandboxd.runtime.servers.session_loopback import SessionLoopback
from sandboxd.runtime.session_records import SessionSpec, SessionState
from sandboxd.runtime.socket_gate import FindSockets, SocketGate, SocketsInside
from sandboxd.runtime.temporary_directories import TemporaryRoot
from sandboxd.runtime.violations.violation_store import ViolationFeed, ViolationStore
from sandboxd.runtime.wrap import NO_OVERRIDES, HeldSettings, Overrides, WrapRequest, check_restrictions
from sandboxd_client.records import dataclass, field

STOP_GRACE_S = 1.0
TIME_LIMIT = "time-limit"
"""The layer in which the daemon ends a command that runs too long."""
MOST_UNCLAIMED = 1024
"""Wrapped commands of one session that wait to be run."""
MOST_ASKED = 64
"""Commands of one session that are asked about a Unix socket of another, the latest ones."""
PLANS_TRIED = 5
"""Times that a command is planned while programs create names that the plan takes for absent."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """State of a back end from an earlier daemon.

    `resume` goes on with a launch, None when it is lost. `inside` is the network of a sandbox by its descriptor."""

    resume: Callable[[str, Observer], LaunchHandle | None]
    inside: Callable[[int], SandboxNetwork]


class LaunchPlanner(Protocol):
    async def plan(
        self, policy: Policy, place: Place, command: Argv | ShellText, environment: Mapping[str, str] = ...
    ) -> Plan: ...

    async def resolve(self, path: str) -> ResolvedPath:
        """Resolve a path on the host."""
        ...

    def holds(self, plan: Plan) -> bool:
        """Return whether the files are as planned, as far as events tell."""
        ...

    def remove_made(self, plan: Plan, since: float) -> str:
        """Remove mount targets that the sandbox itself has made; return the first or ""."""
        ...

    def look_again(self, path: str) -> None:
        """Forget what is known of a path."""
        ...

    def forget(self, session_tmp: str) -> None: ...


class PolicyOf(Protocol):
    """The policy of a session now, with a caller's overrides on top.

    Raises SettingsError when these cannot hold."""

    def __call__(self, overrides: Overrides = NO_OVERRIDES) -> Policy: ...


async def no_trust(network: NetworkPolicy, caller: Mapping[str, str]) -> None:
    raise HostError("tls_unavailable", "TLS cannot end in the proxy here", hint="remove sandbox.network.tls.terminate")


@dataclass(frozen=True, slots=True)
class SessionParts:
    """Parts that all sessions of a daemon share.

    `place` completes (cwd, project root, temporary directory, mask file) with what the daemon knows of itself and
    its user; `make_proxies` builds the proxy server of one command."""

    backend: Backend
    planner: LaunchPlanner
    temporary: TemporaryRoot
    place: Callable[[str, str, str, str], Place]
    make_proxies: Callable[[Callable[[], Policy], Command, SandboxSession], ProxyServer]
    violations: ViolationFeed = field(default_factory=ViolationFeed)
    session_ended: Callable[[str], None] = lambda session_id: None
    """Called once for each session that ends, when its commands are about to."""
    events: Events = field(default_factory=Events)
    proxies: EnvironmentProxies = NO_PROXIES
    look_at_settings: Callable[[str], Awaitable[None] | None] = lambda directory: None
    """Reads the settings files of a project again that have changed, before a command there starts."""
    record_places: Callable[[], Awaitable[None] | None] = lambda: None
    """Makes the record of where commands may write durable, before one is launched. Raises SettingsError."""
    find_sockets: FindSockets = lambda places: SocketsAtStart()
    prepare_trust: Callable[[NetworkPolicy, Mapping[str, str]], Awaitable[None]] = no_trust
    """Makes the certificate authority that a command trusts where TLS ends in the proxy. Raises HostError."""
    credentials: CredentialStore = field(default_factory=lambda: CredentialStore({}))
    prepare: Prepare | None = None
    """Launches a sandbox before its command is known, where the back end can."""


class PlanningPolicy:
    """The policy of a session in the mode plan: neither overrides nor grants open more."""

    def __init__(self, policy: PolicyOf) -> None:
        self.base = policy
        self._last: tuple[Policy, Policy] | None = None

    def __call__(self, overrides: Overrides = NO_OVERRIDES) -> Policy:
        if overrides:
            overrides = replace(overrides, restricted=True, granted_write=(), granted_read=())
        policy = self.base(overrides)
        if self._last is None or self._last[0] is not policy:  # the same object for the same policy
            self._last = policy, planning(policy)
        return self._last[1]


class SandboxSession:
    """A session of the daemon; `Sessions` opens and closes it."""

    def __init__(self, session_id: str, spec: SessionSpec, policy: PolicyOf, parts: SessionParts) -> None:
        self.id = session_id
        self.spec = spec
        self.opened_at = time.time()
        self.violations = ViolationStore(session_id, feed=parts.violations)
        self.prepared = PreparedSandboxes()
        self.grants = Grants(self.recheck)
        self.bounds = SessionBounds()
        self.credentials = SessionCredentials(session_id, parts.credentials)
        self.closed = False
        self.added: Any = None
        """Settings that the user has given to a session of an agent, for the next daemon."""
        self._policy = self._kept_to_its_mode(policy)
        self._parts = parts
        self._commands: dict[str, Command] = {}
        self._places: dict[tuple[str, bool], Place] = {}
        self._temporary = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loopback = SessionLoopback(self._spawn)
        self.on_idle: Callable[[SandboxSession], None] | None = None

    @property
    def cwd(self) -> str:
        return self.spec.cwd

    @property
    def policy(self) -> Policy:
        return self._policy()

    @property
    def policy_of(self) -> PolicyOf:
        return self._policy

    def follow(self, policy: PolicyOf) -> None:
        """Follow another policy from now on, also for the commands that run."""
        self._policy = self._kept_to_its_mode(policy)
        self.recheck()

    def _kept_to_its_mode(self, policy: PolicyOf) -> PolicyOf:
        return PlanningPolicy(policy) if self.spec.permission_mode is PermissionMode.PLAN else policy

    @property
    def idle(self) -> bool:
        return not self._commands

    def commands(self) -> list[Command]:
        return list(self._commands.values())

    def command(self, wrap_id: str) -> Command | None:
        return self._commands.get(wrap_id)

    def variables_outside(self) -> dict[str, str]:
        """Return the session's variables for a command without a sandbox.

        Raises HostError."""
        return session_variables(self._parts.temporary.session(self.id))

    @property
    def publications(self) -> tuple[Publication, ...]:
        """Return the published ports of all commands."""
        return tuple(one for command in self._commands.values() for one in command.publications)

    async def wrap(self, request: WrapRequest) -> tuple[Command, LaunchSpec]:
        """Prepare one sandboxed command.

        Raises CallerError, SettingsError, PolicyError or HostError; there is no state in which it returns a command
        that would run outside a sandbox."""
        begun = time.perf_counter()
        try:
            command, launch = await self._wrap(request)
        except DaemonError as error:
            what = self.id, request.cwd, request.text, error.slug, error.message
            self._parts.events.tell(RunRefused(*what))
            raise
        try:
            self._parts.events.prepared(
                RunPrepared(
                    wrap_id=command.wrap_id,
                    command_id=command.command_id,
                    session_id=self.id,
                    cwd=request.cwd,
                    command=command.text,
                    layers=launch.layers,
                    warnings=launch.warnings,
                    generation=command.generation,
                    seconds=time.perf_counter() - begun,
                )
            )
        except DaemonError:
            command.expire()  # no client has its argv
            raise
        return command, launch

    async def _wrap(self, request: WrapRequest) -> tuple[Command, LaunchSpec]:
        """Make a launch; plan again where a name of the plan is not absent any more."""
        self._check_open()
        overrides = self.grants.widen(request.overrides, request.command_id)
        if overrides is not request.overrides:
            request = replace(request, overrides=overrides)
        for _ in range(PLANS_TRIED - 1):
            try:
                return await self._wrap_once(request)
            except HostError as error:
                if error.slug != "placeholder_taken":
                    raise
                for path in (error.data["path"], *error.data.get("more", ())):
                    self._parts.planner.look_again(path)
        return await self._wrap_once(request)

    async def prepare(self, request: WrapRequest) -> tuple[str, LaunchSpec]:
        """Launch a sandbox that waits for the next command of this connection, in place of an earlier one.

        Return its id. Raises as `wrap` does, and HostError `prepare_unavailable`; the command of the request counts for
        nothing."""
        self._check_open()
        policy = self._policy(request.overrides)
        prepare = self._parts.prepare
        why = (
            "it is turned off (sandbox.prepareSandboxes)" if not policy.platform.prepare_sandboxes
            else "this system cannot" if prepare is None
            else "memory is short" if is_memory_short()
            else ""
        )  # fmt: skip
        if why or prepare is None:
            raise HostError("prepare_unavailable", f"no sandbox is prepared: {why}", hint="wrap the command itself")
        *_, plan = await self._plan(request, policy)
        planner = self._parts.planner
        holds, remove_made = partial(planner.holds, plan), partial(planner.remove_made, plan)
        one = PreparedSandbox(secrets.token_hex(16), plan, request.owner, holds, remove_made)
        spec, handle = await prepare(one.wrap_id, plan, one)
        one.attach(spec, handle)
        if self.closed:
            one.end()
            self._check_open()
        self.prepared.add(one)
        return one.wrap_id, replace(spec, cwd=plan.cwd)

    async def _plan(
        self, request: WrapRequest, policy: Policy
    ) -> tuple[tuple[str, ...], Place, Mapping[str, str], Plan]:
        """Return warnings of the settings, the place, variables for credentials and the plan of a command."""
        if (recording := self._parts.record_places()) is not None:
            await recording
        unenforced = check_restrictions(policy) if policy.unenforced else ()
        await self._parts.backend.ready()
        if policy.network.tls_terminate:
            await self._parts.prepare_trust(policy.network, request.environment)
        place = self._place(request.cwd, policy.network.transparent)
        stand_ins = await self.credentials.prepare(policy.network, place.session_tmp)
        unfit = self.credentials.warnings
        program: Argv | ShellText = ShellText(request.command or "", request.shell, request.login)
        if request.argv is not None:
            program = Argv(request.argv)
        plan = await self._parts.planner.plan(policy, place, program, request.environment)
        return (*unenforced, *unfit), place, stand_ins, plan

    async def _wrap_once(self, request: WrapRequest) -> tuple[Command, LaunchSpec]:
        self._check_open()
        self._check_unclaimed()
        await self.prepared.made(request)
        policy = self._policy(request.overrides)
        unenforced, place, stand_ins, plan = await self._plan(request, policy)
        waiting = self.prepared.take(request, plan, env_tag(*_changes(plan, stand_ins)))
        wrap_id = secrets.token_hex(16) if waiting is None else waiting.wrap_id
        reads_reported = plan.supervision.reads or self._parts.backend.name == "macos"
        known = plan.attribution, policy.generation, reads_reported
        command = self._command(wrap_id, request, place, *known, policy, plan)
        command.looks_for_sockets = bool(policy.network.allow_unix_sockets)
        try:
            if request.publish:
                check_publications(policy.network, request.publish)
                command.published = PublishedPorts(request.publish, wrap_id)
            handle: LaunchHandle
            if waiting is None:
                launch, handle = await self._parts.backend.launch(wrap_id, plan, command)
            else:
                launch, handle = await waiting.claim(command, plan)
            command.shares_localhost = launch.shares_localhost
            command.time_s = policy.limits.time_s
            if self.closed or (request.publish and not launch.reachable):
                handle.cancel()
                self._check_open()
                raise _unreachable()
        except BaseException as error:
            command.unpublish()
            if waiting is not None:
                waiting.kill()
            if waiting is not None and isinstance(error, DaemonError) and not self.closed:
                return await self._wrap_once(replace(request, prepared=None))
            raise
        self._commands[wrap_id] = command
        command.attach(handle, launch.expires_in_s)
        if waiting is not None:
            await waiting.begin(command)
        for why in launch.warnings:  # of the back end: each is a layer that is less than it should be
            self._parts.events.tell(Fallback("layer", why, self.id, command.command_id))
        env_set, env_unset = _changes(plan, {**stand_ins, **launch.env_set})
        whole = replace(
            launch,
            env_set=env_set,
            env_unset=env_unset,
            env_tag=env_tag(env_set, env_unset),
            cwd=plan.cwd,
            prepared=waiting is not None,
            tmp=plan.view.seen_outside,
            layers=with_time_limit(actual_layers(policy.network, launch.layers), policy),
            warnings=(
                *unenforced,
                *plan.warnings,
                *launch.warnings,
                *way_out_warnings(policy.network, self._parts.proxies),
            ),
        )
        return command, whole

    def _check_unclaimed(self) -> None:
        """Check the number of unclaimed wraps. Raises CallerError `wraps_too_many`.

        What runs is bounded by the system, what waits to be run only here."""
        if len(self._commands) < MOST_UNCLAIMED:
            return
        if sum(not command.has_started for command in self._commands.values()) >= MOST_UNCLAIMED:
            raise CallerError(
                "wraps_too_many",
                f"{MOST_UNCLAIMED} wrapped commands of this session wait to be run",
                hint="run them, or wait until they expire",
            )

    def _place(self, cwd: str, transparent: bool) -> Place:
        session_tmp = self._temporary = self._parts.temporary.session(self.id)
        place = self._places.get((cwd, transparent))
        if place is None:
            place = self._parts.place(cwd, self.spec.cwd, session_tmp, self._parts.temporary.mask)
            place = replace(place, captured=place.captured and transparent)
            self._places[cwd, transparent] = place
        return place

    def _command(
        self,
        wrap_id: str,
        request: WrapRequest,
        place: Place,
        attribution: Attribution | None,
        generation: int,
        reads_reported: bool,
        made_under: Policy | None = None,
        plan: Plan | None = None,
    ) -> Command:
        overrides = request.overrides
        sockets = SocketGate(
            lambda: self._policy(overrides).network,
            self._parts.planner.resolve,
            lambda: command.settled_attribution(),
            (place.runtime_dir, place.temporary_base, *place.private),
            SocketsInside(self._parts.find_sockets, place.session_tmp, lambda file: self._is_bound(command, file)),
        )
        command = Command(
            wrap_id,
            request,
            violations=self.violations,
            make_proxies=lambda command: self._parts.make_proxies(lambda: self._policy(overrides), command, self),
            on_end=self._command_ended,
            is_hidden=lambda *what: is_ignored(self._policy(overrides).ignore_violations, *what),
            generation=generation,
            generation_now=lambda: self._policy(overrides).generation,
            tell=self._parts.events.tell,
            session_id=self.id,
            attribution=attribution,
            sockets=sockets,
            home=place.home,
            reads_reported=reads_reported,
            check_published=lambda: check_publications(self._policy(overrides).network, request.publish),
            files_hold=lambda: plan is None or self._parts.planner.holds(plan),
            remove_made=lambda since: "" if plan is None else self._parts.planner.remove_made(plan, since),
            settings=HeldSettings(
                made_under,
                lambda: self._policy(self.grants.check(overrides)),
                lambda: self._parts.look_at_settings(self.spec.cwd),
            ),
            loopback=self._loopback,
        )
        return command

    async def _is_bound(self, asking: Command, file: SocketFile) -> bool:
        """Tell whether a command of this session has bound a socket to the file.

        They share `/tmp`; its own is asked first. Raises OSError."""
        for command in dict.fromkeys((asking, *self.commands()[-MOST_ASKED:])):
            if await command.is_bound(file):
                return True
        return False

    # from one daemon to the next (docs/restarts.md)

    def kept(self, settings: Any, command: Command | None = None) -> SessionState:
        """Return the state of the session or one command for a crash entry."""
        record = SessionState(
            self.id,
            self.spec,
            self.opened_at,
            settings,
            orphaned=not (self.spec.detached or self.spec.implicit),
            added=self.added,
        )
        if command is not None:
            return replace(record, commands=(command.kept,))
        return replace(
            record, grants=self.grants.record(), violations=self.violations.record(), bounds=self.bounds.record
        )

    async def hand_over(self, settings: Any, owner: str, ended: list[Command]) -> tuple[SessionState, int]:
        """Let go of everything, as it is; `ended` are the commands that are over.

        The record, and how many connections had to be reset."""
        records, cut = [], 0
        for command in (*ended, *self.commands()):
            one, lost = await command.hand_over()
            records.append(one)
            cut += lost
        while self._tasks:
            await asyncio.wait(self._tasks)
        record = SessionState(
            session_id=self.id,
            spec=self.spec,
            opened_at=self.opened_at,
            settings=settings,
            owner=owner,
            closed=self.closed,
            grants=self.grants.record(),
            violations=self.violations.record(),
            commands=tuple(records),
            added=self.added,
            bounds=self.bounds.record,
        )
        self._commands.clear()
        self.closed = True
        self.grants.close()
        return record, cut

    def resume(self, record: SessionState, inherited: Inherited) -> list[Command]:
        """Resume the state of an earlier daemon, with running and ended commands.

        When this raises, descriptors that were not taken are closed."""
        rest = list(record.commands)
        try:
            return list(self._resume(record, rest, inherited))
        except BaseException:
            for one in rest:
                close_descriptors(one)
            raise

    def _resume(self, record: SessionState, rest: list[CommandRecord], inherited: Inherited) -> Iterator[Command]:
        """`rest` are those of its commands that are still to come."""
        self.opened_at, self.added = record.opened_at, record.added
        self.violations.resume(record.violations)
        self.grants.resume(record.grants)
        self.bounds.resume(record.bounds)
        self.closed = record.closed
        while rest:
            one = rest[0]
            if record.closed:  # nothing runs there any more, so there is no temporary directory
                place = self._parts.place(one.cwd, self.spec.cwd, "", self._parts.temporary.mask)
            else:
                place = self._place(one.cwd, self.policy.network.transparent)
            command = self._command(one.wrap_id, one.request, place, None, one.generation, one.reads_reported)
            if one.state is not State.ENDED:
                self._commands[one.wrap_id] = command
            handle = None if one.state is State.ENDED else inherited.resume(one.wrap_id, command)
            rest.pop(0)
            command.resume(one, handle, None if one.inside < 0 else inherited.inside(one.inside))
            if command.state is not State.ENDED:
                command.attributing = self._spawn(f"attribution-{one.wrap_id}", self._attribute(command, place, one))
            yield command

    async def _attribute(self, command: Command, place: Place, record: CommandRecord) -> None:
        """Attribute refusals of a resumed command by the policy of now."""
        with contextlib.suppress(DaemonError):  # then its violations name no rule
            policy = self._policy(record.overrides)
            plan = await self._parts.planner.plan(policy, place, Argv(("true",)))
            command.attribution = plan.attribution

    def _check_open(self) -> None:
        if self.closed:
            raise CallerError("session_closed", f"session {self.id} has ended", hint="open a new one with session.open")

    def _command_ended(self, command: Command) -> None:
        self._commands.pop(command.wrap_id, None)
        self.grants.command_ended(command.wrap_id)
        if command.proxies is not None:
            self._spawn(f"proxies-close-{command.wrap_id}", command.proxies.aclose())
        if self.idle and self.on_idle is not None:
            self.on_idle(self)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def recheck(self) -> None:
        """Cut tunnels that a changed policy denies."""
        self._places.clear()
        self.prepared.clear()
        for command in self._commands.values():
            command.recheck()

    async def aclose(self, grace_s: float = STOP_GRACE_S) -> None:
        """End every command, whole trees, and remove the temporary directory.

        May be called twice."""
        if self.closed:
            return
        self.closed = True
        self._parts.session_ended(self.id)
        self.prepared.clear()
        self.grants.close()
        await asyncio.gather(*(c.stop(grace_s) for c in self.commands()), return_exceptions=True)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.violations.close(keep=self.spec.implicit)
        self._parts.planner.forget(self._temporary)
        await self._parts.backend.end_session(self._temporary)
        await self._parts.temporary.remove_session(self.id)
        # The outcomes of its commands are kept, and this with them: not the settings of its project too, which would
        # be read again with every change.
        self._policy = self._no_policy
        self._places.clear()

    def _no_policy(self, overrides: Overrides = NO_OVERRIDES) -> Policy:
        raise CallerError("session_closed", f"session {self.id} has ended", hint="open a new one with session.open")


def _changes(plan: Plan, more: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables to set and to remove; `more` is set as well."""
    return {**plan.environment.set, **more}, tuple(name for name in plan.environment.unset if name not in more)


def with_time_limit(layers: tuple[str, ...], policy: Policy) -> tuple[str, ...]:
    """Return the layers with that of the daemon, which ends what runs too long."""
    return layers if policy.limits.time_s is None else (*layers, TIME_LIMIT)


def _unreachable() -> HostError:
    return HostError(
        "publish_unavailable",
        "ports cannot be published: this host cannot connect into the network of a sandbox",
        hint="run: sandboxd check, and switch sandbox.network.transparent on; on macOS use the server's own port",
    )
