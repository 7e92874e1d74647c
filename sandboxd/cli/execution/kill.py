"""`sandboxd kill`: end running commands."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.cli.arguments import NO_AUTOSTART, Help, Option, UsageError, visible
from sandboxd.cli.daemon_client import client
from sandboxd.cli.output import note, warn

HELP = Help(
    "kill [--grace SECONDS] ID…",
    "End commands and everything they have started, by the ids of `sandboxd ps`.",
    (Option("--grace", "seconds between SIGTERM and SIGKILL (5)", value="SECONDS"), NO_AUTOSTART),
    ("kill 3f2a", "kill --grace 0 3f2a"),
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    names = [*parsed.words, *(parsed.command or ())]
    if not names:
        raise UsageError("kill needs the id of a command", "list them with: sandboxd ps")
    try:
        grace_s = None if "grace" not in parsed else float(parsed.get("grace"))
    except ValueError:
        raise UsageError(f"--grace needs a number of seconds, not {visible(parsed.get('grace'))}") from None
    left = 0
    with client(parsed) as box:
        for name in names:
            ended = box.command_kill(name, grace_s=grace_s)
            if ended.status is None:
                warn(f"command {name} has not ended yet")
                left = 1
            else:
                note(f"sandboxd: command {name} has ended with status {ended.status}")
    return left
