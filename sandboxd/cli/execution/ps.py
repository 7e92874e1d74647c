"""`sandboxd ps`: the commands that run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, Option, no_words, visible
from sandboxd.cli.control.status import duration
from sandboxd.cli.daemon_client import client, print_json
from sandboxd_client.wire.messages.commands import RunningCommandRecord

HELP = Help(
    "ps [--session ID] [--json]",
    "List the commands that run: id, session, age, processor time, memory, ports and text.",
    (Option("--session", "list those of this session only", value="ID"), JSON, NO_AUTOSTART),
    ("ps", "ps --session web"),
)
_HEAD = ("ID", "SESSION", "AGE", "CPU", "MEMORY", "PORTS", "COMMAND")
_ID = 12
"""Characters of an id that are shown, of 32."""


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    with client(parsed) as box:
        found = box.command_list(session_id=parsed.get("session"))
    if "json" in parsed:
        print_json(found)
        return 0
    rows = [_HEAD, *map(_row, found.commands)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
        sys.stdout.write("  ".join([*cells, row[-1]]).rstrip() + "\n")
    return 0


def _row(one: RunningCommandRecord) -> tuple[str, ...]:
    ports = [*map(str, one.ports or ()), *one.published]
    return (
        one.wrap_id[:_ID],
        visible(one.session_name or one.session_id, 30),
        duration(time.time() - one.since),
        "-" if one.cpu_s is None else f"{one.cpu_s:.1f} s",
        "-" if one.memory is None else f"{one.memory / (1 << 20):.0f} MiB",
        ",".join(ports) or "-",
        visible(" ".join(one.command.split()), 200),
    )
