"""`sandboxd stop`: end the daemon and its commands, and wait for that.

Success when none is running."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, no_words
from sandboxd_client import DaemonNotRunning
from sandboxd_client.transport.activation import is_listening, only_a_connection_is_missing
from sandboxd_client.transport.connection import usable_path
from sandboxd_client.transport.starting import stop_daemon

HELP = Help("stop", "End the daemon and everything it runs.", (), ("stop",))


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    path = usable_path()
    if only_a_connection_is_missing(path):  # a connection from here would start the daemon
        sys.stdout.write("not running (the next connection starts it)\n")
        return 0
    try:
        pid = stop_daemon(path)
    except DaemonNotRunning:
        sys.stdout.write(f"not running (nothing answers at {path})\n")
        return 0
    sys.stdout.write(f"stopped (pid {pid})\n")
    if os.path.exists(path) and is_listening(path):
        sys.stdout.write(
            "the next connection starts it again; to end that too: systemctl --user stop sandboxd.socket\n"
        )
    return 0
