"""`sandboxd start`: start the daemon in the background unless one answers, and wait until it does.

Clients in other languages use it: it knows service managers, and takes turns with other clients."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, no_words
from sandboxd_client import Client

HELP = Help("start", "Start the daemon in the background, unless it runs.", (), ("start",))


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    with Client() as box:
        sys.stdout.write(f"running (pid {box.status().pid})\n")
    return 0
