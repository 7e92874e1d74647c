"""One function per RPC method: arguments in, a `Call` out. Both clients send these, so the methods, their defaults and
the types of their results are written once. No I/O, except that the current directory is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sandboxd_client import __version__
from sandboxd_client.commands import absolute, check_command, sendable, sendable_search_path
from sandboxd_client.errors import InvalidCommand, WrongVersion
from sandboxd_client.wire.messages.check import CheckParams, CheckResult
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult
from sandboxd_client.wire.messages.hello import HelloParams, HelloResult
from sandboxd_client.wire.messages.methods import NOTIFICATIONS
from sandboxd_client.wire.messages.metrics import MetricsParams, MetricsResult
from sandboxd_client.wire.messages.policy import (
    DescribeParams,
    DescribeResult,
    EffectiveParams,
    EffectiveResult,
    ExplainKind,
    ExplainParams,
    ExplainResult,
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
    SessionListParams,
    SessionListResult,
    SessionOpenParams,
    SessionOpenResult,
)
from sandboxd_client.wire.messages.settings import (
    ChangeRecord,
    ExcludeCommandParams,
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
)
from sandboxd_client.wire.messages.wrap import (
    OverridesRecord,
    WrapOutcomeParams,
    WrapOutcomeResult,
    WrapParams,
    WrapResult,
)
from sandboxd_client.wire.params import ParamsError, decode_result, encode_params

R = TypeVar("R")
Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A request to be: `repeatable` when asking again after a lost connection does no harm, `patient` when the answer
    is a person's and may take as long as people take."""

    method: str
    params: Mapping[str, Any]
    result: type[R]
    repeatable: bool = True
    patient: bool = False


def hello(client: str = "sandboxd-client", version: str = __version__) -> Call[HelloResult]:
    return Call("hello", encode_params(HelloParams(client, version)), HelloResult)


def status() -> Call[StatusResult]:
    return Call("status", encode_params(StatusParams()), StatusResult)


def metrics() -> Call[MetricsResult]:
    return Call("metrics", encode_params(MetricsParams()), MetricsResult)


def check() -> Call[CheckResult]:
    return Call("check", encode_params(CheckParams()), CheckResult)


def restart() -> Call[RestartResult]:
    return Call("restart", encode_params(RestartParams()), RestartResult, repeatable=False)


def shutdown(grace_s: float | None = None) -> Call[ShutdownResult]:
    return Call("shutdown", encode_params(ShutdownParams(grace_s)), ShutdownResult, repeatable=False)


def session_open(
    cwd: Path | None = None,
    *,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    permission_mode: PermissionMode | None = None,
    detach: bool = False,
) -> Call[SessionOpenResult]:
    params = SessionOpenParams(
        absolute(cwd), name, None if settings is None else dict(settings), permission_mode, detach
    )
    return Call("session.open", encode_params(params), SessionOpenResult, repeatable=False)


def session_close(session_id: str) -> Call[SessionCloseResult]:
    return Call("session.close", encode_params(SessionCloseParams(session_id)), SessionCloseResult, repeatable=False)


def session_list() -> Call[SessionListResult]:
    return Call("session.list", encode_params(SessionListParams()), SessionListResult)


def should_sandbox(
    command: str,
    *,
    cwd: Path | None = None,
    session_id: str | None = None,
    dangerously_disable_sandbox: bool = False,
    path: str | None = None,
) -> Call[ShouldSandboxResult]:
    if path is None:
        path = sendable_search_path(os.environ)
    params = ShouldSandboxParams(command, session_id, absolute(cwd), dangerously_disable_sandbox, path)
    return Call("should_sandbox", encode_params(params), ShouldSandboxResult)


def wrap(
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
) -> Call[WrapResult]:
    if (command is None) == (argv is None):
        raise InvalidCommand("command_empty", "give either a command (a shell line) or an argv (a list)")
    words = None if argv is None else tuple(os.fspath(word) for word in argv)
    check_command(command, words)
    params = WrapParams(
        command=command,
        argv=words,
        session_id=session_id,
        cwd=absolute(cwd),
        shell=shell,
        env=sendable(os.environ if env is None else env),
        command_id=command_id,
        command_text=command_text,
        overrides=overrides,
    )
    return Call("wrap", encode_params(params), WrapResult)


def wrap_outcome(wrap_id: str, *, learn: bool = False) -> Call[WrapOutcomeResult]:
    return Call("wrap.outcome", encode_params(WrapOutcomeParams(wrap_id, learn)), WrapOutcomeResult)


def permission_subscribe() -> Call[PermissionSubscribeResult]:
    return Call("permission.subscribe", encode_params(PermissionSubscribeParams()), PermissionSubscribeResult)


def permission_respond(
    request_id: str, behavior: Answer, *, scope: Scope = "once", ttl_s: float | None = None
) -> Call[PermissionResponseResult]:
    params = PermissionResponseParams(request_id, behavior, scope, ttl_s)
    return Call("sandbox_permission_response", encode_params(params), PermissionResponseResult, repeatable=False)


def permission_request(
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
) -> Call[PermissionRequestResult]:
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
    )
    return Call("permission.request", encode_params(params), PermissionRequestResult, repeatable=False, patient=True)


def permission_list(session_id: str | None = None) -> Call[PermissionListResult]:
    return Call("permission.list", encode_params(PermissionListParams(session_id)), PermissionListResult)


def permission_revoke(session_id: str, grant_id: str) -> Call[PermissionRevokeResult]:
    params = PermissionRevokeParams(session_id, grant_id)
    return Call("permission.revoke", encode_params(params), PermissionRevokeResult, repeatable=False)


