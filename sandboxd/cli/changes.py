"""What the commands that change local settings have in common: how a value is written, and what is said afterwards."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from sandboxd.cli.arguments import Parsed, visible
from sandboxd.cli.asking import print_json
from sandboxd.cli.output import warn
from sandboxd_client.wire.messages.settings import SettingsUpdateResult

_SPECIAL = "*?["


def parse_value(text: str) -> Any:
    """A value of the command line: JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def rule_path(text: str, cwd: str | None) -> str:
    """A path of the command line as a rule. Local settings hold for every project, so a relative path becomes absolute;
    the special characters of a name that exists mean themselves. `~` and `$VAR` stay."""
    if text.startswith(("~", "$")):
        return text
    path = os.path.abspath(os.path.join(cwd or "", text))
    if is_pattern(text) and os.path.lexists(path):
        return "".join(f"[{c}]" if c in _SPECIAL else c for c in path)
    return path


def is_pattern(text: str) -> bool:
    return any(c in text for c in _SPECIAL)


def announce(parsed: Parsed, result: SettingsUpdateResult, done: str, otherwise: str = "") -> int:
    """Say what has been changed, where, and what has to be known about it; `otherwise` is said when there was nothing
    to change. Returns the exit status."""
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
