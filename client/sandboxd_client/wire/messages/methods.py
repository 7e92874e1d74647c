"""Table of all RPC methods, with their records, and of all notifications."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.check import CheckParams, CheckResult
from sandboxd_client.wire.messages.commands import (
    CommandKillParams,
    CommandKillResult,
    CommandListParams,
    CommandListResult,
)
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult
from sandboxd_client.wire.messages.hello import HelloParams, HelloResult
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
    ExplainParams,
    ExplainResult,
)
from sandboxd_client.wire.messages.prompts import (
    PermissionListParams,
    PermissionListResult,
    PermissionRequest,
    PermissionRequestParams,
    PermissionRequestResult,
    PermissionResolved,
    PermissionResponseParams,
    PermissionResponseResult,
    PermissionRevokeParams,
    PermissionRevokeResult,
    PermissionSubscribeParams,
    PermissionSubscribeResult,
)
from sandboxd_client.wire.messages.sessions import (
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
    ExcludeCommandParams,
    SettingsChangedNotification,
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
    SettingsSubscribeParams,
    SettingsSubscribeResult,
    SettingsTrustParams,
    SettingsTrustResult,
    SettingsUpdateParams,
    SettingsUpdateResult,
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
    ViolationHappened,
    ViolationListParams,
    ViolationListResult,
    ViolationsCleared,
    ViolationStripParams,
    ViolationStripResult,
    ViolationSubscribeParams,
    ViolationSuggestParams,
    ViolationSuggestResult,
)
from sandboxd_client.wire.messages.wrap import WrapOutcomeParams, WrapOutcomeResult, WrapParams, WrapResult

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Method(Generic[P, R]):
    """A method of the RPC interface, as both sides know it."""

    name: str
    params: type[P]
    result: type[R]
    repeatable: bool = True  # repeating the request after a lost connection does no harm
    patient: bool = False  # the answer comes from a user, so it has no time limit


METHODS: dict[str, Method[Any, Any]] = {}
"""Every method by its name, filled by `_row`."""


def _row(
    name: str, params: type[P], result: type[R], *, repeatable: bool = True, patient: bool = False
) -> Method[P, R]:
    METHODS[name] = row = Method(name, params, result, repeatable, patient)
    return row


HELLO = _row("hello", HelloParams, HelloResult)
STATUS = _row("status", StatusParams, StatusResult)
CHECK = _row("check", CheckParams, CheckResult)
METRICS = _row("metrics", MetricsParams, MetricsResult)
RESTART = _row("restart", RestartParams, RestartResult, repeatable=False)
SHUTDOWN = _row("shutdown", ShutdownParams, ShutdownResult, repeatable=False)
SESSION_OPEN = _row("session.open", SessionOpenParams, SessionOpenResult, repeatable=False)
SESSION_JOIN = _row("session.join", SessionJoinParams, SessionJoinResult)
SESSION_UPDATE = _row("session.update", SessionUpdateParams, SessionUpdateResult, repeatable=False)
SESSION_CLOSE = _row("session.close", SessionCloseParams, SessionCloseResult, repeatable=False)
SESSION_LIST = _row("session.list", SessionListParams, SessionListResult)
COMMAND_LIST = _row("command.list", CommandListParams, CommandListResult)
COMMAND_KILL = _row("command.kill", CommandKillParams, CommandKillResult)
SHOULD_SANDBOX = _row("should_sandbox", ShouldSandboxParams, ShouldSandboxResult)
WRAP = _row("wrap", WrapParams, WrapResult)
WRAP_OUTCOME = _row("wrap.outcome", WrapOutcomeParams, WrapOutcomeResult)
PERMISSION_SUBSCRIBE = _row("permission.subscribe", PermissionSubscribeParams, PermissionSubscribeResult)
PERMISSION_RESPOND = _row(
    "sandbox_permission_response", PermissionResponseParams, PermissionResponseResult, repeatable=False
)
PERMISSION_REQUEST = _row(
    "permission.request", PermissionRequestParams, PermissionRequestResult, repeatable=False, patient=True
)
PERMISSION_LIST = _row("permission.list", PermissionListParams, PermissionListResult)
PERMISSION_REVOKE = _row("permission.revoke", PermissionRevokeParams, PermissionRevokeResult, repeatable=False)
VIOLATION_LIST = _row("violation.list", ViolationListParams, ViolationListResult)
VIOLATION_SUBSCRIBE = _row("violation.subscribe", ViolationSubscribeParams, ViolationListResult)
VIOLATION_CLEAR = _row("violation.clear", ViolationClearParams, ViolationClearResult, repeatable=False)
VIOLATION_SUGGEST = _row("violation.suggest", ViolationSuggestParams, ViolationSuggestResult)
VIOLATION_ANNOTATE = _row("violation.annotate", ViolationAnnotateParams, ViolationAnnotateResult)
VIOLATION_STRIP = _row("violation.strip", ViolationStripParams, ViolationStripResult)
SETTINGS_GET = _row("settings.get", SettingsGetParams, SettingsGetResult)
SETTINGS_UPDATE = _row("settings.update", SettingsUpdateParams, SettingsUpdateResult)
SETTINGS_EXCLUDE_COMMAND = _row("settings.exclude_command", ExcludeCommandParams, SettingsUpdateResult)
SETTINGS_TRUST = _row("settings.trust", SettingsTrustParams, SettingsTrustResult)
SETTINGS_RELOAD = _row("settings.reload", SettingsReloadParams, SettingsReloadResult)
SETTINGS_LOCKED = _row("settings.locked", SettingsLockedParams, SettingsLockedResult)
SETTINGS_SUBSCRIBE = _row("settings.subscribe", SettingsSubscribeParams, SettingsSubscribeResult)
SETTINGS_LINT = _row("settings.lint", SettingsLintParams, SettingsLintResult)
SETTINGS_SCHEMA = _row("settings.schema", SettingsSchemaParams, SettingsSchemaResult)
CREDENTIAL_SET = _row("credential.set", CredentialSetParams, CredentialSetResult)
CREDENTIAL_REMOVE = _row("credential.remove", CredentialRemoveParams, CredentialRemoveResult)
CREDENTIAL_LIST = _row("credential.list", CredentialListParams, CredentialListResult)
POLICY_CLOSE_PORTS = _row("policy.close_ports", ClosePortsParams, ClosePortsResult)
POLICY_EXPLAIN = _row("policy.explain", ExplainParams, ExplainResult)
POLICY_EFFECTIVE = _row("policy.effective", EffectiveParams, EffectiveResult)
POLICY_DESCRIBE = _row("policy.describe", DescribeParams, DescribeResult)

# Sent to connections with a subscription.
NOTIFICATIONS: dict[str, type[Any]] = {
    "settings_changed": SettingsChangedNotification,
    "sandbox_permission_request": PermissionRequest,
    "sandbox_permission_resolved": PermissionResolved,
    "sandbox_violation": ViolationHappened,
    "sandbox_violations_cleared": ViolationsCleared,
}
