"""Checks of settings files without a daemon.

A broken file may keep the daemon from starting. The checks are the daemon's own (`settings.lint`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from sandboxd.cli.arguments import UsageError, suggestion, visible
from sandboxd_client.wire.messages.settings import SettingsLintResult, SettingsProblem

SOURCES = ("managed", "flag", "local", "user", "project")
PROBLEMS = 1


def lint(files: Sequence[str] | None, source: str | None, cwd: str | None) -> SettingsLintResult:
    """Check `files`, or those that are in force in `cwd`.

    The result names files as they were given. Raises UsageError when `cwd` is no directory."""
    from sandboxd.daemon.settings.linting import lint_files, places_here

    directory = os.path.abspath(cwd or ".")
    if not os.path.isdir(directory):
        raise UsageError(f"there is no directory {directory}")
    names = None if files is None else {os.path.abspath(file): file for file in files}
    platform = "macos" if sys.platform == "darwin" else "linux"
    found = lint_files(places_here(os.environ, platform), directory, None if names is None else tuple(names), source)
    shown = names or {}
    problems = tuple(
        SettingsProblem(
            severity=problem.severity.value,
            message=problem.message,
            file=shown.get(problem.origin.file or "", problem.origin.file),
            key=problem.origin.key or None,
            line=problem.origin.line,
            column=problem.origin.column,
            hint=problem.hint,
        )
        for problem in found.problems
    )
    return SettingsLintResult(not problems, tuple(shown.get(file, file) for file in found.files), problems)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file."""
    from sandboxd.daemon.settings.linting import schema as json_schema

    return json_schema()


def check_preset(verb: str, name: str) -> None:
    """Refuse a preset that does not exist, or that does the opposite of the verb. Raises UsageError."""
    from sandboxd.daemon.settings.linting import presets

    known = presets()
    if name not in known:
        raise UsageError(f"there is no preset {visible(name, 60)}", suggestion(name, known))
    right = "allow" if known[name] else "deny"
    if right != verb:
        does = "opens" if known[name] else "closes"
        raise UsageError(f"the preset {name} {does} something", f"sandboxd {right} preset {name}")