def violation_list(
    *, session_id: str | None = None, command_id: str | None = None, since: str | None = None
) -> Call[ViolationListResult]:
    params = ViolationListParams(session_id, command_id, since)
    return Call("violation.list", encode_params(params), ViolationListResult)


def violation_subscribe(*, session_id: str | None = None, since: str | None = None) -> Call[ViolationListResult]:
    params = ViolationSubscribeParams(session_id, since)
    return Call("violation.subscribe", encode_params(params), ViolationListResult)


def violation_clear(*, session_id: str | None = None) -> Call[ViolationClearResult]:
    params = ViolationClearParams(session_id)
    return Call("violation.clear", encode_params(params), ViolationClearResult, repeatable=False)


def violation_annotate(command_id: str, stderr: str, *, session_id: str | None = None) -> Call[ViolationAnnotateResult]:
    params = ViolationAnnotateParams(command_id, stderr, session_id)
    return Call("violation.annotate", encode_params(params), ViolationAnnotateResult)


def violation_strip(text: str) -> Call[ViolationStripResult]:
    return Call("violation.strip", encode_params(ViolationStripParams(text)), ViolationStripResult)


def settings_get(
    key: str | None = None, *, session_id: str | None = None, cwd: Path | None = None
) -> Call[SettingsGetResult]:
    return Call("settings.get", encode_params(SettingsGetParams(key, session_id, absolute(cwd))), SettingsGetResult)


def settings_reload() -> Call[SettingsReloadResult]:
    return Call("settings.reload", encode_params(SettingsReloadParams()), SettingsReloadResult)


def settings_update(
    changes: Sequence[ChangeRecord],
    *,
    session_id: str | None = None,
    cwd: Path | None = None,
    confirm: bool = False,
    project: bool = False,
) -> Call[SettingsUpdateResult]:
    params = SettingsUpdateParams(tuple(changes), session_id, absolute(cwd), confirm, project)
    return Call("settings.update", encode_params(params), SettingsUpdateResult)


def settings_exclude_command(
    pattern: str,
    *,
    remove: bool = False,
    session_id: str | None = None,
    cwd: Path | None = None,
    confirm: bool = False,
    project: bool = False,
) -> Call[SettingsUpdateResult]:
    params = ExcludeCommandParams(pattern, remove, session_id, absolute(cwd), confirm, project)
    return Call("settings.exclude_command", encode_params(params), SettingsUpdateResult)


def settings_trust(
    action: TrustAction, path: Path | None = None, *, digests: Mapping[str, str] | None = None
) -> Call[SettingsTrustResult]:
    params = SettingsTrustParams(action, absolute(path), dict(digests or {}))
    return Call("settings.trust", encode_params(params), SettingsTrustResult)


def settings_locked(*, session_id: str | None = None, cwd: Path | None = None) -> Call[SettingsLockedResult]:
    params = SettingsLockedParams(session_id, absolute(cwd))
    return Call("settings.locked", encode_params(params), SettingsLockedResult)


def settings_subscribe(*, session_id: str | None = None, cwd: Path | None = None) -> Call[SettingsSubscribeResult]:
    params = SettingsSubscribeParams(session_id, absolute(cwd))
    return Call("settings.subscribe", encode_params(params), SettingsSubscribeResult)


def settings_lint(
    files: Sequence[Path] | None = None, *, source: SettingsSource | None = None, cwd: Path | None = None
) -> Call[SettingsLintResult]:
    paths = None if files is None else tuple(absolute(file) for file in files)
    return Call("settings.lint", encode_params(SettingsLintParams(paths, source, absolute(cwd))), SettingsLintResult)


def settings_schema() -> Call[SettingsSchemaResult]:
    return Call("settings.schema", encode_params(SettingsSchemaParams()), SettingsSchemaResult)


def policy_explain(
    kind: ExplainKind, target: str, *, write: bool = False, session_id: str | None = None, cwd: Path | None = None
) -> Call[ExplainResult]:
    params = ExplainParams(kind, target, write, session_id, absolute(cwd))
    return Call("policy.explain", encode_params(params), ExplainResult)


def policy_effective(*, session_id: str | None = None, cwd: Path | None = None) -> Call[EffectiveResult]:
    return Call("policy.effective", encode_params(EffectiveParams(session_id, absolute(cwd))), EffectiveResult)


def policy_describe(
    *, session_id: str | None = None, cwd: Path | None = None, exceptions: Mapping[str, str] | None = None
) -> Call[DescribeResult]:
    params = DescribeParams(session_id, absolute(cwd), None if exceptions is None else dict(exceptions))
    return Call("policy.describe", encode_params(params), DescribeResult)


@dataclass(frozen=True, slots=True)
class Notification:
    """What the daemon said unasked: the record of `wire.messages` that belongs to its method."""

    method: str
    params: Any


def notification_record(method: str, params: object) -> Notification | None:
    """None for one that this client does not know. Raises WrongVersion when it knows it and does not understand it."""
    kind = NOTIFICATIONS.get(method)
    if kind is None:
        return None
    try:
        return Notification(method, decode_result(kind, params))
    except ParamsError as error:
        problem = f"{error.name or 'it'} should be {error.expected} and is {error.got}"
        raise WrongVersion(f"sandboxd's notification {method} is not understood: {problem}") from error


def result_record(call: Call[R], result: object) -> R:
    """The record of an answer. Raises WrongVersion when it is not one this client understands."""
    try:
        return decode_result(call.result, result)
    except ParamsError as error:
        problem = f"{error.name or 'it'} should be {error.expected} and is {error.got}"
        raise WrongVersion(f"sandboxd's answer to {call.method} is not understood: {problem}") from error
