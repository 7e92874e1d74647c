"""Changes of a settings file as values. Pure.

`check_change` refuses a change that is not permitted; `apply_change` makes it in a text."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from sandboxd.errors import CallerError
from sandboxd.settings.jsonc_edit import add_entry, remove_entry, remove_key, set_value
from sandboxd.settings.key_table import TABLE
from sandboxd.settings.layer import layer_from_values, nearest_key
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Severity
from sandboxd_client.records import dataclass


class Act(StrEnum):
    SET = "set"
    UNSET = "unset"
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a dotted key; `value` is one entry for ADD and REMOVE."""

    act: Act
    key: str
    value: Any = None

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))


def full_key(name: str) -> str:
    """Return the dotted key of a name. Raises `CallerError` with the nearest key."""
    for candidate in (name, f"sandbox.{name}"):
        if candidate in TABLE:
            return candidate
    begins_at_top = name.partition(".")[0] in {key.partition(".")[0] for key in TABLE}
    for candidate in (name, f"sandbox.{name}"):
        if any(key.startswith(f"{candidate}.") for key in TABLE):
            message, example = f"cannot set {name!r} as a whole: it is a section", _first_below(candidate)
            raise CallerError("settings_unknown_key", message, hint=f"name a key of it, such as {example}")
    nearest = nearest_key(name if begins_at_top else f"sandbox.{name}")
    raise CallerError(
        "settings_unknown_key",
        f"unknown setting {name!r}",
        hint=f"did you mean {nearest}?" if nearest else "see: sandboxd settings show",
    )


def _first_below(section: str) -> str:
    return next(key for key in TABLE if key.startswith(f"{section}."))


def parse_value(text: str) -> Any:
    """Parse a value of a command line: JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_change(settings: Settings, change: Change) -> None:
    """Refuse a change of a locked or unknown key, or to a value of the wrong type.

    Raises `CallerError` (`settings_locked`, `settings_unknown_key`, `settings_wrong_type`)."""
    row = TABLE.get(change.key)
    if row is None:
        full_key(change.key)
    lock = settings.locked(change.key)
    if lock is not None:
        where = f" ({lock.origin})" if lock.origin else ""
        raise CallerError(
            "settings_locked",
            f"cannot change {change.key}: {lock.reason}{where}",
            hint="ask the administrator of this machine",
            data={"key": change.key},
        )
    if change.act is Act.UNSET:
        return
    value = [change.value] if change.act in (Act.ADD, Act.REMOVE) else change.value
    nested: Any = value
    for step in reversed(change.path):
        nested = {step: nested}
    for problem in layer_from_values(nested, Source.LOCAL).problems:
        if problem.severity is Severity.ERROR and change.act is not Act.REMOVE:
            raise CallerError(problem.slug, problem.message, hint=problem.hint, data={"key": change.key})


def apply_change(text: str, change: Change) -> str:
    """Return the text after the change. Raises `SettingsError` for a broken text."""
    match change.act:
        case Act.SET:
            return set_value(text, change.path, change.value)
        case Act.UNSET:
            return remove_key(text, change.path)
        case Act.ADD:
            return add_entry(text, change.path, change.value)
        case Act.REMOVE:
            return remove_entry(text, change.path, change.value)


def apply_changes(text: str, changes: tuple[Change, ...]) -> str:
    for change in changes:
        text = apply_change(text, change)
    return text
