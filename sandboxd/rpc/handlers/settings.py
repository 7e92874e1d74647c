"""`settings.get` and `settings.reload`: effective values with their origins, and what is wrong with the files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sandboxd.rpc.records import origin_record
from sandboxd_client.wire.messages.settings import (
    SettingsFile,
    SettingsGetParams,
    SettingsGetResult,
    SettingsProblem,
    SettingsReloadParams,
    SettingsReloadResult,
    SettingValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxd.rpc.call import Call
    from sandboxd.settings.merge import Settings
    from sandboxd.settings.problems import Problem


async def get(call: Call, params: SettingsGetParams) -> SettingsGetResult:
    """What holds now: those of the session's or the directory's project, else the daemon's own."""
    directory = None if params.cwd is None else call.daemon.directory(params.cwd)
    if params.session_id is not None:
        directory = call.daemon.sessions.get(params.session_id).cwd
    project, now = call.daemon.policies.snapshot(params.session_id, directory)
    values = tuple(
        _value(now.settings, key, plain)
        for key, plain in now.settings.effective().items()
        if params.key is None or key == params.key or key.startswith(params.key + ".")
    )
    return SettingsGetResult(
        now.policy.generation, values, file_records(project.latest), problem_records(project.problems)
    )


def _value(settings: Settings, key: str, plain: Any) -> SettingValue:
    placed = settings.values.get(key)
    entries = placed if isinstance(placed, tuple) else (settings.scalar(key),)
    return SettingValue(key, plain, tuple(origin_record(entry.origin) for entry in entries))


async def reload(call: Call, params: SettingsReloadParams) -> SettingsReloadResult:
    outcome = call.daemon.policies.reload()
    return SettingsReloadResult(call.daemon.policies.generation, outcome.switched, problem_records(outcome.problems))


def file_records(settings: Settings) -> tuple[SettingsFile, ...]:
    return tuple(
        SettingsFile(layer.source.value, layer.file, "broken" if layer.broken else _presence(layer.file))
        for layer in settings.layers
        if layer.file is not None
    )


def _presence(path: str) -> str:
    return "loaded" if os.path.lexists(path) else "absent"


def problem_records(problems: Iterable[Problem]) -> tuple[SettingsProblem, ...]:
    return tuple(
        SettingsProblem(
            severity=problem.severity.value,
            message=problem.message,
            file=problem.origin.file,
            key=problem.origin.key or None,
            line=problem.origin.line,
            column=problem.origin.column,
            hint=problem.hint,
        )
        for problem in problems
    )
