"""Changes to local settings: checked, lossless, and in force when answered."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandboxd.daemon.policies import Policies, Project
from sandboxd.daemon.settings.trusting import Trusting
from sandboxd.errors import CallerError, SettingsError
from sandboxd.policy.commands.exclusion import bare_pattern
from sandboxd.policy.edit_checks import check_rule_change, wide_changes
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.edits import Act, Change, apply_changes, full_key
from sandboxd.settings.files.trust import difference, real_path
from sandboxd.settings.files.writing import edit_file
from sandboxd.settings.key_table import TABLE
from sandboxd.settings.merge import Settings, changed_keys
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass

__all__ = ["Change", "Changed", "change_of", "change_project", "change_settings", "excluding", "without_effect"]


EXCLUDED = "sandbox.excludedCommands"


@dataclass(frozen=True, slots=True)
class Changed:
    """Result of a change.

    `written` is False when the file already had it. `keys` have another effective value than before. `warnings` are
    sentences about a dangerous or pointless rule, or a change without effect.
    `difference` has the lines of a preview."""

    file: str
    written: bool
    generation: int
    keys: tuple[str, ...]
    warnings: tuple[str, ...]
    difference: tuple[str, ...] = ()


def change_of(act: str, key: str, value: Any = None) -> Change:
    """Return a change; `act` is one of set, unset, add, remove."""
    return Change(Act(act), key, value)


def excluding(pattern: str, *, remove: bool = False) -> Change:
    """Return the change that excludes commands from the sandbox, or its inverse."""
    return Change(Act.REMOVE if remove else Act.ADD, EXCLUDED, pattern)


async def change_settings(
    policies: Policies,
    changes: Sequence[Change],
    session_id: str | None,
    directory: str | None,
    *,
    confirmed: bool = False,
    preview: bool = False,
) -> Changed:
    """Make all changes in the local settings file, or none; they are then in force. A `preview` changes nothing.

    `confirmed` means that the user knows what a wide rule gives away. Raises SettingsError when the file cannot be
    changed, CallerError `confirmation_needed` for a wide rule, `settings_locked`, `settings_unknown_key`,
    `settings_wrong_type`, `settings_other_source`, and the slugs of rules that cannot be used."""
    project, _ = policies.snapshot(session_id, directory)
    file = project.locations.local_file

    async def write(change: Callable[[str], str]) -> bool:
        return await asyncio.to_thread(edit_file, file, change, policies.places.lock_directory)

    if preview:
        return await _preview(project, changes, file, policies.places.lock_directory)
    return await _change(policies, project, changes, file, write, confirmed)


async def change_project(
    policies: Policies,
    trusting: Trusting,
    changes: Sequence[Change],
    directory: str,
    *,
    confirmed: bool = False,
    preview: bool = False,
) -> Changed:
    """Make changes in the local settings of a project.

    They stay trusted, or become so when nothing in the file widened before. Raises the same, and `settings_is_link` for
    a directory of settings behind a link."""
    directory, file = _project_file(directory)
    project, _ = policies.snapshot(None, directory)
    edited: list[tuple[str, str]] = []

    async def write(change: Callable[[str], str]) -> bool:
        def edit(text: str) -> str:
            new = change(text)
            edited.append((text, new))
            return new

        places = policies.places
        written = await asyncio.to_thread(edit_file, file, edit, places.lock_directory, follow=False)
        if written:
            before, after = edited[-1]  # of repeated edits, the last was written
            await trusting.renew(directory, file, before.encode() or None, after.encode())
        return written

    if preview:
        return await _preview(project, changes, file, policies.places.lock_directory)
    return await _change(policies, project, changes, file, write, confirmed)


async def _preview(project: Project, changes: Sequence[Change], file: str, lock_directory: str) -> Changed:
    """Return what changes would do to the file, which stays as it is. Raises as the change would."""
    wanted, warnings = _checked(project.now.settings, changes, project.scope, True, Source.LOCAL)
    lines: list[str] = []

    def look(text: str) -> str:
        lines[:] = difference(text, apply_changes(text, wanted).encode())
        return text

    try:
        if await asyncio.to_thread(os.path.isdir, os.path.dirname(file)):
            await asyncio.to_thread(edit_file, file, look, lock_directory)
        else:
            look("")
    except SettingsError as fault:
        raise _placed(fault, file) from fault
    return Changed(file, False, project.now.policy.generation, (), tuple(dict.fromkeys(warnings)), tuple(lines))


def _project_file(directory: str) -> tuple[str, str]:
    """Return the real directory of a project, and its local settings."""
    real = os.path.realpath(directory)
    return real, os.path.join(real, ".claude", "settings.local.json")


async def _change(
    policies: Policies,
    project: Project,
    changes: Sequence[Change],
    file: str,
    write: Callable[[Callable[[str], str]], Awaitable[bool]],
    confirmed: bool,
) -> Changed:
    before = project.now.settings
    wanted, warnings = _checked(before, changes, project.scope, confirmed, Source.LOCAL)
    try:
        written = await write(lambda text: apply_changes(text, wanted))
    except SettingsError as fault:
        raise _placed(fault, file) from fault
    policies.reload()
    if project.error is not None:
        warnings.append(f"{project.error.message}; its last good content stays in force until it is corrected")
    else:
        warnings += (text for change in wanted for text in without_effect(project.now.settings, change, file))
    keys = changed_keys(before, project.now.settings)
    return Changed(file, written, project.now.policy.generation, keys, tuple(dict.fromkeys(warnings)))


def _checked(
    before: Settings, changes: Sequence[Change], scope: PathScope, confirmed: bool, source: Source
) -> tuple[tuple[Change, ...], list[str]]:
    """Return changes with full keys, and warnings. Raises CallerError where they may not be made."""
    wanted = tuple(map(_full, changes))
    warnings: list[str] = []
    wide: list[str] = []
    for change in wanted:
        _check_source(change.key, source)
        warnings += check_rule_change(before, change, scope)
        wide += wide_changes(change, scope, real_path)
    if wide and not confirmed:
        raise CallerError(
            "confirmation_needed",
            f"this allows very much: {'; '.join(wide)}",
            hint="repeat the command with --yes, or the call with confirm, if that is meant",
            data={"grants": wide},
        )
    return wanted, warnings + wide


def _full(change: Change) -> Change:
    """Return a change with its full key, and the pattern of an exclusion that is written as a rule."""
    key, value = full_key(change.key), change.value
    if key == EXCLUDED and change.act in (Act.ADD, Act.REMOVE) and isinstance(value, str):
        value = bare_pattern(value)
    return replace(change, key=key, value=value)


def change_object(
    settings: Mapping[str, Any], changes: Sequence[Change], before: Settings, scope: PathScope, *, confirmed: bool
) -> tuple[dict[str, Any], tuple[Change, ...], list[str]]:
    """Return settings of a session with changes, these with full keys, and warnings. Raises CallerError."""
    wanted, warnings = _checked(before, changes, scope, confirmed, Source.CLI)
    return json.loads(apply_changes(json.dumps(settings), wanted)), wanted, warnings


def _placed(fault: SettingsError, file: str) -> SettingsError:
    """Add the file to an error of an edit, which knows only the line."""
    if "file" in fault.data:
        return fault
    place = ":".join(str(part) for part in (file, fault.data.get("line"), fault.data.get("column")) if part)
    hint = fault.hint or f"correct {file}; nothing was changed"
    return SettingsError(fault.slug, f"{place}: {fault.message}", hint=hint, data={**fault.data, "file": file})


def _check_source(key: str, source: Source) -> None:
    sources = TABLE[key].sources
    if source not in sources and sources != {Source.MANAGED}:  # locked keys have another error
        files = " or ".join(sorted(source.value for source in sources))
        raise CallerError(
            "settings_other_source",
            f"{key} counts in {files} settings only, and changes are made to those of the source {source.value}",
            hint="write it into that file",
            data={"key": key},
        )


def without_effect(settings: Settings, change: Change, file: str | None) -> Iterator[str]:
    """Yield why a change made in `file` has no effect; nothing when it has."""
    key = change.key
    for ignored in settings.ignored:
        if ignored.key == key and ignored.origin.file == file:
            yield f"{key}: {_shown(ignored.value)} is ignored: {ignored.reason}"
            return
    value = settings.values.get(key)
    if isinstance(value, tuple):
        entries = {_plain(entry.value): entry.origin for entry in value}
        if change.act is Act.REMOVE and _plain(change.value) in entries:
            yield f"{_shown(change.value)} stays in {key}: {entries[_plain(change.value)]} has it too"
        elif change.act is Act.UNSET and entries:
            yield f"{key} still has entries from {', '.join(sorted({str(at) for at in entries.values()}))}"
        return
    now = settings.scalar(key)
    if change.act is Act.UNSET and settings.is_set(key):
        yield f"{key} stays {_shown(now.value)}: {now.origin} says so"
    elif change.act is Act.SET and _plain(now.value) != _plain(change.value):
        yield f"{key} stays {_shown(now.value)}: {now.origin} has precedence"


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
