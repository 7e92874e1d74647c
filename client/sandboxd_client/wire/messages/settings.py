"""`settings.*`: effective values with their origins, changes to local settings, and what is wrong with files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sandboxd_client.wire.messages.origins import OriginRecord

TrustAction = Literal["list", "show", "trust", "remove"]
SettingsSource = Literal["managed", "flag", "local", "user", "project"]


@dataclass(frozen=True, slots=True)
class SettingsFileRecord:
    """`state` is one of loaded, absent, broken."""

    source: str
    path: str
    state: str


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """`severity` is error or warning."""

    severity: str
    message: str
    file: str | None = None
    key: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A dotted key, its effective value, and where it came from: one origin for a scalar, one per item for a list."""

    key: str
    value: Any
    origins: tuple[OriginRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class IgnoredSetting:
    """A value that stands in a file and does not count, with the reason."""

    key: str
    value: Any
    reason: str
    origin: OriginRecord


@dataclass(frozen=True, slots=True)
class SettingsGetParams:
    """`key` limits the answer to one key and those below it."""

    key: str | None = None
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
    """`changed` is False when the effective settings stayed as they were, also because a file is broken: then the
    problems say so."""

    generation: int
    changed: bool
    problems: tuple[SettingsProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change of one key: `set` it to `value`, `unset` it, `add` the entry `value` to its list, `remove` that. The
    key is dotted; `sandbox.` in front may be left out."""

    act: Literal["set", "unset", "add", "remove"]
    key: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class SettingsUpdateParams:
    """All changes are made, or none. `session_id` and `cwd` say in which project they are judged; they are written to
    the user's local settings, or with `project` to that project's `.claude/settings.local.json`. `confirm` says that
    a person knows what a wide rule gives away."""

    changes: tuple[ChangeRecord, ...]
    session_id: str | None = None
    cwd: str | None = None
    confirm: bool = False
    project: bool = False


@dataclass(frozen=True, slots=True)
class SettingsUpdateResult:
    """`written` is False when the file said so already. `changed` are the keys whose effective value is another one
    now, `warnings` why one is not: another file has precedence, or a rule is pointless or dangerous."""

    generation: int
    file: str
    written: bool
    changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExcludeCommandParams:
    """`pattern` is added to the excluded commands, or taken out of them; `confirm` and `project` as for changes."""

    pattern: str
    remove: bool = False
    session_id: str | None = None
    cwd: str | None = None
    confirm: bool = False
    project: bool = False


@dataclass(frozen=True, slots=True)
class SettingsTrustParams:
    """`path` is the directory of a project, or one settings file; `list` needs none. To `trust`, `digests` are the
    SHA-256 of all files by their paths, as `show` gave them: what a person saw is what is recorded."""

    action: TrustAction
    path: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrustFile:
    """`state` is one of trusted, changed, untrusted; `difference` are the lines removed and added since it was
    trusted."""

    path: str
    sha256: str
    state: str
    difference: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WideningRecord:
    """One value or entry that would widen what commands may do."""

    key: str
    value: Any
    origin: OriginRecord


@dataclass(frozen=True, slots=True)
class TrustedRecord:
    """A directory with trusted files (relative to it); `trusted_at` in seconds since the epoch."""

    directory: str
    files: tuple[str, ...]
    trusted_at: float


@dataclass(frozen=True, slots=True)
class SettingsTrustResult:
    """`permitted` is False when managed settings forbid trust. `trusted` are all records (`list`); `done` says whether
    `trust` or `remove` changed something."""

    permitted: bool
    directory: str | None = None
    files: tuple[TrustFile, ...] = ()
    widens: tuple[WideningRecord, ...] = ()
    trusted: tuple[TrustedRecord, ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class SettingsLockedParams:
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class LockedKey:
    """`origin` is the managed value that locks it, None where the key is for managed settings only."""

    key: str
    reason: str
    origin: OriginRecord | None = None


@dataclass(frozen=True, slots=True)
class SettingsLockedResult:
    locked: tuple[LockedKey, ...]


@dataclass(frozen=True, slots=True)
class SettingsLintParams:
    """Without `files` all files that count in `cwd` are looked at together. Named ones are looked at one by one, also
    those that the daemon does not read; `source` says as what, and is guessed from the path without it."""

    files: tuple[str, ...] | None = None
    source: SettingsSource | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsLintResult:
    """`ok` is True when there is nothing to say. `files` are those that were looked at."""

    ok: bool
    files: tuple[str, ...]
    problems: tuple[SettingsProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsSchemaParams:
    pass


@dataclass(frozen=True, slots=True)
class SettingsSchemaResult:
    """`schema` is a JSON Schema (2020-12) of a settings file."""

    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SettingsSubscribeParams:
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsSubscribeResult:
    """What holds now. Every later change comes as a notification `settings_changed` (`SettingsChangedNotification`), as
    long as the connection lasts. `broken` says why the files are not in force as they stand, with the place; it is
    empty when they are."""

    generation: int
    values: tuple[SettingValue, ...]
    problems: tuple[SettingsProblem, ...] = ()
    broken: str = ""


@dataclass(frozen=True, slots=True)
class SettingsChangedNotification:
    """The notification `settings_changed`. `changed` are the keys with another effective value, as they are now;
    `session_id` and `cwd` are those of the subscription. A file that broke changes no key, and is told in `broken`."""

    generation: int
    changed: tuple[SettingValue, ...]
    problems: tuple[SettingsProblem, ...] = ()
    broken: str = ""
    session_id: str | None = None
    cwd: str | None = None
