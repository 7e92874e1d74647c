"""`sandboxd metrics`: the metrics of a running daemon; exit status 1 without one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, no_words
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
    parsed = HELP.read(arguments)
    no_words(parsed)
    with Client(autostart=False) as box:
        try:
            sys.stdout.write(box.metrics().text)
        except DaemonNotRunning:
            return fail("no daemon is running", "start one with `sandboxd service install --now`", NOT_RUNNING)
    return 0
