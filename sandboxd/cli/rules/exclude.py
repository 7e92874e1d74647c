"""`sandboxd exclude`: commands that run outside the sandbox, in local settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import CWD, JSON, NO_AUTOSTART, Help, UsageError, suggestion, visible
from sandboxd.cli.daemon_client import client, print_json
from sandboxd.cli.rules.local_settings import IN_SESSION, PROJECT, YES, announce, confirmed, make_changes, one_place
from sandboxd_client import Change
from sandboxd_client.wire.messages.settings import SettingValue

SYNTAX = "exclude (add PATTERN | remove PATTERN | list)"
SUMMARY = """Choose commands that run outside the sandbox: docker (with any arguments), 'git push:*', 'npm run build'.

A line runs outside only when every command in it is excluded and it has no redirection or substitution."""
OPTIONS = (CWD, PROJECT, IN_SESSION, YES, JSON, NO_AUTOSTART)
_ACTIONS = ("add", "remove", "list")
HELP = Help(SYNTAX, SUMMARY, OPTIONS, ("exclude add 'git push:*'", "exclude list"), words=_ACTIONS)
KEY = "sandbox.excludedCommands"


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    action, *rest = [*parsed.words, *(parsed.command or ())] or [""]
    if action not in _ACTIONS:
        message = f"unknown exclude command {visible(action)}" if action else "exclude needs a command"
        raise UsageError(message, suggestion(action, _ACTIONS))
    if len(rest) > (0 if action == "list" else 1):
        raise UsageError(f"unexpected word {visible(rest[-1], 60)}: put a pattern in quotes")
    if action != "list" and not rest:
        raise UsageError(f"exclude {action} needs a pattern", f"usage: sandboxd {SYNTAX}")
    one_place(parsed)
    where = {"cwd": parsed.get("cwd"), "session_id": parsed.get("session")}
    with client(parsed) as box:
        if action == "list":
            (found,) = box.settings_get(KEY, **where).values
            if "json" in parsed:
                print_json(found)
            else:
                _print(found)
            return 0
        change = Change(action, KEY, rest[0])
        result = confirmed(parsed, lambda yes: make_changes(box, parsed, [change], confirm=yes))
        if action == "add":
            return announce(parsed, result, f"{rest[0]} runs outside the sandbox")
        (found,) = box.settings_get(KEY, **where).values
    left = f"(on it: {', '.join(found.value)})" if found.value else "(nothing is)"
    return announce(
        parsed, result, f"{rest[0]} is not excluded any more", f"{rest[0]} is not on the list of {result.file} {left}"
    )


def _print(found: SettingValue) -> None:
    if not found.value:
        sys.stdout.write("no command is excluded\n")
    for pattern, origin in zip(found.value, found.origins, strict=False):
        sys.stdout.write(f"{visible(pattern, 2000)}\n    {visible(str(origin), 2000)}\n")
