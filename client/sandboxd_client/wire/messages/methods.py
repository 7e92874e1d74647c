"""Every method with the record of its parameters and of its result, and every notification, in one screen."""

from __future__ import annotations

from typing import Any

from sandboxd_client.wire.messages.check import CheckParams, CheckResult
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult
from sandboxd_client.wire.messages.hello import HelloParams, HelloResult
from sandboxd_client.wire.messages.metrics import MetricsParams, MetricsResult
from sandboxd_client.wire.messages.policy import (
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
    SessionListParams,
    SessionListResult,
    SessionOpenParams,
    SessionOpenResult,
)
from sandboxd_client.wire.messages.settings import (
    ExcludeCommandParams,
    SettingsChanged,
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
)
from sandboxd_client.wire.messages.wrap import WrapOutcomeParams, WrapOutcomeResult, WrapParams, WrapResult

METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    "hello": (HelloParams, HelloResult),
    "status": (StatusParams, StatusResult),
    "check": (CheckParams, CheckResult),
    "metrics": (MetricsParams, MetricsResult),
    "restart": (RestartParams, RestartResult),
    "shutdown": (ShutdownParams, ShutdownResult),
    "session.open": (SessionOpenParams, SessionOpenResult),
    "session.close": (SessionCloseParams, SessionCloseResult),
    "session.list": (SessionListParams, SessionListResult),
    "should_sandbox": (ShouldSandboxParams, ShouldSandboxResult),
    "wrap": (WrapParams, WrapResult),
    "wrap.outcome": (WrapOutcomeParams, WrapOutcomeResult),
    "permission.subscribe": (PermissionSubscribeParams, PermissionSubscribeResult),
    "sandbox_permission_response": (PermissionResponseParams, PermissionResponseResult),
    "permission.request": (PermissionRequestParams, PermissionRequestResult),
    "permission.list": (PermissionListParams, PermissionListResult),
    "permission.revoke": (PermissionRevokeParams, PermissionRevokeResult),
    "violation.list": (ViolationListParams, ViolationListResult),
    "violation.subscribe": (ViolationSubscribeParams, ViolationListResult),
    "violation.clear": (ViolationClearParams, ViolationClearResult),
    "violation.annotate": (ViolationAnnotateParams, ViolationAnnotateResult),
    "violation.strip": (ViolationStripParams, ViolationStripResult),
    "settings.get": (SettingsGetParams, SettingsGetResult),
    "settings.update": (SettingsUpdateParams, SettingsUpdateResult),
    "settings.exclude_command": (ExcludeCommandParams, SettingsUpdateResult),
    "settings.trust": (SettingsTrustParams, SettingsTrustResult),
    "settings.reload": (SettingsReloadParams, SettingsReloadResult),
    "settings.locked": (SettingsLockedParams, SettingsLockedResult),
    "settings.subscribe": (SettingsSubscribeParams, SettingsSubscribeResult),
    "settings.lint": (SettingsLintParams, SettingsLintResult),
    "settings.schema": (SettingsSchemaParams, SettingsSchemaResult),
    "policy.explain": (ExplainParams, ExplainResult),
    "policy.effective": (EffectiveParams, EffectiveResult),
    "policy.describe": (DescribeParams, DescribeResult),
}

# What the daemon sends unasked, to whoever subscribed.
NOTIFICATIONS: dict[str, type[Any]] = {
    "settings_changed": SettingsChanged,
    "sandbox_permission_request": PermissionRequest,
    "sandbox_permission_resolved": PermissionResolved,
    "sandbox_violation": ViolationHappened,
    "sandbox_violations_cleared": ViolationsCleared,
}
