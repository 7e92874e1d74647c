"""`sandboxd trust`: let the settings files of a project widen, after a review."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, Option, Parsed, UsageError, visible
from sandboxd.cli.daemon_client import as_text, client, print_json
from sandboxd_client import Client, SandboxdError
from sandboxd_client.wire.messages.settings import SettingsTrustResult, TrustFile

SYNTAX = "trust [DIR | FILE]"
SUMMARY = """Let the settings files of a project (.claude/settings.json and settings.local.json) widen what commands may
do. Shows every line that would widen it, and asks. Only this exact content is trusted: a changed file only tightens.

DIR defaults to the current directory. FILE is a settings file for `sandboxd run --settings`."""
OPTIONS = (
    Option("--yes", "trust without a question, for scripts"),
    Option("--list", "list what is trusted"),
    Option("--remove", "revoke the trust"),
    JSON,
    NO_AUTOSTART,
)
HELP = Help(SYNTAX, SUMMARY, OPTIONS, ("trust", "trust --list"), words=("PATH",), negative="not trusted")
_WHOLE = 1 << 30
"""The length at which trusted text is cut: never."""


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    words = [*parsed.words, *(parsed.command or ())]
    if len(words) > 1:
        raise UsageError(f"unexpected word {visible(words[1], 60)}", f"usage: sandboxd {SYNTAX}")
    if "list" in parsed and (words or "remove" in parsed):
        raise UsageError("--list takes no directory and no other option")
    path = os.path.abspath(words[0] if words else ".")
    with client(parsed) as box:
        if "list" in parsed:
            return _list(parsed, box.settings_trust("list"))
        if "remove" in parsed:
            return _remove(parsed, path, box.settings_trust("remove", path))
        return _trust(parsed, path, box)


def _list(parsed: Parsed, result: SettingsTrustResult) -> int:
    if "json" in parsed:
        print_json(result)
        return 0
    for one in result.trusted:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.trusted_at))
        _say(f"{one.directory}")
        _say(f"    {', '.join(one.files)}, {when}")
    if not result.trusted:
        _say("no settings of a project are trusted")
    if not result.permitted:
        _say("managed settings forbid trust in the settings of a project: none of this counts")
    return 0


def _remove(parsed: Parsed, path: str, result: SettingsTrustResult) -> int:
    if "json" in parsed:
        print_json(result)
    else:
        _say(f"{path} is {'not trusted any more' if result.done else 'not trusted'}")
    return 0


def _trust(parsed: Parsed, path: str, box: Client) -> int:
    shown = box.settings_trust("show", path)
    pending = [file for file in shown.files if file.state != "trusted"]
    if not shown.permitted:
        raise SandboxdError(
            "trust_forbidden",
            "managed settings forbid trust in the settings of a project",
            "ask the administrator of this machine",
        )
    if not pending or not shown.widens:
        if "json" in parsed:
            print_json(shown)
        else:
            _say(_nothing(path, shown))
        return 0
    if "json" not in parsed:
        _print(shown, pending)
    if "yes" not in parsed and not _confirmed(path):
        sys.stderr.write("sandboxd: not trusted\n")
        return 1
    done = box.settings_trust("trust", path, digests={file.path: file.sha256 for file in shown.files})
    if "json" in parsed:
        print_json(done)
    else:
        _say(f"trusted: {', '.join(file.path for file in done.files)}")
    return 0


def _nothing(path: str, shown: SettingsTrustResult) -> str:
    if not shown.files:
        return f"there are no settings files in {path}"
    return "this content is trusted already" if shown.widens else f"nothing in {path} would widen: no trust is needed"


def _print(shown: SettingsTrustResult, pending: list[TrustFile]) -> None:
    _say(f"In {shown.directory}, these settings would widen what commands may do:")
    for one in shown.widens:
        _say(f"  {one.key}: {as_text(one.value)}")
        _say(f"      {one.origin}")
    for file in pending:
        if file.difference:
            _say(f"{file.path} has changed since it was trusted:")
            for line in file.difference:
                _say(f"  {line}")


def _confirmed(path: str) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SandboxdError(
            "not_permitted", "trust needs a person at a terminal", "in a script, write: sandboxd trust --yes"
        )
    sys.stdout.write(f"Trust this content of {visible(path, _WHOLE)}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(line: str) -> None:
    sys.stdout.write(visible(line, _WHOLE) + "\n")
