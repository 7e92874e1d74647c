"""`sandboxd enable` (and `sandboxd disable`): the switch in local settings."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.cli.arguments import CWD, JSON, NO_AUTOSTART, Help, no_words
from sandboxd.cli.daemon_client import client
from sandboxd.cli.rules.local_settings import YES, announce, confirmed
from sandboxd_client import Change

_OPTIONS = (CWD, JSON, NO_AUTOSTART)
_SWITCHED = "Switch the sandbox {} for callers that ask whether to use it. `run` and `wrap` always use it."
HELP = Help("enable", _SWITCHED.format("on"), _OPTIONS, ("enable",))
DISABLE_HELP = Help("disable", _SWITCHED.format("off"), (YES, *_OPTIONS), ("disable",))


def main(arguments: Sequence[str]) -> int:
    return switch(True, arguments)


def disable(arguments: Sequence[str]) -> int:
    return switch(False, arguments)


def switch(on: bool, arguments: Sequence[str]) -> int:
    """Set `sandbox.enabled`. Refused with the reason where managed settings lock it."""
    help, word = (HELP, "on") if on else (DISABLE_HELP, "off")
    parsed = help.read(arguments)
    no_words(parsed)
    with client(parsed) as box:
        change, cwd = Change("set", "sandbox.enabled", on), parsed.get("cwd")
        result = confirmed(parsed, lambda yes: box.settings_update([change], cwd=cwd, confirm=yes))
    return announce(parsed, result, f"the sandbox is {word}")
