"""`sandboxd restart`: end the daemon when there is one, and start it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import parse
from sandboxd.cli.asking import no_words, show_help
from sandboxd_client import Client, DaemonNotRunning
from sandboxd_client.connection import usable_path
from sandboxd_client.starting import stop_daemon


def main(arguments: Sequence[str]) -> int:
    parsed = parse(arguments, ())
    if show_help(parsed, "restart", "End the daemon with everything it runs, and start it again.", ()):
        return 0
    no_words(parsed)
    path = usable_path()
    with contextlib.suppress(DaemonNotRunning):
        stop_daemon(path)
    with Client(path) as box:
        status = box.status()
    sys.stdout.write(f"running (pid {status.pid}, version {status.version}, socket {status.socket})\n")
    return 0
