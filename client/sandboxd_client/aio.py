"""The client: one method for each RPC method, and the commands that it runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sandboxd_client import calls
from sandboxd_client.aio_connection import AsyncConnector
from sandboxd_client.aio_process import (
    AsyncProcess,
    approved,
    ask_to_run_outside,
    check_streams,
    complete,
    start,
)
from sandboxd_client.calls import Call, Notification, Path
from sandboxd_client.commands import absolute
from sandboxd_client.connection import DEFAULT_TIMEOUT_S
from sandboxd_client.errors import SettingsChanged
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
    """Talks to the daemon of this user.

    It connects at the first call, starts a daemon when none answers (unless `autostart` is False), and connects again
    after a restart of the daemon: a request is then repeated where that can do no harm, else ConnectionLost is raised.
    Several threads, or coroutines of one event loop, may use it at the same time.

    `socket` is the path of the socket (default: see `wire.location`), `timeout` how long an answer may take. With the
    `role` "agent" every connection gives up all powers but those over its own sessions: no settings, no answers to
    questions, no sessions of others, and what it adds to the rules of a session or a call may only tighten.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        autostart: bool = True,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        role: Role = "full",
    ) -> None:
        self._connector = AsyncConnector(socket, autostart=autostart, timeout=timeout, role=role)

    # the connection

    @property
    def socket(self) -> str:
        """The path of the socket. Raises PermissionDenied when the environment names an impossible one."""
        return self._connector.socket

    @property
    def connections(self) -> int:
        """How many connections there have been. The sessions of an earlier connection have ended."""
        return self._connector.connections

    async def connect(self) -> None:
        """Connect now instead of at the first call."""
        await self._connector.connect()

    async def close(self) -> None:
        """Hang up. Sessions of this connection end, with their commands; a later call connects anew."""
        await self._connector.close()

    async def call(self, call: Call[R]) -> R:
        """Send a request of `calls`; the methods below do it for each of them."""
        return await self._connector.call(call)

    def notifications(self, timeout: float | None = None) -> AsyncIterator[Notification]:
        """Yield what the daemon sends to the subscriptions that were made before.

        It ends when nothing came for `timeout` seconds; without a timeout it waits. Raises ConnectionLost when the
        connection is gone, and the subscriptions with it: subscribe again, the answer has the state.
        """
        return self._connector.notifications(timeout)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._connector.path or 'the default socket'}>"

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
        """Ask the daemon to end. It ends its sessions first; `starting.stop_daemon` also waits for that."""
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
        """A session as a context manager, which closes it at its end. Its methods are the client's, in it."""
        from sandboxd_client.aio_session import AsyncSession

        opening = calls.session_open(cwd, name=name, settings=settings, permission_mode=permission_mode, detach=detach)
        return AsyncSession(self, opening)

    async def spawn(self, command: Command, **options: Unpack[SpawnOptions]) -> AsyncProcess:
        """Start a command in the sandbox: a string is a shell line, a list a program with its arguments.

        Takes the keywords of subprocess.Popen that make sense here, and those of SpawnOptions.
        """
        check_options(options, SpawnOptions, "spawn")
        check_streams(options)
        return await start(await self._launch(command, options), options, self.wrap_outcome)

    async def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        """Run a command in the sandbox and wait for its end, as subprocess.run does, with its keywords.

        It takes those of SpawnOptions too. Raises SandboxSetupError when the sandbox could not be set up and nothing
        was run; with `decide=True` CommandDenied and ApprovalRequired; subprocess.TimeoutExpired, CommandFailed as in
        subprocess. With `on_violation="ask"` the result may be that of a second run outside the sandbox: `override`
        tells. To interrupt or cancel it ends the command, and withdraws that question.
        """
        check_options(options, RunOptions, "run")
        ask = wants_question(options)
        input, timeout, check, spawning = run_arguments(options)
        process: AsyncProcess | None = None
        for left in reversed(range(WRAPS_TRIED)):
            process = await start(await self._launch(command, spawning), spawning, self.wrap_outcome, after=process)
            try:
                done = await complete(process, input, timeout)
                break
            except SettingsChanged:
                if not left:
                    raise
        self._connector.remember(done)
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
            check_decision(decision, await approved(decision, options.get("approve")))
            if not decision.sandboxed:
                return bare_launch(command, options, absolute(arguments.get("cwd")), decision)
        elif wish:
            raise ValueError("dangerously_disable_sandbox needs decide=True: only a decision lets a command run bare")
        return wrapped_launch(command, options, await self.wrap(**arguments), decision)

