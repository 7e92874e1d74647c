"""The client for asyncio: the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sandboxd_client import calls
from sandboxd_client.aio_connection import AsyncConnection
from sandboxd_client.aio_process import AsyncProcess, TextMode, ask_to_run_outside, complete, start
from sandboxd_client.calls import Call, Notification, Path, notification_record, result_record
from sandboxd_client.client import DEFAULT_TIMEOUT_S
from sandboxd_client.commands import absolute
from sandboxd_client.connection import usable_path
from sandboxd_client.errors import ConnectionLost, DaemonTimeout, SettingsChanged
from sandboxd_client.launching import (
    WRAPS_TRIED,
    Command,
    Launch,
    RunOptions,
    SpawnOptions,
    bare_launch,
    check_decision,
    check_options,
    command_line,
    run_arguments,
    search_path,
    wrap_arguments,
    wrapped_launch,
)
from sandboxd_client.override import wants_question
from sandboxd_client.process import Completed
from sandboxd_client.starting import connect_in_role
from sandboxd_client.wire.messages.check import CheckResult
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.hello import HelloResult, Role
from sandboxd_client.wire.messages.metrics import MetricsResult
from sandboxd_client.wire.messages.policy import DescribeResult, EffectiveResult, ExplainKind, ExplainResult
from sandboxd_client.wire.messages.prompts import (
    Answer,
    PermissionListResult,
    PermissionRequestResult,
    PermissionResponseResult,
    PermissionRevokeResult,
    PermissionSubscribeResult,
    PromptKind,
    Scope,
)
from sandboxd_client.wire.messages.sessions import (
    PermissionMode,
    SessionCloseResult,
    SessionListResult,
    SessionOpenResult,
)
from sandboxd_client.wire.messages.settings import (
    ChangeRecord,
    SettingsGetResult,
    SettingsLintResult,
    SettingsLockedResult,
    SettingsReloadResult,
    SettingsSchemaResult,
    SettingsSource,
    SettingsSubscribeResult,
    SettingsTrustResult,
    SettingsUpdateResult,
    TrustAction,
)
from sandboxd_client.wire.messages.status import RestartResult, ShutdownResult, StatusResult
from sandboxd_client.wire.messages.violations import (
    ViolationAnnotateResult,
    ViolationClearResult,
    ViolationListResult,
    ViolationStripResult,
)
from sandboxd_client.wire.messages.wrap import OverridesRecord, WrapOutcomeResult, WrapResult

if TYPE_CHECKING:
    from sandboxd_client.aio_session import AsyncSession

R = TypeVar("R")


class AsyncClient:
    """As `Client`, for one event loop. Many coroutines may use it at once."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        autostart: bool = True,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        role: Role = "full",
    ) -> None:
        self._path = os.fspath(socket) if socket is not None else None
        self._autostart = autostart
        self._timeout = timeout
        self._role = role
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self.connections = 0

    # the connection

    @property
    def socket(self) -> str:
        """The path of the socket. Raises PermissionDenied when the environment names an impossible one."""
        if self._path is None:
            self._path = usable_path()
        return self._path

    async def connect(self) -> None:
        """Connect now instead of at the first call."""
        await self._connected()

    async def close(self) -> None:
        """Hang up. Sessions of this connection end, with their commands; a later call connects anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _connected(self) -> tuple[AsyncConnection, bool]:
        """The connection, and whether it was made by this very call."""
        async with self._lock:
            if self._connection is not None and self._connection.usable:
                return self._connection, False
            await self.close()
            found = await asyncio.to_thread(connect_in_role, self.socket, self._role, autostart=self._autostart)
            try:
                self._connection = await AsyncConnection.adopt(found.fileno())
            finally:
                found.close()
            self.connections += 1
            return self._connection, True

    async def call(self, call: Call[R]) -> R:
        """Send a request of `calls`; the methods below do it for each of them."""
        while True:
            connection, fresh = await self._connected()
            try:
                async with asyncio.timeout(None if call.patient else self._timeout):
                    result = await connection.call(call.method, call.params)
            except TimeoutError:
                raise DaemonTimeout(call.method, self._timeout or 0) from None
            except ConnectionLost as error:
                if fresh or (error.sent and not call.repeatable):
                    raise
                continue
            return result_record(call, result)

    async def notifications(self, timeout: float | None = None) -> AsyncIterator[Notification]:  # noqa: ASYNC109
        """As Client.notifications, for `async for`."""
        connection = self._connection
        if connection is None:
            raise ConnectionLost("nothing was subscribed to", sent=False)
        while True:
            try:
                async with asyncio.timeout(timeout):
                    method, params = await connection.next_notification()
            except TimeoutError:
                return
            found = notification_record(method, params)
            if found is not None:
                yield found

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._path or 'the default socket'}>"

    # one method per RPC method

    async def hello(self) -> HelloResult:
        return await self.call(calls.hello())

    async def status(self) -> StatusResult:
        return await self.call(calls.status())

    async def check(self) -> CheckResult:
        return await self.call(calls.check())

    async def metrics(self) -> MetricsResult:
        return await self.call(calls.metrics())

    async def restart(self) -> RestartResult:
        """Have the daemon execute itself anew, for example after an upgrade. Sessions, commands and this connection go
        on; the next call is answered by the new program. Raises RpcError `restart_failed` when it would not start."""
        return await self.call(calls.restart())

    async def shutdown(self, grace_s: float | None = None) -> ShutdownResult:
        """Ask the daemon to end; it ends its sessions first. `wait_until_gone` waits for it."""
        return await self.call(calls.shutdown(grace_s))

    async def session_open(
        self,
        cwd: Path | None = None,
        *,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        permission_mode: PermissionMode | None = None,
        detach: bool = False,
    ) -> SessionOpenResult:
        return await self.call(
            calls.session_open(cwd, name=name, settings=settings, permission_mode=permission_mode, detach=detach)
        )

    async def session_close(self, session_id: str) -> SessionCloseResult:
        return await self.call(calls.session_close(session_id))

    async def session_list(self) -> SessionListResult:
        return await self.call(calls.session_list())

    async def should_sandbox(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        session_id: str | None = None,
        dangerously_disable_sandbox: bool = False,
        path: str | None = None,
    ) -> ShouldSandboxResult:
        """`path` is the PATH that the command would be run with, by default that of this process."""
        return await self.call(
            calls.should_sandbox(
                command,
                cwd=cwd,
                session_id=session_id,
                dangerously_disable_sandbox=dangerously_disable_sandbox,
                path=path,
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
        session_id: str | None = None,
        command_id: str | None = None,
        command_text: str | None = None,
        overrides: OverridesRecord | None = None,
    ) -> WrapResult:
        """The argv and the changes of the environment to spawn yourself. It always wraps."""
        return await self.call(
            calls.wrap(
                command,
                argv=argv,
                cwd=cwd,
                env=env,
                shell=shell,
                session_id=session_id,
                command_id=command_id,
                command_text=command_text,
                overrides=overrides,
            )
        )

    async def wrap_outcome(self, wrap_id: str, *, learn: bool = False) -> WrapOutcomeResult:
        return await self.call(calls.wrap_outcome(wrap_id, learn=learn))

    async def permission_subscribe(self) -> PermissionSubscribeResult:
        """The questions that are open; later ones, and what becomes of each, come out of `notifications`."""
        return await self.call(calls.permission_subscribe())

    async def permission_respond(
        self, request_id: str, behavior: Answer, *, scope: Scope = "once", ttl_s: float | None = None
    ) -> PermissionResponseResult:
        """Answer a question. Raises RpcError `question_closed` when somebody else was first, or it has ended."""
        return await self.call(calls.permission_respond(request_id, behavior, scope=scope, ttl_s=ttl_s))

    async def permission_request(
        self,
        kind: PromptKind,
        *,
        session_id: str | None = None,
        cwd: Path | None = None,
        host: str | None = None,
        port: int | None = None,
        path: Path | None = None,
        write: bool = False,
        command: str | None = None,
        command_id: str | None = None,
        reason: str = "",
    ) -> PermissionRequestResult:
        """Ask people, and wait as long as they take. Without anybody to ask the answer is deny, at once."""
        return await self.call(
            calls.permission_request(
                kind,
                session_id=session_id,
                cwd=cwd,
                host=host,
                port=port,
                path=path,
                write=write,
                command=command,
                command_id=command_id,
                reason=reason,
            )
        )

    async def permission_list(self, session_id: str | None = None) -> PermissionListResult:
        """What people have granted and what they are being asked, in one session or in all."""
        return await self.call(calls.permission_list(session_id))

    async def permission_revoke(self, session_id: str, grant_id: str) -> PermissionRevokeResult:
        """Take a grant back; connections that stand on it are cut."""
        return await self.call(calls.permission_revoke(session_id, grant_id))

    async def violation_list(
        self, *, session_id: str | None = None, command_id: str | None = None, since: str | None = None
    ) -> ViolationListResult:
        """What was blocked, oldest first: in a session or in all, in one command, after a cursor."""
        return await self.call(calls.violation_list(session_id=session_id, command_id=command_id, since=since))

    async def violation_subscribe(
        self, *, session_id: str | None = None, since: str | None = None
    ) -> ViolationListResult:
        """The same; what is blocked later comes out of `notifications`."""
        return await self.call(calls.violation_subscribe(session_id=session_id, since=since))

    async def violation_clear(self, *, session_id: str | None = None) -> ViolationClearResult:
        return await self.call(calls.violation_clear(session_id=session_id))

    async def violation_annotate(
        self, command_id: str, stderr: str, *, session_id: str | None = None
    ) -> ViolationAnnotateResult:
        """The standard error of a command with a block of what was blocked in it, for a model to read."""
        return await self.call(calls.violation_annotate(command_id, stderr, session_id=session_id))

    async def violation_strip(self, text: str) -> ViolationStripResult:
        """The text without that block."""
        return await self.call(calls.violation_strip(text))

    async def settings_get(
        self, key: str | None = None, *, session_id: str | None = None, cwd: Path | None = None
    ) -> SettingsGetResult:
        return await self.call(calls.settings_get(key, session_id=session_id, cwd=cwd))

    async def settings_reload(self) -> SettingsReloadResult:
        return await self.call(calls.settings_reload())

    async def settings_update(
        self,
        changes: Sequence[ChangeRecord],
        *,
        session_id: str | None = None,
        cwd: Path | None = None,
        confirm: bool = False,
        project: bool = False,
    ) -> SettingsUpdateResult:
        """Change the user's local settings: all of the changes, or none. Raises RpcError `settings_locked` with the
        reason where managed settings forbid it, `confirmation_needed` for a wide rule without `confirm`."""
        return await self.call(
            calls.settings_update(changes, session_id=session_id, cwd=cwd, confirm=confirm, project=project)
        )

    async def settings_exclude_command(
        self,
        pattern: str,
        *,
        remove: bool = False,
        session_id: str | None = None,
        cwd: Path | None = None,
        confirm: bool = False,
        project: bool = False,
    ) -> SettingsUpdateResult:
        return await self.call(
            calls.settings_exclude_command(
                pattern, remove=remove, session_id=session_id, cwd=cwd, confirm=confirm, project=project
            )
        )

    async def settings_trust(
        self, action: TrustAction, path: Path | None = None, *, digests: Mapping[str, str] | None = None
    ) -> SettingsTrustResult:
        """`list`, `show`, `trust` or `remove` trust in the settings files of a project. To trust them, `digests` are
        those of the files as they were shown. Raises RpcError `trust_changed`, `trust_forbidden`."""
        return await self.call(calls.settings_trust(action, path, digests=digests))

    async def settings_locked(self, *, session_id: str | None = None, cwd: Path | None = None) -> SettingsLockedResult:
        return await self.call(calls.settings_locked(session_id=session_id, cwd=cwd))

    async def settings_subscribe(
        self, *, session_id: str | None = None, cwd: Path | None = None
    ) -> SettingsSubscribeResult:
        """What holds now; later changes come out of `notifications`."""
        return await self.call(calls.settings_subscribe(session_id=session_id, cwd=cwd))

    async def settings_lint(
        self, files: Sequence[Path] | None = None, *, source: SettingsSource | None = None, cwd: Path | None = None
    ) -> SettingsLintResult:
        return await self.call(calls.settings_lint(files, source=source, cwd=cwd))

    async def settings_schema(self) -> SettingsSchemaResult:
        return await self.call(calls.settings_schema())

    async def policy_explain(
        self,
        kind: ExplainKind,
        target: str,
        *,
        write: bool = False,
        session_id: str | None = None,
        cwd: Path | None = None,
    ) -> ExplainResult:
        return await self.call(calls.policy_explain(kind, target, write=write, session_id=session_id, cwd=cwd))

    async def policy_effective(self, *, session_id: str | None = None, cwd: Path | None = None) -> EffectiveResult:
        return await self.call(calls.policy_effective(session_id=session_id, cwd=cwd))

    async def policy_describe(
        self,
        *,
        session_id: str | None = None,
        cwd: Path | None = None,
        exceptions: Mapping[str, str] | None = None,
    ) -> DescribeResult:
        """The restrictions in words for a model. `exceptions` are commands that cannot work inside, each with why."""
        return await self.call(calls.policy_describe(session_id=session_id, cwd=cwd, exceptions=exceptions))

    # running commands

    def session(
        self,
        cwd: Path | None = None,
        *,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        permission_mode: PermissionMode | None = None,
        detach: bool = False,
    ) -> AsyncSession:
        """A session for `async with`: opened at its start, closed at its end. Its methods are the client's, in it."""
        from sandboxd_client.aio_session import AsyncSession

        return AsyncSession(
            self,
            calls.session_open(cwd, name=name, settings=settings, permission_mode=permission_mode, detach=detach),
        )

    async def spawn(self, command: Command, **options: Unpack[SpawnOptions]) -> AsyncProcess:
        """As Client.spawn; the streams are asyncio's, of bytes."""
        check_options(options, SpawnOptions, "spawn")
        if TextMode(options).wanted:
            raise ValueError("the streams of an AsyncProcess are of bytes: text, encoding and errors are for run()")
        return await start(await self._launch(command, options), options, self.wrap_outcome)

    async def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        """As Client.run. Cancelling it ends the command, and withdraws the question of `on_violation="ask"`."""
        check_options(options, RunOptions, "run")
        ask = wants_question(options)
        input, timeout, check, spawning = run_arguments(options)
        process: AsyncProcess | None = None
        for left in reversed(range(WRAPS_TRIED)):
            process = await start(await self._launch(command, spawning), spawning, self.wrap_outcome, after=process)
            try:
                done = await complete(process, input, TextMode(options), timeout)
                break
            except SettingsChanged:
                if not left:
                    raise
        if ask and done.violations:
            done = await ask_to_run_outside(self, command, spawning, done, input, timeout)
        if check:
            done.check_returncode()
        return done

    async def _launch(self, command: Command, options: SpawnOptions) -> Launch:
        arguments = wrap_arguments(command, options)
        decision = None
        wish = options.get("dangerously_disable_sandbox", False)
        if options.get("decide", False):
            decision = await self.should_sandbox(
                command_line(command),
                cwd=arguments.get("cwd"),
                session_id=arguments.get("session_id"),
                dangerously_disable_sandbox=wish,
                path=search_path(options),
            )
            check_decision(decision, await _approved(decision, options.get("approve")))
            if not decision.sandboxed:
                return bare_launch(command, options, absolute(arguments.get("cwd")), decision)
        elif wish:
            raise ValueError("dangerously_disable_sandbox needs decide=True: only a decision lets a command run bare")
        return wrapped_launch(command, options, await self.wrap(**arguments), decision)


async def _approved(decision: ShouldSandboxResult, approve: Callable[[ShouldSandboxResult], Any] | None) -> bool | None:
    if decision.behavior != "ask" or approve is None:
        return None
    answer = approve(decision)
    return bool(await answer if inspect.isawaitable(answer) else answer)
