"""Keys of the settings file that are not sandboxd's, and how a key that nobody knows is taken.

The file belongs to another program, which has keys of its own. One that restricts shell commands is enforced
(`settings.schema`), or a command that runs under it is refused: it would do what the file forbids. Names are those of
https://code.claude.com/docs/en/settings-reference and https://json.schemastore.org/claude-code-settings.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from sandboxd.settings.key_table import TABLE, Effect


class UnknownKeyKind(StrEnum):
    """What a key that is not in the schema means for commands."""

    FOREIGN = "foreign"
    """It is about another part of the program that owns the file."""
    UNSUPPORTED = "unsupported"
    """It opens something, or says how, and has no effect: without it less is allowed."""
    RESTRICTING = "restricting"
    """It forbids something to commands, as far as its name says, and is not enforced."""
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
"""About modes of that program, and about its file tools alone."""

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
"""Keys that are known and not in the schema, those below one that is listed included."""

_RESTRICTS = re.compile(
    r"deny|deni|only|restrict|disallow|block|forbid|require|strict|prohibit|refuse|reject|readonly", re.IGNORECASE
)
_OURS = {key.rpartition(".")[2].lower() for key, row in TABLE.items() if row.effect is Effect.CLOSES}
_MISPLACED = frozenset(filter(_RESTRICTS.search, _OURS))
"""Names of keys that restrict, wherever in the file they stand."""
_PERMITS = frozenset(
    key.rpartition(".")[2].lower() for key, row in TABLE.items() if row.effect is Effect.OPENS and row.default is True
)
"""Names of switches that restrict when they are off."""
DEEPEST = 8
"""Levels below a key that are looked at for the name of a restriction."""


def kind_of(path: tuple[str, ...], value: Any) -> UnknownKeyKind:
    """What a key that is not in the schema means, by its path in the file, its name and its value."""
    for length in range(1, len(path) + 1):
        known = KNOWN.get(".".join(path[:length]))
        if known is not None:
            return (
                known if known is not UnknownKeyKind.RESTRICTING or _says_something(value) else UnknownKeyKind.UNKNOWN
            )
    if any(_is_misplaced(name, inner) for name, inner in ((path[-1], value), *_all_below(value, DEEPEST))):
        return UnknownKeyKind.RESTRICTING
    if not _says_something(value):
        return UnknownKeyKind.UNKNOWN
    if len(path) > 1 and path[0] in ("sandbox", "permissions"):
        names = (path[-1], *_names_below(value, DEEPEST))
        return UnknownKeyKind.RESTRICTING if any(map(_RESTRICTS.search, names)) else UnknownKeyKind.UNKNOWN
    return UnknownKeyKind.UNKNOWN


def restricts(key: str, value: Any) -> bool:
    """Whether a value of a key of the schema forbids something to commands."""
    row = TABLE.get(key)
    if row is None:
        return False
    closes = row.effect is Effect.CLOSES and _says_something(value)
    return closes or (row.effect is Effect.OPENS and row.default is True and value is False)


def _is_misplaced(name: str, value: Any) -> bool:
    """Whether it is a restriction under its own name, and in a section that it does not belong to."""
    return (name.lower() in _MISPLACED and _says_something(value)) or (name.lower() in _PERMITS and value is False)


def _all_below(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == 0 or not isinstance(value, dict | list):
        return
    for name, inner in value.items() if isinstance(value, dict) else (("", inner) for inner in value):
        yield name, inner
        yield from _all_below(inner, depth - 1)


def _says_something(value: Any) -> bool:
    """A restriction that is off, or a list of them that is empty, restricts nothing."""
    return value is not None and value is not False and value != "" and value != [] and value != {}


def _names_below(value: Any, depth: int) -> Iterator[str]:
    """The keys in a value that say something. What is nested deeper than anybody writes counts as a restriction."""
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        yield "restricted"
        return
    for name, inner in value.items() if isinstance(value, dict) else (("", inner) for inner in value):
        if _says_something(inner):
            yield name
            yield from _names_below(inner, depth - 1)
