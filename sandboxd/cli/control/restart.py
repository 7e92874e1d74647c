"""`sandboxd restart`: the daemon goes on in a new program, or is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, no_words
from sandboxd.cli.control.status import warn_of_another_program
from sandboxd_client import Client, DaemonNotRunning, RpcError
from sandboxd_client.transport.connection import usable_path
from sandboxd_client.transport.starting import stop_daemon
from sandboxd_client.wire.messages.status import StatusResult

IN_PLACE_IMPOSSIBLE = frozenset({"restart_unsupported", "method_not_found", "invalid_params"})
HELP = Help(
    "restart",
    "Restart the daemon, in the program of this installation; running commands go on. Starts one when none runs.",
    (),
    ("restart",),
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    status = restart(usable_path())
    warn_of_another_program(status)
    program = f"version {status.version} of {status.program}"
    sys.stdout.write(f"running (pid {status.pid}, {program}, socket {status.socket})\n")
    if status.restarted is not None:
        done = status.restarted
        sys.stdout.write(f"{done.commands} running commands taken over in {done.stall_s * 1000:.0f} ms")
        sys.stdout.write(f", {done.cut} connections cut\n" if done.cut else "\n")
        for line in done.lost:
            sys.stderr.write(f"lost: {line}\n")
    return 0


def restart(path: str) -> StatusResult:
    """Restart in place, in the program of this installation, else end the daemon with its commands and start it.

    A daemon of an earlier version or of another system cannot restart in place."""
    try:
        with Client(path, autostart=False) as box:
            before = box.status().restarts
            box.restart(sys.executable)
            status = box.status()
            if status.restarts > before:
                return status
    except DaemonNotRunning:
        pass
    except RpcError as error:
        if error.slug not in IN_PLACE_IMPOSSIBLE:
            raise
        stop_daemon(path)
    with Client(path) as box:
        return box.status()
