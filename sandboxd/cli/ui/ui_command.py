"""`sandboxd ui`: the screen, where its library is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import NO_AUTOSTART, Help, Option, UsageError, no_words
from sandboxd.cli.output import fail
from sandboxd.cli.remote import REMOTE, forwarded

HELP = Help(
    "ui [--cwd DIR | --remote HOST]",
    """Show sessions, questions, what was blocked, the policy and the layers in this terminal, and decide.

Keys 1 to 5 choose a view, ? lists the keys of a view, q ends. It needs the extra ui: pip install 'sandboxd[ui]'.""",
    (
        Option("--cwd", "show the policy of this directory (default: the current one)", value="DIR"),
        REMOTE,
        NO_AUTOSTART,
    ),
    ("ui", "ui --remote build.example.org"),
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    if "cwd" in parsed and "remote" in parsed:
        raise UsageError("--cwd is a directory of this machine, and --remote shows another one", "leave --cwd out")
    cwd = os.path.abspath(parsed.get("cwd") or ".")
    if not os.path.isdir(cwd):
        raise UsageError(f"--cwd: {cwd} is not a directory")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("ui needs a terminal", "programs use the socket; for a status bar: sandboxd status --line")
    try:
        from sandboxd.cli.ui.app import Screens
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        return fail("sandboxd ui needs the package textual, which is not installed", "pip install 'sandboxd[ui]'")
    host = parsed.get("remote")
    if host is None:
        return Screens(cwd, autostart="no_autostart" not in parsed).run() or 0
    with forwarded(host) as path:
        return Screens("/", path, autostart=False).run() or 0
