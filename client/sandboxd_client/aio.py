"""The client: its connection, sessions and commands."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, cast, overload

from sandboxd_client.aio_rpc import AsyncRpcMethods, Settings, opening
from sandboxd_client.badge import SHOWN_S, Badge
from sandboxd_client.errors import (
    ConnectionLost,
    RpcError,
    SandboxdError,
    SandboxOffWarning,
    SecretsWarning,
    WrapOutdated,
)
from sandboxd_client.running.aio_process import (
    AsyncPreparing,
    AsyncProcess,
    approved,
    ask_to_run_outside,
    check_streams,
    complete,
    start,
)
from sandboxd_client.running.commands import Path, absolute, is_in_sandbox, session_around
from sandboxd_client.running.completed import Completed
from sandboxd_client.running.cut_output import CutOutput
from sandboxd_client.running.launching import (
    LONGEST_ANNOTATED,
    TOO_LONG,
    WRAPS_TRIED,
    Command,
    Launch,
    RunOptions,
    SpawnOptions,
    TextOptions,
    annotated_stream,
    answered,
    bare_launch,
    check_decision,
    check_options,
    command_line,
    lists_keywords,
    off_warning,
    question_about,
    run_arguments,
    search_path,
    secrets_warning,
    wants_outside,
    wrap_arguments,
)
from sandboxd_client.running.override import wants_question
from sandboxd_client.transport.aio_connection import AsyncConnector
from sandboxd_client.transport.answers import Notification
from sandboxd_client.transport.connection import DEFAULT_TIMEOUT_S
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.hello import Role
from sandboxd_client.wire.messages.methods import PERMISSION_REQUEST, SESSION_OPEN, SHOULD_SANDBOX, WRAP, Method
from sandboxd_client.wire.messages.policy import DescribeResult, EffectiveResult, ExplainKind, ExplainResult, Style
from sandboxd_client.wire.messages.sessions import (
    PermissionMode,
    SessionOpenParams,
    SessionOpenResult,
    SessionUpdateResult,
)
from sandboxd_client.wire.messages.settings import ChangeRecord, SettingsGetResult
from sandboxd_client.wire.messages.violations import ViolationHappened
from sandboxd_client.wire.messages.wrap import OverridesRecord, WrapResult

P = TypeVar("P")
R = TypeVar("R")
OF_COMMANDS = (WRAP, SHOULD_SANDBOX, PERMISSION_REQUEST)
"""Methods about a command, which belongs to the session of $SANDBOXD_SESSION."""
BADGE_TICK_S = 0.5
"""The interval at which a badge that is shown is looked at again."""
SESSION_GONE = frozenset(("session_unknown", "session_closed"))


class AsyncClient(AsyncRpcMethods):
    """Client of the daemon of this user.

    It connects at the first call, starts a daemon when none answers (unless `autostart` is False), and connects again
    after a restart. It then repeats a request where that can do no harm, else it raises ConnectionLost. Several
    threads, or coroutines of one event loop, may use it at the same time.

    `socket` is a path (default: see `wire.location`), `timeout` the limit of an answer in seconds. With the `role`
    "agent" every connection keeps only the powers over its own sessions: no settings, no answers to prompts, no
    sessions of others, and no widening of rules. Otherwise commands without a session run in that of
    $SANDBOXD_SESSION, if it is set.

    With `prepare` a blocking client keeps one sandbox ready after a command, for the next one in the same place; an
    asynchronous one ignores it."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        autostart: bool = True,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        role: Role = "full",
        prepare: bool = False,
    ) -> None:
        self._connector = AsyncConnector(socket, autostart=autostart, timeout=timeout, role=role)
        self._session = None if role == "agent" else session_around(os.environ)
        self._warned: set[str | None] = set()  # sessions with a SandboxOffWarning
        self._warned_of_secrets = False
        self._preparing = AsyncPreparing(prepare, self._connector, self._session)

    # the connection

    @property
    def socket(self) -> str:
        """The path of the socket. Raises PermissionDenied."""
        return self._connector.socket

    @property
    def connections(self) -> int:
        """The number of connections so far; sessions end with their connection."""
        return self._connector.connections

    async def connect(self) -> None:
        """Connect now instead of at the first call."""
        await self._connector.connect()

    async def close(self) -> None:
        """Close the connection and end its sessions; a later call connects anew."""
        self._preparing.stop()
        try:
            await self._connector.close()
        finally:
            self._preparing.close()

    async def call(self, method: Method[P, R], params: P) -> R:
        """Send a request. RpcMethods has a method for each."""
        if self._session is not None and method in OF_COMMANDS and getattr(params, "session_id", "") is None:
            params = replace(cast(Any, params), session_id=await self._joined(self._session))
        return await self._connector.call(method, params)

    async def _joined(self, session: str) -> str:
        """Return the session of $SANDBOXD_SESSION, which may be `auto:KEY`."""
        key = session.removeprefix("auto:")
        return session if key == session else (await self.session_join(key=key)).session_id

    def notifications(self, timeout: float | None = None) -> AsyncIterator[Notification]:
        """Yield the notifications of the subscriptions that were made before.

        It ends after `timeout` seconds without one; without a timeout it waits. Raises ConnectionLost with the
        connection, which ends the subscriptions: subscribe again, the answer has the state."""
        return self._connector.notifications(timeout)

    async def on_badge(self, callback: Callable[[int], None], *, shown_s: float = SHOWN_S) -> None:
        """Call `callback` with the number of accesses blocked in the last `shown_s` seconds.

        It is called at each change, also with 0, which hides the badge. Give it a task or thread and a client of its
        own: it returns only by an error, ConnectionLost as `notifications`."""
        badge, shown = Badge(shown_s), 0
        badge.know((await self.violation_subscribe()).violations)
        while True:
            falls_in = badge.changes_in(time.monotonic())
            async for event in self.notifications(None if falls_in is None else min(falls_in + 0.01, BADGE_TICK_S)):
                if isinstance(event.params, ViolationHappened):
                    badge.take(event.params.violation, time.monotonic())
                    break
            if (count := badge.count(time.monotonic())) != shown:
                shown = count
                callback(count)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._connector.path or 'the default socket'}>"

    def session(
        self,
        cwd: Path | None = None,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        permission_mode: PermissionMode | None = None,
        detach: bool = False,
    ) -> AsyncSession:
        """Return a session as a context manager that closes it at its end."""
        return AsyncSession(self, opening(cwd, name, settings, permission_mode, detach=detach))

    @lists_keywords(SpawnOptions)
    async def spawn(self, command: Command, **options: Unpack[SpawnOptions]) -> AsyncProcess:
        """Start a command: a string is a shell line, a list a program's argv."""
        check_options(options, SpawnOptions, "spawn")
        check_streams(options)
        process = await start(await self._launch(command, options), options, self.wrap_outcome)
        self._preparing.next(options)
        return process

    @overload
    async def run(self, command: Command, *, text: Literal[True], **options: Unpack[TextOptions]) -> Completed[str]: ...

    @overload
    async def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed[Any]: ...

    @lists_keywords(RunOptions)
    async def run(self, command: Command, **options: Any) -> Completed[Any]:
        """Run a command in the sandbox and wait for its end, like subprocess.run.

        Takes keywords of subprocess.run, and those of RunOptions. Raises SandboxSetupError when the sandbox failed and
        no command ran; with `decide=True` CommandDenied and ApprovalRequired; TimeoutExpired and CommandFailed as in
        subprocess. Standard error that is captured as text ends with a block of the violations. With
        `on_violation="ask"` the result may be that of a second run outside the sandbox (`override`).
        An interruption or a cancellation ends the command and withdraws the prompt."""
        check_options(options, RunOptions, "run")
        given = cast(RunOptions, options)
        ask, annotated = wants_question(options), annotated_stream(options)
        input, timeout, check, spawning = run_arguments(given)
        process: AsyncProcess | None = None
        bounded = CutOutput(options, spawning)
        for left in reversed(range(WRAPS_TRIED)):
            process = await start(await self._launch(command, spawning), spawning, self.wrap_outcome, after=process)
            self._preparing.next(spawning)
            try:
                done = await complete(process, input, timeout)
                break
            except WrapOutdated:
                if not left:
                    raise
                bounded.restart()
            except subprocess.TimeoutExpired as expired:
                bounded.fill(expired)
                raise
        bounded.fill(done)
        self._connector.remember(done)
        if ask and done.violations:
            done = await ask_to_run_outside(self, command, spawning, done, input, timeout)
        if annotated is not None:
            await self._annotate(done, annotated, given)
        if check:
            done.check_returncode()
        return done

    async def _launch(self, command: Command, options: SpawnOptions) -> Launch:
        arguments = wrap_arguments(command, options)
        if not self._warned_of_secrets and (secrets := secrets_warning(options)):
            self._warned_of_secrets = True
            warnings.warn(secrets, SecretsWarning, stacklevel=4)
        decision = None
        if options.get("decide", False):
            decision = await self._decided(command, options)
            if not decision.sandboxed:
                return bare_launch(command, options, absolute(arguments.get("cwd")), decision)
        elif wants_outside(options):
            raise ValueError("dangerously_disable_sandbox needs decide=True: only a decision lets a command run bare")
        return await self._preparing.launch(self, command, options, arguments, decision)

    async def _decided(self, command: Command, options: SpawnOptions) -> ShouldSandboxResult:
        """Ask for the decision, and a user where it says so. Raises CommandRefused."""
        session_id = options.get("session_id")
        decision = await self.should_sandbox(
            command_line(command),
            cwd=options.get("cwd"),
            session_id=session_id,
            dangerously_disable_sandbox=wants_outside(options),
            path=search_path(options),
            is_sandbox=is_in_sandbox(options.get("env")),
        )
        if decision.behavior == "ask" and options.get("approve") is None:
            kind, query = question_about(command, options, decision)
            decision = answered(decision, await self.permission_request(kind, **query))
        else:
            check_decision(decision, await approved(decision, options.get("approve")))
        off = off_warning(decision, session_id)
        if off and session_id not in self._warned:
            self._warned.add(session_id)
            warnings.warn(off, SandboxOffWarning, stacklevel=4)
        return decision

    async def _annotate(self, done: Completed[Any], stream: str, options: SpawnOptions) -> None:
        """Put the block of violations at the end of a captured text."""
        if done.wrap is None:
            return
        text = getattr(done, stream) or ""
        if len(text) > LONGEST_ANNOTATED:
            setattr(done, stream, text + TOO_LONG)
            return
        command_id, session_id = options.get("command_id") or done.wrap.wrap_id, options.get("session_id")
        with contextlib.suppress(SandboxdError):
            found = await self.violation_annotate(command_id, text, session_id=session_id)
            setattr(done, stream, found.stderr)


