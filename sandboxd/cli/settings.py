"""`sandboxd settings show [KEY]`: effective values, each with its origin."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Option, UsageError, parse, suggestion, visible
from sandboxd.cli.asking import as_text, client, print_json, show_help
from sandboxd_client.wire.messages.settings import SettingsGetResult, SettingsProblem

SYNTAX = "settings show [KEY] [--json]"
OPTIONS = (
    Option("--cwd", "as seen from this directory", value="DIR"),
    Option("--session", "in this session of the daemon", value="ID"),
    JSON,
    NO_AUTOSTART,
)
ACTIONS = ("show",)


def main(arguments: Sequence[str]) -> int:
    parsed = parse(arguments, OPTIONS)
    if show_help(parsed, SYNTAX, "Effective settings, and the file each of them comes from.", OPTIONS):
        return 0
    action, *rest = [*parsed.words, *(parsed.command or ())] or [""]
    if action not in ACTIONS:
        message = f"unknown settings command {visible(action)}" if action else "settings needs a command"
        raise UsageError(message, suggestion(action, ACTIONS))
    if len(rest) > 1:
        raise UsageError(f"unexpected word {visible(rest[1], 60)}")
    with client(parsed) as box:
        result = box.settings_get(rest[0] if rest else None, cwd=parsed.get("cwd"), session_id=parsed.get("session"))
    if "json" in parsed:
        print_json(result)
    else:
        _print(result)
    return 0


def _print(result: SettingsGetResult) -> None:
    for value in result.values:
        origins = ", ".join(dict.fromkeys(str(origin) for origin in value.origins)) or "default"
        sys.stdout.write(f"{value.key} = {visible(as_text(value.value), 2000)}\n    {visible(origins, 2000)}\n")
    for problem in result.problems:
        sys.stdout.write(_problem(problem) + "\n")


def _problem(problem: SettingsProblem) -> str:
    place = problem.file or ""
    if problem.line is not None:
        place += f":{problem.line}"
    parts = [part for part in (place, problem.severity, problem.message) if part]
    text = ": ".join(parts)
    return visible(f"{text} ({problem.hint})" if problem.hint else text, 2000)
