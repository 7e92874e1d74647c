"""`sandboxd service`: the daemon as something the system starts: a unit of your systemd, on macOS a launchd agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Option, UsageError, parse
from sandboxd.cli.daemon_client import show_help
from sandboxd.cli.output import fail

SYNTAX = "service (install [--now] | uninstall | status)"
SUMMARY = "Let the system start the daemon: when somebody connects, and again when it fails."
NOW = Option("--now", "install: start it now, and not at the next login")
ACTIONS = ("install", "uninstall", "status")


def main(arguments: Sequence[str]) -> int:
    parsed = parse(arguments, (NOW,))
    if show_help(parsed, SYNTAX, SUMMARY, (NOW,)):
        return 0
    if len(parsed.words) != 1 or parsed.words[0] not in ACTIONS:
        raise UsageError("say what to do with the service", f"one of: {', '.join(ACTIONS)}")
    (action,) = parsed.words
    if "now" in parsed and action != "install":
        raise UsageError("--now belongs to install", "sandboxd service install --now")
    if sys.platform == "darwin":
        from sandboxd.cli.service import launchd_service as launchd

        agent = launchd.own_agent()
        if action == "install":  # launchd starts it at once in any case
            return launchd.install(agent)
        return launchd.uninstall(agent) if action == "uninstall" else launchd.status(agent)
    if not sys.platform.startswith("linux"):
        return fail("there is no service for this operating system yet", "start the daemon with: sandboxd serve")
    from sandboxd.cli.service import systemd_service as systemd

    if action == "install":
        return systemd.install(now="now" in parsed)
    if action == "uninstall":
        return systemd.uninstall()
    from sandboxd.cli.service import systemd_status

    return systemd_status.show()
