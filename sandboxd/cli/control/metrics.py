"""`sandboxd metrics`: the metrics of a running daemon; exit status 1 without one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, parse
from sandboxd.cli.daemon_client import no_words, show_help
from sandboxd.cli.output import fail
from sandboxd_client import Client, DaemonNotRunning

NOT_RUNNING = 1
HELP = Help(
    "metrics",
    "Print the metrics of the daemon, in the text format of Prometheus.",
    (),
    ("metrics",),
    negative="no daemon is running",
)


def main(arguments: Sequence[str]) -> int:
    parsed = parse(arguments, ())
    if show_help(parsed, HELP):
        return 0
    no_words(parsed)
    with Client(autostart=False) as box:
        try:
            sys.stdout.write(box.metrics().text)
        except DaemonNotRunning:
            return fail("no daemon is running", "start one with `sandboxd service install --now`", NOT_RUNNING)
    return 0