class AsyncSession:
    """A session of a client: one agent in one project.

    It ends with the client's connection unless detached. After a restart of the daemon the next call opens it again,
    without its grants."""

    def __init__(self, client: AsyncClient, opening: SessionOpenParams) -> None:
        self._client = client
        self._opening = opening
        self._opened: SessionOpenResult | None = None
        self._connections = 0
        self.cwd: str = opening.cwd

    async def open(self) -> AsyncSession:
        """Open the session, or open it again."""
        self._opened = await self._client.call(SESSION_OPEN, self._opening)
        self._connections = self._client.connections
        return self

    @property
    def opened(self) -> SessionOpenResult:
        if self._opened is None:
            raise RuntimeError("the session is not open yet: use it in 'async with', or await its open()")
        return self._opened

    @property
    def id(self) -> str:
        return self.opened.session_id

    async def update(
        self,
        settings: Settings | None = None,
        *,
        changes: Sequence[ChangeRecord] | None = None,
        confirm: bool = False,
    ) -> SessionUpdateResult:
        """Give the session other settings, or change some of its own; they hold at once."""
        result = await self._in_session(
            lambda session_id: self._client.session_update(session_id, settings, changes=changes, confirm=confirm)
        )
        self._opening = replace(self._opening, settings=result.settings)
        return result

    async def close(self) -> None:
        """End the session with its commands. Does nothing if it has ended, or was never used."""
        if self._opened is None:
            return
        try:
            await self._client.session_close(self.id)
        except RpcError as error:
            if error.slug not in SESSION_GONE:
                raise

    def _absolute(self, cwd: Path | None) -> str:
        return self.cwd if cwd is None else os.path.join(self.cwd, cwd)

    async def _in_session(self, ask: Callable[[str], Awaitable[R]]) -> R:
        if self._opened is None:
            await self.open()
        try:
            return await ask(self.id)
        except RpcError as error:
            if error.slug not in SESSION_GONE or self._connections == self._client.connections:
                raise
        await self.open()
        return await ask(self.id)

    async def should_sandbox(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        dangerously_disable_sandbox: bool = False,
        dangerouslyDisableSandbox: bool = False,
        path: str | None = None,
        is_sandbox: bool | None = None,
    ) -> ShouldSandboxResult:
        return await self._in_session(
            lambda session_id: self._client.should_sandbox(
                command,
                cwd=self._absolute(cwd),
                session_id=session_id,
                dangerously_disable_sandbox=dangerously_disable_sandbox or dangerouslyDisableSandbox,
                path=path,
                is_sandbox=is_sandbox,
            )
        )

    async def wrap(
        self,
        command: str | None = None,
        *,
        argv: Sequence[Path] | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        shell: str | None = None,
        command_id: str | None = None,
        command_text: str | None = None,
        overrides: OverridesRecord | None = None,
    ) -> WrapResult:
        return await self._in_session(
            lambda session_id: self._client.wrap(
                command,
                argv=argv,
                cwd=self._absolute(cwd),
                env=env,
                shell=shell,
                session_id=session_id,
                command_id=command_id,
                command_text=command_text,
                overrides=overrides,
            )
        )

    async def policy_explain(
        self, kind: ExplainKind, target: str, *, write: bool = False, cwd: Path | None = None
    ) -> ExplainResult:
        return await self._in_session(
            lambda session_id: self._client.policy_explain(
                kind, target, write=write, session_id=session_id, cwd=self._absolute(cwd)
            )
        )

    async def policy_effective(self) -> EffectiveResult:
        return await self._in_session(
            lambda session_id: self._client.policy_effective(session_id=session_id, cwd=self.cwd)
        )

    async def policy_describe(
        self,
        *,
        exceptions: Mapping[str, str] | None = None,
        flag_name: str | None = None,
        style: Style | None = None,
        examples: bool | None = None,
    ) -> DescribeResult:
        return await self._in_session(
            lambda session_id: self._client.policy_describe(
                session_id=session_id,
                cwd=self.cwd,
                exceptions=exceptions,
                flag_name=flag_name,
                style=style,
                examples=examples,
            )
        )

    async def settings_get(self, key: str | None = None) -> SettingsGetResult:
        return await self._in_session(
            lambda session_id: self._client.settings_get(key, session_id=session_id, cwd=self.cwd)
        )

    async def spawn(self, command: Command, **options: Unpack[SpawnOptions]) -> AsyncProcess:
        """Spawn in this session; `cwd` is relative to the session's."""

        async def spawn_in(session_id: str) -> AsyncProcess:
            options["session_id"] = session_id
            return await self._client.spawn(command, **options)

        options["cwd"] = self._absolute(options.get("cwd"))
        return await self._in_session(spawn_in)

    @overload
    async def run(self, command: Command, *, text: Literal[True], **options: Unpack[TextOptions]) -> Completed[str]: ...

    @overload
    async def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed[Any]: ...

    @lists_keywords(RunOptions)
    async def run(self, command: Command, **options: Any) -> Completed[Any]:
        """Run in this session; `cwd` is relative to the session's."""

        async def run_in(session_id: str) -> Completed[Any]:
            options["session_id"] = session_id
            done: Completed[Any] = await self._client.run(command, **options)
            return done

        options["cwd"] = self._absolute(options.get("cwd"))
        return await self._in_session(run_in)

    async def __aenter__(self) -> AsyncSession:
        return self if self._opened is not None else await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ConnectionLost):
            await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSession {self._opened.session_id if self._opened else 'unopened'} in {self.cwd}>"
