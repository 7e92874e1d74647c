"""Helpers of the commands that change local settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from sandboxd.cli.arguments import Option, Parsed, UsageError, visible
from sandboxd.cli.daemon_client import print_json
from sandboxd.cli.output import note, warn
from sandboxd_client import Change, Client, RpcError
from sandboxd_client.wire.messages.sessions import SessionUpdateResult
from sandboxd_client.wire.messages.settings import SettingsUpdateResult

Changed = SettingsUpdateResult | SessionUpdateResult
_SPECIAL = "*?["
PROJECT = Option("--project", "change the settings of the project in this directory (--cwd), not your own")

IN_SESSION = Option("--session", "change one session only, until it ends: its ID or NAME", value="ID")


def make_changes(box: Client, parsed: Parsed, changes: list[Change], *, confirm: bool = False) -> Changed:
    """Change local settings, those of a project, or those of one session."""
    if (session := parsed.get("session")) is not None:
        return box.session_update(session, changes=changes, confirm=confirm)
    return box.settings_update(changes, cwd=parsed.get("cwd"), confirm=confirm, project="project" in parsed)


def one_place(parsed: Parsed) -> None:
    """Refuse two places for one rule. Raises UsageError."""
    if "session" in parsed and "project" in parsed:
        raise UsageError("--session and --project name two places for one rule", "leave one of them out")


def parse_value(text: str) -> Any:
    """Parse a value: JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def rule_path(text: str, cwd: str | None) -> str:
    """Turn a path of the command line into a rule.

    Local settings hold for every project, so a relative path becomes absolute. Special characters of an existing name
    are escaped. `~` and `$VAR` stay."""
    if text.startswith(("~", "$")):
        return text
    path = os.path.abspath(os.path.join(cwd or "", text))
    if is_pattern(text) and os.path.lexists(path):
        return "".join(f"[{c}]" if c in _SPECIAL else c for c in path)
    return path


def is_pattern(text: str) -> bool:
    return any(c in text for c in _SPECIAL)


YES = Option("--yes", "confirm a wide rule without a question")


def confirmed(parsed: Parsed, change: Callable[[bool], Changed]) -> Changed:
    """Make a change; a very wide one needs `--yes` or a yes in the terminal.

    Raises RpcError `confirmation_needed` otherwise."""
    try:
        return change("yes" in parsed)
    except RpcError as error:
        if error.slug != "confirmation_needed" or not _agreed(error.message):
            raise
    return change(True)


def _agreed(message: str) -> bool:
    """Return whether the user at the terminal agrees; False without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    note(f"sandboxd: {message}")
    sys.stderr.write("Write this rule? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def announce(parsed: Parsed, result: Changed, done: str, otherwise: str = "") -> int:
    """Print the change, its file and its warnings; return the exit status.

    `otherwise` is the reason when nothing had to be changed."""
    if "json" in parsed:
        print_json(result)
    elif result.written:
        sys.stdout.write(f"{visible(done, 2000)}\n    in {visible(result.file, 2000)}\n")
    else:
        reason = otherwise or f"{result.file} says so already"
        sys.stdout.write(f"nothing to change: {visible(reason, 2000)}\n")
    for warning in result.warnings:
        warn(warning)
    return 0
