"""`settings.get` and `settings.reload`: effective values with their origins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandboxd_client.wire.messages.origins import OriginRecord


@dataclass(frozen=True, slots=True)
class SettingsFile:
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
class SettingsGetParams:
    """`key` limits the answer to one key and those below it."""

    key: str | None = None
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsGetResult:
    generation: int
    values: tuple[SettingValue, ...]
    files: tuple[SettingsFile, ...] = ()
    problems: tuple[SettingsProblem, ...] = ()


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
