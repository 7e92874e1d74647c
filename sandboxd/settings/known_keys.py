"""Keys outside the schema: the known ones, and the treatment of unknown ones.

The settings file belongs to another program, which has its own keys. A key that restricts commands is either enforced
(`settings.schema`) or makes every command fail, since a command would do what the file forbids. The names are those of
https://code.claude.com/docs/en/settings-reference and https://json.schemastore.org/claude-code-settings.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from sandboxd.settings.key_table import TABLE, Effect


class UnknownKeyKind(StrEnum):
    """The meaning for commands of a key that is not in the schema."""

    FOREIGN = "foreign"
    """It concerns another part of the program that owns the file."""
    UNSUPPORTED = "unsupported"
    """It would permit something, or shape a permission, and has no effect."""
    RESTRICTING = "restricting"
    """Its name says that it restricts commands, and it is not enforced."""
    UNKNOWN = "unknown"
    """It has no effect."""


_AT_TOP = """$schema additionalDirectories advisorModel agent agentPushNotifEnabled allowAllClaudeAiMcps
    allowedChannelPlugins allowedHttpHookUrls allowedMcpServers allowedProviders allowManagedHooksOnly
    allowManagedMcpServersOnly allowManagedModsOnly alwaysThinkingEnabled apiKeyHelper attribution autoCompactEnabled
    autoCompactWindow autoConnectIde autoContinueAtUsageLimit autoInstallIdeExtension autoMemoryDirectory
    autoMemoryEnabled autoMode autoScrollEnabled autoUpdatesChannel availableModels awaySummaryEnabled awsAuthRefresh
    awsCredentialExport axScreenReader bashEditDiffEnabled bashOutputMaxChars blockedMarketplaces
    browserExternalPageTools channelsEnabled claudeMd claudeMdExcludes cleanupPeriodDays companyAnnouncements
    copyOnSelect crossSessionInbound defaultShell deniedMcpServers desktopSessionCleanupPeriodDays dialogExpiry
    diffTool disableAgentView disableAllHooks disableArtifact disableAutoMode disableBrowserExternalNavigation
    disableBundledSkills disableClaudeAiConnectors disableCommandPluginSources disableDeepLinkRegistration
    disableDesktopLocalSessions disabledMcpjsonServers disableMobileSimulatorTools disableRemoteControl
    disableSideloadFlags disableSkillShellExecution disableWorkflows editorMode effortLevel emojiCompletionEnabled
    enableAllProjectMcpServers enableArtifact enabledMcpjsonServers enabledPlugins enableWorkflows
    enforceAvailableModels env externalEditorContext extraKnownMarketplaces fallbackModel fastMode
    fastModePerSessionOptIn feedbackDrafts feedbackSurveyRate feedbackSurveyState fileCheckpointingEnabled
    fileSuggestion footerLinksRegexes forceLoginGatewayUrl forceLoginMethod forceLoginOrgUUID
    forceRemoteSettingsRefresh gatewayInternalNetworks gcpAuthRefresh hooks httpHookAllowedEnvVars includeCoAuthoredBy
    includeGitInstructions inputNeededNotifEnabled isolatePeerMachines keybindingFlavor language managedMcpServers
    managedSourcesBehavior maxEffortLevel minimumVersion model modelOverrides modelPicker modelPricing modelSettings
    otelHeadersHelper outputStyle parentSettingsBehavior permissionExplainerEnabled plansDirectory pluginConfigs
    pluginSuggestionMarketplaces pluginTrustMessage policyHelper preferredNotifChannel prefersReducedMotion
    processWrapper promptCacheTtl promptSuggestionEnabled prUrlTemplate remote remoteControlAtStartup
    requiredMaximumVersion requiredMinimumVersion respectGitignore respondToBashCommands showClearContextOnPlanAccept
    showThinkingSummaries showTurnDuration skillListingBudgetFraction skillListingMaxDescChars skillOverrides
    skipAutoPermissionPrompt skipDangerousModePermissionPrompt skippedMarketplaces skippedPlugins
    skipWebFetchPreflight spellcheck spinnerTipsEnabled spinnerTipsOverride spinnerVerbs sshConfigs sshHostAllowlist
    statusLine strictKnownMarketplaces strictPluginOnlyCustomization subagentStatusLine syntaxHighlightingDisabled
    teammateMode terminalProgressBarEnabled theme tui useAutoModeDuringPlan viewMode vimMode voice voiceEnabled
    worktree wslInheritsWindowsSettings"""

_IN_PERMISSIONS = """blockWritesOutsideWorkingDirectories defaultMode disableAutoMode skipAutoPermissionPrompt
    skipDangerousModePermissionPrompt"""
"""Modes of that program, and its file tools."""

KNOWN: dict[str, UnknownKeyKind] = {
    **dict.fromkeys(_AT_TOP.split(), UnknownKeyKind.FOREIGN),
    **{f"permissions.{name}": UnknownKeyKind.FOREIGN for name in _IN_PERMISSIONS.split()},
    **dict.fromkeys(("ignorePatterns", "permissions.ignorePatterns"), UnknownKeyKind.RESTRICTING),
    **dict.fromkeys(
        (
            "sandbox.allowNestedUserNamespaces",
            "sandbox.credentials.allowPlaintextInject",
            "sandbox.credentials.awsPairs",
            "sandbox.credentials.sigv4",
            "sandbox.filesystem.disabled",
            "sandbox.network.tlsTerminate",
            "sandbox.ripgrep",
            "sandbox.seccomp",
            "sandbox.socatPath",
        ),
        UnknownKeyKind.UNSUPPORTED,
    ),
}
"""Known keys outside the schema; each stands for the keys below it too."""

_RESTRICTS = re.compile(
    r"deny|deni|only|restrict|disallow|block|forbid|require|strict|prohibit|refuse|reject|readonly", re.IGNORECASE
)
_CLOSING = {key.rpartition(".")[2].lower() for key, row in TABLE.items() if row.effect is Effect.CLOSES}
_MISPLACED = frozenset(filter(_RESTRICTS.search, _CLOSING))
"""Names of keys that restrict anywhere in the file."""
_PERMITS = frozenset(
    key.rpartition(".")[2].lower() for key, row in TABLE.items() if row.effect is Effect.OPENS and row.default is True
)
"""Names of switches that restrict when they are off."""
DEEPEST = 8
"""Levels below a key that are searched for the name of a restriction."""


def kind_of(path: tuple[str, ...], value: Any) -> UnknownKeyKind:
    """Classify a key that is not in the schema, by its path, name and value."""
    for length in range(1, len(path) + 1):
        known = KNOWN.get(".".join(path[:length]))
        if known is not None:
            return known if known is not UnknownKeyKind.RESTRICTING or _is_set(value) else UnknownKeyKind.UNKNOWN
    if any(_is_misplaced(name, inner) for name, inner in ((path[-1], value), *_all_below(value, DEEPEST))):
        return UnknownKeyKind.RESTRICTING
    if not _is_set(value):
        return UnknownKeyKind.UNKNOWN
    if len(path) > 1 and path[0] in ("sandbox", "permissions"):
        names = (path[-1], *_names_below(value, DEEPEST))
        return UnknownKeyKind.RESTRICTING if any(map(_RESTRICTS.search, names)) else UnknownKeyKind.UNKNOWN
    return UnknownKeyKind.UNKNOWN


def kind_of_unsearched(value: Any) -> UnknownKeyKind:
    """Classify an unknown key by its value alone: one that may be a misspelt restriction counts as one."""
    return UnknownKeyKind.RESTRICTING if _is_set(value) or value is False else UnknownKeyKind.UNKNOWN


def restricts(key: str, value: Any) -> bool:
    """Return whether a value of a schema key restricts commands."""
    row = TABLE.get(key)
    if row is None:
        return False
    closes = row.effect is Effect.CLOSES and _is_set(value)
    return closes or (row.effect is Effect.OPENS and row.default is True and value is False)


def _is_misplaced(name: str, value: Any) -> bool:
    """Return whether a restriction of the schema stands in a wrong section."""
    return (name.lower() in _MISPLACED and _is_set(value)) or (name.lower() in _PERMITS and value is False)


def _all_below(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == 0 or not isinstance(value, dict | list):
        return
    for name, inner in value.items() if isinstance(value, dict) else (("", inner) for inner in value):
        yield name, inner
        yield from _all_below(inner, depth - 1)


def _is_set(value: Any) -> bool:
    """Return whether a value is neither off nor empty."""
    return value is not None and value is not False and value != "" and value != [] and value != {}


def _names_below(value: Any, depth: int) -> Iterator[str]:
    """List the keys that are set below a value; deep nesting counts as restricted."""
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        yield "restricted"
        return
    for name, inner in value.items() if isinstance(value, dict) else (("", inner) for inner in value):
        if _is_set(inner):
            yield name
            yield from _names_below(inner, depth - 1)
