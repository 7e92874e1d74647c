"""`sandboxd settings`: effective values, local changes, checks of files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from sandboxd.cli.arguments import (
    CWD,
    JSON,
    NO_AUTOSTART,
    SESSION,
    Help,
    Option,
    Parsed,
    UsageError,
    suggestion,
    visible,
)
from sandboxd.cli.daemon_client import as_text, client, print_json
from sandboxd.cli.output import USAGE, fail
from sandboxd.cli.rules import settings_files
from sandboxd.cli.rules.local_settings import YES, announce, confirmed, parse_value
from sandboxd_client import Change
from sandboxd_client.wire.messages.settings import SettingsGetResult, SettingsLockedResult, SettingsProblem

SYNTAX = (
    "settings (show [--changed] [KEY] | lint [FILE…] | set KEY VALUE | unset KEY | (add | remove) KEY VALUE | schema)"
)
SUMMARY = """Show effective settings with their origins, check settings files, and change your own.

  show [KEY]      print effective values with file and line; ignored and locked ones are marked
  lint [FILE…]    print errors and warnings with file and line; exit status 1 when there are any.
                  Needs no daemon. Without FILE: the files in force in this directory
  set KEY VALUE   write a value (JSON, or plain text) to your local settings
  unset KEY       remove a key from your local settings
  add KEY VALUE   add an entry to a list in your local settings; remove KEY VALUE takes it out again
  schema          print the JSON Schema of a settings file, for editors"""
OPTIONS = (
    Option("--changed", "show: only what some source sets, not the defaults"),
    Option("--as", "lint: check FILE as this source", value="SOURCE", only=settings_files.SOURCES),
    CWD,
    SESSION,
    YES,
    JSON,
    NO_AUTOSTART,
)
HELP = Help(
    SYNTAX,
    SUMMARY,
    OPTIONS,
    ("settings show", "settings lint .claude/settings.json", "settings set sandbox.reportViolations off"),
    words=("show", "lint", "set", "unset", "add", "remove", "schema"),
    negative="lint found a problem",
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    action, *words = [*parsed.words, *(parsed.command or ())] or [""]
    if action not in _ACTIONS:
        message = f"unknown settings command {visible(action)}" if action else "settings needs a command"
        raise UsageError(message, suggestion(action, _ACTIONS))
    for option, of in (("as", "lint"), ("changed", "show")):
        if option in parsed and action != of:
            raise UsageError(f"--{option} is for settings {of}")
    return _ACTIONS[action](parsed, words)


def _words(words: list[str], action: str, *names: str, optional: int = 0) -> list[str | None]:
    """Return the words of an action, None for omitted ones. Raises UsageError."""
    if len(words) < len(names) - optional:
        raise UsageError(f"settings {action} needs {' '.join(names)}", f"usage: sandboxd {SYNTAX}")
    if len(words) > len(names):
        quote = ": put the value in quotes" if action in ("set", "add", "remove") else ""
        raise UsageError(f"unexpected word {visible(words[len(names)], 60)}{quote}")
    return [*words, *[None] * (len(names) - len(words))]


def _show(parsed: Parsed, words: list[str]) -> int:
    (key,) = _words(words, "show", "KEY", optional=1)
    with client(parsed) as box:
        where = {"cwd": parsed.get("cwd"), "session_id": parsed.get("session")}
        locked = box.settings_locked(**where)
        result = box.settings_get(key, **where)
        if key is not None and not result.values:
            known = [value.key for value in box.settings_get(**where).values]
            return fail(f"there is no setting {key}", suggestion(f"sandbox.{key}", known), USAGE)
    if "changed" in parsed:
        changed = (one for one in result.values if any(origin.source != "default" for origin in one.origins))
        result = replace(result, values=tuple(changed))
    if "json" in parsed:
        print_json(result)
    else:
        _print(result, locked)
    return 0


def _print(result: SettingsGetResult, locked: SettingsLockedResult) -> None:
    locks = {lock.key: lock.reason for lock in locked.locked}
    for value in result.values:
        origins = ", ".join(dict.fromkeys(str(origin) for origin in value.origins)) or "default"
        sys.stdout.write(f"{value.key} = {visible(as_text(value.value), 2000)}\n    {visible(origins, 2000)}\n")
        if value.key in locks:
            sys.stdout.write(f"    locked: {visible(locks[value.key], 2000)}\n")
    for entry in result.ignored:
        if entry.origin.file is not None:
            continue  # among the problems
        line = f"{entry.origin}: ignored: {as_text(entry.value)}: {entry.reason}"
        sys.stdout.write(visible(line, 2000) + "\n")
    for problem in result.problems:
        sys.stdout.write(problem_line(problem) + "\n")


def problem_line(problem: SettingsProblem) -> str:
    place = problem.file or ""
    if problem.line is not None:
        place += f":{problem.line}"
        if problem.column is not None:
            place += f":{problem.column}"
    parts = [part for part in (place, problem.severity, problem.message) if part]
    text = ": ".join(parts)
    return visible(f"{text} ({problem.hint})" if problem.hint else text, 2000)


def _set(parsed: Parsed, words: list[str]) -> int:
    key, value = _words(words, "set", "KEY", "VALUE")
    assert key is not None and value is not None
    return _change(parsed, Change("set", key, parse_value(value)), f"{key} = {as_text(parse_value(value))}")


def _unset(parsed: Parsed, words: list[str]) -> int:
    (key,) = _words(words, "unset", "KEY")
    assert key is not None
    return _change(parsed, Change("unset", key), f"{key} is not set any more")


def _add(parsed: Parsed, words: list[str]) -> int:
    key, value = _words(words, "add", "KEY", "VALUE")
    assert key is not None and value is not None
    return _change(parsed, Change("add", key, parse_value(value)), f"{key} has {as_text(parse_value(value))}")


def _remove(parsed: Parsed, words: list[str]) -> int:
    key, value = _words(words, "remove", "KEY", "VALUE")
    assert key is not None and value is not None
    return _change(parsed, Change("remove", key, parse_value(value)), f"{key} has no {as_text(parse_value(value))}")


def _change(parsed: Parsed, change: Change, done: str) -> int:
    with client(parsed) as box:
        where = {"cwd": parsed.get("cwd"), "session_id": parsed.get("session")}
        result = confirmed(parsed, lambda yes: box.settings_update([change], confirm=yes, **where))
    return announce(parsed, result, done)


def _lint(parsed: Parsed, words: list[str]) -> int:
    found = settings_files.lint(words or None, parsed.get("as"), parsed.get("cwd"))
    if "json" in parsed:
        print_json(found)
    else:
        for problem in found.problems:
            sys.stdout.write(problem_line(problem) + "\n")
    return 0 if found.ok else settings_files.PROBLEMS


def _schema(parsed: Parsed, words: list[str]) -> int:
    _words(words, "schema")
    print_json(settings_files.schema())
    return 0


_ACTIONS: dict[str, Callable[[Parsed, list[str]], int]] = {
    "show": _show,
    "lint": _lint,
    "set": _set,
    "unset": _unset,
    "add": _add,
    "remove": _remove,
    "schema": _schema,
}
