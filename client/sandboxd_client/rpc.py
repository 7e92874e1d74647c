# Generated from aio_rpc.py by ./dev generate: change that one.
"""The RPC methods as methods of the client."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sandboxd_client import __version__
from sandboxd_client.errors import InvalidCommand
from sandboxd_client.running.commands import (
    Path,
    absolute,
    check_command,
    is_in_sandbox,
    sendable,
    sendable_search_path,
    sendable_settings,
)
from sandboxd_client.wire.messages import methods
from sandboxd_client.wire.messages.check import CheckParams, CheckResult
from sandboxd_client.wire.messages.commands import (
    CommandKillParams,
    CommandKillResult,
    CommandListParams,
    CommandListResult,
)
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult
from sandboxd_client.wire.messages.hello import HelloParams, HelloResult
from sandboxd_client.wire.messages.methods import Method
from sandboxd_client.wire.messages.metrics import MetricsParams, MetricsResult
from sandboxd_client.wire.messages.policy import (
    ClosePortsParams,
    ClosePortsResult,
    CredentialListParams,
    CredentialListResult,
    CredentialRemoveParams,
    CredentialRemoveResult,
    CredentialSetParams,
    CredentialSetResult,
    DescribeParams,
    DescribeResult,
    EffectiveParams,
    EffectiveResult,
    ExplainKind,
    ExplainParams,
    ExplainResult,
    Style,
)
from sandboxd_client.wire.messages.prompts import (
    Answer,
    PermissionListParams,
    PermissionListResult,
    PermissionRequestParams,
    PermissionRequestResult,
    PermissionResponseParams,
    PermissionResponseResult,
    PermissionRevokeParams,
    PermissionRevokeResult,
    PermissionSubscribeParams,
    PermissionSubscribeResult,
    PromptKind,
    Scope,
)
from sandboxd_client.wire.messages.sessions import (
    PermissionMode,
    SessionCloseParams,
    SessionCloseResult,
    SessionJoinParams,
    SessionJoinResult,
    SessionListParams,
    SessionListResult,
    SessionOpenParams,
    SessionOpenResult,
    SessionUpdateParams,
    SessionUpdateResult,
)
from sandboxd_client.wire.messages.settings import (
    ChangeRecord,
    ExcludeCommandParams,
    PermissionUpdate,
    SettingsGetParams,
    SettingsGetResult,
    SettingsLintParams,
    SettingsLintResult,
    SettingsLockedParams,
    SettingsLockedResult,
    SettingsReloadParams,
    SettingsReloadResult,
    SettingsSchemaParams,
    SettingsSchemaResult,
    SettingsSource,
    SettingsSubscribeParams,
    SettingsSubscribeResult,
    SettingsTrustParams,
    SettingsTrustResult,
    SettingsUpdateParams,
    SettingsUpdateResult,
    TrustAction,
)
from sandboxd_client.wire.messages.status import (
    RestartParams,
    RestartResult,
    ShutdownParams,
    ShutdownResult,
    StatusParams,
    StatusResult,
)
from sandboxd_client.wire.messages.violations import (
    ViolationAnnotateParams,
    ViolationAnnotateResult,
    ViolationClearParams,
    ViolationClearResult,
    ViolationListParams,
    ViolationListResult,
    ViolationStripParams,
    ViolationStripResult,
    ViolationSubscribeParams,
    ViolationSuggestParams,
    ViolationSuggestResult,
)
from sandboxd_client.wire.messages.wrap import (
    OverridesRecord,
    WrapOutcomeParams,
    WrapOutcomeResult,
    WrapParams,
    WrapResult,
)

Settings = Mapping[str, Any] | Path
"""Settings of a call: an object, or the path of a file."""
P = TypeVar("P")
R = TypeVar("R")


def opening(
    cwd: Path | None,
    name: str | None,
    settings: Settings | None,
    permission_mode: PermissionMode | None,
    *,
    detach: bool,
) -> SessionOpenParams:
    """Return the parameters of `session.open`, with absolute paths."""
    return SessionOpenParams(absolute(cwd), name, sendable_settings(settings), permission_mode, detach)


class RpcMethods:
    """One method for each RPC method, sent by `call` of the client."""

    def call(self, method: Method[P, R], params: P) -> R:
        raise NotImplementedError

    def hello(self) -> HelloResult:
        return self.call(methods.HELLO, HelloParams("sandboxd-client", __version__))

    def status(self) -> StatusResult:
        return self.call(methods.STATUS, StatusParams())

    def check(self) -> CheckResult:
        return self.call(methods.CHECK, CheckParams())

    def metrics(self) -> MetricsResult:
        return self.call(methods.METRICS, MetricsParams())

    def restart(self, interpreter: str | None = None) -> RestartResult:
        """Re-execute the daemon, in another installation where its interpreter is given; everything continues."""
        return self.call(methods.RESTART, RestartParams(interpreter))

    def shutdown(self, grace_s: float | None = None) -> ShutdownResult:
        """Ask the daemon to end; `starting.stop_daemon` also waits for that."""
        return self.call(methods.SHUTDOWN, ShutdownParams(grace_s))

    def session_open(
        self,
        cwd: Path | None = None,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        permission_mode: PermissionMode | None = None,
        detach: bool = False,
    ) -> SessionOpenResult:
        params = opening(cwd, name, settings, permission_mode, detach=detach)
        return self.call(methods.SESSION_OPEN, params)

    def session_update(
        self,
        session_id: str,
        settings: Settings | None = None,
        *,
        changes: Sequence[ChangeRecord] | None = None,
        confirm: bool = False,
    ) -> SessionUpdateResult:
        """Give a live session other settings, or change some of its own; they hold at once."""
        wanted = None if changes is None else tuple(changes)
        params = SessionUpdateParams(session_id, sendable_settings(settings), wanted, confirm)
        return self.call(methods.SESSION_UPDATE, params)

    def session_join(self, cwd: Path | None = None, *, key: str | None = None) -> SessionJoinResult:
        """Return the session of this key, or of the agent that has started this process."""
        return self.call(methods.SESSION_JOIN, SessionJoinParams(absolute(cwd), key))

    def session_close(self, session_id: str) -> SessionCloseResult:
        return self.call(methods.SESSION_CLOSE, SessionCloseParams(session_id))

    def session_list(self) -> SessionListResult:
        return self.call(methods.SESSION_LIST, SessionListParams())

    def command_list(self, *, session_id: str | None = None) -> CommandListResult:
        """Return the commands that run."""
        return self.call(methods.COMMAND_LIST, CommandListParams(session_id))

    def command_kill(self, command_id: str, *, grace_s: float | None = None) -> CommandKillResult:
        """End a running command and everything it has started."""
        return self.call(methods.COMMAND_KILL, CommandKillParams(command_id, grace_s))

    def should_sandbox(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        session_id: str | None = None,
        dangerously_disable_sandbox: bool = False,
        dangerouslyDisableSandbox: bool = False,
        path: str | None = None,
        is_sandbox: bool | None = None,
    ) -> ShouldSandboxResult:
        """Return the decision; `path` and `is_sandbox` are by default $PATH and $IS_SANDBOX."""
        params = ShouldSandboxParams(
            command,
            session_id,
            absolute(cwd),
            dangerously_disable_sandbox or dangerouslyDisableSandbox,
            sendable_search_path(os.environ) if path is None else path,
            is_in_sandbox() if is_sandbox is None else is_sandbox,
        )
        return self.call(methods.SHOULD_SANDBOX, params)

    def wrap(
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
        prepared: str | None = None,
        given: str | None = None,
    ) -> WrapResult:
        """Return the launch spec of a command. It always wraps."""
        if (command is None) == (argv is None):
            raise InvalidCommand("command_empty", "give either a command (a shell line) or an argv (a list)")
        words = None if argv is None else tuple(os.fspath(word) for word in argv)
        check_command(command, words)
        variables = os.environ if env is None else env
        path = sendable_search_path(variables)
        params = WrapParams(
            command=command,
            argv=words,
            session_id=session_id,
            cwd=absolute(cwd),
            shell=shell,
            env={**sendable(variables), **({"PATH": path} if path else {})},  # else the daemon would look it up
            command_id=command_id,
            command_text=command_text,
            overrides=overrides,
            prepared=prepared,
            given=given,
        )
        return self.call(methods.WRAP, params)

    def wrap_outcome(self, wrap_id: str, *, learn: bool = False) -> WrapOutcomeResult:
        return self.call(methods.WRAP_OUTCOME, WrapOutcomeParams(wrap_id, learn))

    def permission_subscribe(self, *, original_names: bool = False, watch: bool = False) -> PermissionSubscribeResult:
        """Return the open prompts; `notifications` has later ones. No prompt waits for one that only watches."""
        return self.call(methods.PERMISSION_SUBSCRIBE, PermissionSubscribeParams(original_names, watch or None))

    def permission_respond(
        self,
        request_id: str,
        behavior: Answer,
        *,
        scope: Scope = "once",
        ttl_s: float | None = None,
        confirm: bool = False,
        pattern: str | None = None,
    ) -> PermissionResponseResult:
        """Answer a prompt. Raises RpcError, such as `question_closed`."""
        params = PermissionResponseParams(request_id, behavior, scope, ttl_s, confirm or None, pattern)
        return self.call(methods.PERMISSION_RESPOND, params)

    def permission_request(
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
        search_path: str | None = None,
        is_sandbox: bool | None = None,
    ) -> PermissionRequestResult:
        """Ask the user, without a time limit; deny at once without a subscriber."""
        params = PermissionRequestParams(
            kind=kind,
            session_id=session_id,
            cwd=absolute(cwd),
            host=host,
            port=port,
            path=None if path is None else absolute(path),
            write=write,
            command=command,
            command_id=command_id,
            reason=reason,
            search_path=search_path,
            is_sandbox=is_in_sandbox() if is_sandbox is None else is_sandbox,
        )
        return self.call(methods.PERMISSION_REQUEST, params)

    def permission_list(self, session_id: str | None = None) -> PermissionListResult:
        """Return the grants and open prompts of one session, or of all."""
        return self.call(methods.PERMISSION_LIST, PermissionListParams(session_id))

    def permission_revoke(self, session_id: str, grant_id: str) -> PermissionRevokeResult:
        """Revoke a grant; connections that depend on it are cut."""
        params = PermissionRevokeParams(session_id, grant_id)
        return self.call(methods.PERMISSION_REVOKE, params)

    def violation_list(
        self, *, session_id: str | None = None, command_id: str | None = None, since: str | None = None
    ) -> ViolationListResult:
        """Return violations of a session, a command or all, after a cursor."""
        params = ViolationListParams(session_id, command_id, since)
        return self.call(methods.VIOLATION_LIST, params)

    def violation_subscribe(self, *, session_id: str | None = None, since: str | None = None) -> ViolationListResult:
        """Return violations; `notifications` has later ones."""
        params = ViolationSubscribeParams(session_id, since)
        return self.call(methods.VIOLATION_SUBSCRIBE, params)

    def violation_clear(self, *, session_id: str | None = None) -> ViolationClearResult:
        params = ViolationClearParams(session_id)
        return self.call(methods.VIOLATION_CLEAR, params)

    def violation_suggest(self, violation_id: int) -> ViolationSuggestResult:
        """Return the changes of settings that open what was refused."""
        return self.call(methods.VIOLATION_SUGGEST, ViolationSuggestParams(violation_id))

    def violation_annotate(
        self, command_id: str, stderr: str, *, session_id: str | None = None
    ) -> ViolationAnnotateResult:
        """Return a standard error with a block of the command's violations."""
        params = ViolationAnnotateParams(command_id, stderr, session_id)
        return self.call(methods.VIOLATION_ANNOTATE, params)

    def violation_strip(self, text: str) -> ViolationStripResult:
        """Return the text without that block."""
        return self.call(methods.VIOLATION_STRIP, ViolationStripParams(text))

    def settings_get(
        self, key: str | None = None, *, session_id: str | None = None, cwd: Path | None = None
    ) -> SettingsGetResult:
        return self.call(methods.SETTINGS_GET, SettingsGetParams(key, session_id, absolute(cwd)))

    def settings_reload(self) -> SettingsReloadResult:
        return self.call(methods.SETTINGS_RELOAD, SettingsReloadParams())

    def settings_update(
        self,
        changes: Sequence[ChangeRecord],
        *,
        session_id: str | None = None,
        cwd: Path | None = None,
        confirm: bool = False,
        project: bool = False,
        preview: bool = False,
    ) -> SettingsUpdateResult:
        """Change local settings, all or none; with `preview` only tell the difference. Raises RpcError."""
        params = SettingsUpdateParams(tuple(changes), session_id, absolute(cwd), confirm, project, preview or None)
        return self.call(methods.SETTINGS_UPDATE, params)

    def settings_exclude_command(
        self,
        pattern: str | None = None,
        *,
        permission_updates: Sequence[PermissionUpdate] | None = None,
        remove: bool = False,
        session_id: str | None = None,
        cwd: Path | None = None,
        confirm: bool = False,
        project: bool = False,
        preview: bool = False,
    ) -> SettingsUpdateResult:
        updates = None if permission_updates is None else tuple(permission_updates)
        where = absolute(cwd)
        params = ExcludeCommandParams(pattern, updates, remove, session_id, where, confirm, project, preview or None)
        return self.call(methods.SETTINGS_EXCLUDE_COMMAND, params)

    def settings_trust(
        self, action: TrustAction, path: Path | None = None, *, digests: Mapping[str, str] | None = None
    ) -> SettingsTrustResult:
        """List, show, trust or remove the settings files of a project."""
        params = SettingsTrustParams(action, absolute(path), dict(digests or {}))
        return self.call(methods.SETTINGS_TRUST, params)

    def settings_locked(self, *, session_id: str | None = None, cwd: Path | None = None) -> SettingsLockedResult:
        params = SettingsLockedParams(session_id, absolute(cwd))
        return self.call(methods.SETTINGS_LOCKED, params)

    def settings_subscribe(self, *, session_id: str | None = None, cwd: Path | None = None) -> SettingsSubscribeResult:
        """Return the values in effect; `notifications` has later ones."""
        params = SettingsSubscribeParams(session_id, absolute(cwd))
        return self.call(methods.SETTINGS_SUBSCRIBE, params)

    def settings_lint(
        self, files: Sequence[Path] | None = None, *, source: SettingsSource | None = None, cwd: Path | None = None
    ) -> SettingsLintResult:
        paths = None if files is None else tuple(absolute(file) for file in files)
        return self.call(methods.SETTINGS_LINT, SettingsLintParams(paths, source, absolute(cwd)))

    def settings_schema(self) -> SettingsSchemaResult:
        return self.call(methods.SETTINGS_SCHEMA, SettingsSchemaParams())

    def credential_set(self, name: str, value: str) -> CredentialSetResult:
        """Give the daemon the value of `env:NAME`."""
        return self.call(methods.CREDENTIAL_SET, CredentialSetParams(name, value))

    def credential_remove(self, name: str) -> CredentialRemoveResult:
        return self.call(methods.CREDENTIAL_REMOVE, CredentialRemoveParams(name))

    def credential_list(self) -> CredentialListResult:
        """Return the entries of `sandbox.credentials.inject`, without values."""
        return self.call(methods.CREDENTIAL_LIST, CredentialListParams())

    def policy_close_ports(self, ports: Sequence[int], *, page: str = "") -> ClosePortsResult:
        """Close ports of this machine for every command until the connection ends."""
        return self.call(methods.POLICY_CLOSE_PORTS, ClosePortsParams(tuple(ports), page))

    def policy_explain(
        self,
        kind: ExplainKind,
        target: str,
        *,
        write: bool = False,
        session_id: str | None = None,
        cwd: Path | None = None,
    ) -> ExplainResult:
        inside = is_in_sandbox() if kind == "command" else None
        params = ExplainParams(kind, target, write, session_id, absolute(cwd), inside)
        return self.call(methods.POLICY_EXPLAIN, params)

    def policy_effective(self, *, session_id: str | None = None, cwd: Path | None = None) -> EffectiveResult:
        return self.call(methods.POLICY_EFFECTIVE, EffectiveParams(session_id, absolute(cwd)))

    def policy_describe(
        self,
        *,
        session_id: str | None = None,
        cwd: Path | None = None,
        exceptions: Mapping[str, str] | None = None,
        flag_name: str | None = None,
        style: Style | None = None,
        examples: bool | None = None,
    ) -> DescribeResult:
        """Return the restrictions in words for a model, whose tool calls its flag for a run outside `flag_name`."""
        known = None if exceptions is None else dict(exceptions)
        params = DescribeParams(session_id, absolute(cwd), known, flag_name, style, examples)
        return self.call(methods.POLICY_DESCRIBE, params)
