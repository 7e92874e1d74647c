"""`settings.*`: effective values, changes to local settings, and problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sandboxd_client.records import dataclass, field
from sandboxd_client.wire.messages.origins import OriginRecord

TrustAction = Literal["list", "show", "trust", "remove"]
SettingsSource = Literal["managed", "flag", "local", "user", "project"]


@dataclass(frozen=True, slots=True)
class SettingsFileRecord:
    """A settings file."""

    source: str
    path: str
    state: str  # loaded, absent or broken


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """A problem of a settings file."""

    severity: str  # error or warning
    message: str
    file: str | None = None
    key: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A dotted key with its effective value."""

    key: str
    value: Any
    origins: tuple[OriginRecord, ...] = ()  # one for a scalar, one per item for a list


@dataclass(frozen=True, slots=True)
class IgnoredSetting:
    """A value of a file that does not count, and the reason."""

    key: str
    value: Any
    reason: str
    origin: OriginRecord


@dataclass(frozen=True, slots=True)
class SettingsGetParams:
    """The keys to return."""

    key: str | None = None  # only this key and those below it
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsGetResult:
    generation: int
    values: tuple[SettingValue, ...]
    files: tuple[SettingsFileRecord, ...] = ()
    problems: tuple[SettingsProblem, ...] = ()
    ignored: tuple[IgnoredSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsReloadParams:
    pass


@dataclass(frozen=True, slots=True)
class SettingsReloadResult:
    """The outcome of a reload."""

    generation: int
    changed: bool  # False also where a file is broken; `problems` name it
    problems: tuple[SettingsProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change of one key: `add` and `remove` change one entry of a list."""

    act: Literal["set", "unset", "add", "remove"]
    key: str  # dotted; the prefix `sandbox.` is optional
    value: Any = None


@dataclass(frozen=True, slots=True)
class SettingsUpdateParams:
    """Changes to local settings, all or none."""

    changes: tuple[ChangeRecord, ...]
    session_id: str | None = None  # with `cwd`: the project that the changes are judged in
    cwd: str | None = None
    confirm: bool = False  # the user knows the consequences of a wide rule
    project: bool = False  # write `.claude/settings.local.json` of the project
    preview: bool | None = None  # change nothing: only tell the difference to the file


@dataclass(frozen=True, slots=True)
class SettingsUpdateResult:
    """The outcome of a change."""

    generation: int
    file: str
    written: bool  # False when the file already had the values
    changed: tuple[str, ...] = ()  # keys with a new effective value
    warnings: tuple[str, ...] = ()  # shadowed, void or dangerous changes
    difference: tuple[str, ...] = ()  # of a preview: lines removed (`-`) and added (`+`)


@dataclass(frozen=True, slots=True)
class PermissionUpdate:
    """Rules that a user accepted, as the owner of the file format writes them."""

    type: Literal["addRules"]
    rules: tuple[Any, ...]  # "Bash(docker:*)", or {"toolName": "Bash", "ruleContent": "docker:*"}
    behavior: Literal["allow"] = "allow"
    destination: Literal["localSettings"] | None = None


@dataclass(frozen=True, slots=True)
class ExcludeCommandParams:
    """A pattern to add to the excluded commands, or to remove from them."""

    pattern: str | None = None
    permission_updates: tuple[PermissionUpdate, ...] | None = None  # instead: a pattern of each of their rules
    remove: bool = False
    session_id: str | None = None
    cwd: str | None = None
    confirm: bool = False
    project: bool = False
    preview: bool | None = None


@dataclass(frozen=True, slots=True)
class SettingsTrustParams:
    """A change of trust, or a query."""

    action: TrustAction
    path: str | None = None  # the directory of a project, or one settings file; not for `list`
    digests: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of all files by path, as `show` returned them


@dataclass(frozen=True, slots=True)
class TrustFile:
    """A settings file of a project."""

    path: str
    sha256: str
    state: str  # trusted, changed or untrusted
    difference: tuple[str, ...] = ()  # lines removed and added since it was trusted


@dataclass(frozen=True, slots=True)
class WideningRecord:
    """A value or entry that would widen the policy."""

    key: str
    value: Any
    origin: OriginRecord


@dataclass(frozen=True, slots=True)
class TrustedRecord:
    """A directory with trusted files."""

    directory: str
    files: tuple[str, ...]  # relative to the directory
    trusted_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class SettingsTrustResult:
    """The state of trust after the action."""

    permitted: bool  # False where managed settings forbid trust
    directory: str | None = None
    files: tuple[TrustFile, ...] = ()
    widens: tuple[WideningRecord, ...] = ()
    trusted: tuple[TrustedRecord, ...] = ()  # all records, for `list`
    done: bool = False  # `trust` or `remove` changed a record


@dataclass(frozen=True, slots=True)
class SettingsLockedParams:
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class LockedKey:
    """A key that local settings cannot change."""

    key: str
    reason: str
    origin: OriginRecord | None = None  # the managed value that locks it; None: the key is for managed settings only


@dataclass(frozen=True, slots=True)
class SettingsLockedResult:
    locked: tuple[LockedKey, ...]


@dataclass(frozen=True, slots=True)
class SettingsLintParams:
    """The files to check: those in effect in `cwd`, or the named ones."""

    files: tuple[str, ...] | None = None  # each checked by itself, even where the daemon does not read it
    source: SettingsSource | None = None  # the source to check them as; by default guessed from the path
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsLintResult:
    """The checked files, and their problems."""

    ok: bool  # there are no problems
    files: tuple[str, ...]
    problems: tuple[SettingsProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsSchemaParams:
    pass


@dataclass(frozen=True, slots=True)
class SettingsSchemaResult:
    """The JSON Schema (2020-12) of a settings file."""

    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SettingsSubscribeParams:
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsSubscribeResult:
    """The values in effect; `settings_changed` announces later ones."""

    generation: int
    values: tuple[SettingValue, ...]
    problems: tuple[SettingsProblem, ...] = ()
    broken: str = ""  # why a file is not in effect, with the place; else empty


@dataclass(frozen=True, slots=True)
class SettingsChangedNotification:
    """Notification `settings_changed`, for one subscription."""

    generation: int
    changed: tuple[SettingValue, ...]  # keys with a new effective value
    problems: tuple[SettingsProblem, ...] = ()
    broken: str = ""  # why a file is not in effect; it changes no key
    session_id: str | None = None  # of the subscription, as is `cwd`
    cwd: str | None = None
