"""`sandboxd service`: a unit of the user's systemd, or an agent of launchd."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, Option, UsageError
from sandboxd.cli.output import fail
from sandboxd_client.errors import DaemonNotRunning
from sandboxd_client.transport.activation import only_a_connection_is_missing
from sandboxd_client.transport.connection import usable_path
from sandboxd_client.transport.starting import stop_daemon

NOW = Option("--now", "install: start the daemon now, not only at the next login")
ACTIONS = ("install", "uninstall", "status")
HELP = Help(
    "service (install [--now] | uninstall | status)",
    "Let the system start the daemon: at the first connection, and after a failure.",
    (NOW,),
    ("service install --now", "service uninstall"),
    words=ACTIONS,
    negative="units, socket and daemon disagree",
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    if len(parsed.words) != 1 or parsed.words[0] not in ACTIONS:
        raise UsageError("the action is missing or unknown", f"name one of: {', '.join(ACTIONS)}")
    (action,) = parsed.words
    if "now" in parsed and action != "install":
        raise UsageError("--now is an option of install", "sandboxd service install --now")
    if sys.platform == "darwin":
        from sandboxd.cli.service import launchd_service as launchd

        agent = launchd.own_agent()
        if action == "install":  # launchd starts it at once in any case
            return launchd.install(agent)
        return _ended(launchd.uninstall(agent)) if action == "uninstall" else launchd.status(agent)
    if not sys.platform.startswith("linux"):
        return fail("sandboxd has no service for this operating system", "start the daemon with: sandboxd serve")
    from sandboxd.cli.service import systemd_service as systemd

    if action == "install":
        return systemd.install(now="now" in parsed)
    if action == "uninstall":
        return _ended(systemd.uninstall())
    from sandboxd.cli.service import systemd_status

    return systemd_status.show()


def _ended(status: int) -> int:
    """End a daemon that the service manager did not: one that a client or a person has started."""
    path = usable_path()
    if not only_a_connection_is_missing(path):  # a connection from here would start the daemon
        with contextlib.suppress(DaemonNotRunning):
            sys.stdout.write(f"stopped (pid {stop_daemon(path)})\n")
    return status
