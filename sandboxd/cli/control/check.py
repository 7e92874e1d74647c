"""`sandboxd check`: all checks; exit status 1 when no sandbox can be started."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, no_words, visible
from sandboxd.cli.daemon_client import client, print_json
from sandboxd.cli.output import coloured
from sandboxd_client.wire.messages.check import CheckResult

HELP = Help(
    "check [--json]",
    "Check what this host can enforce.",
    (JSON, NO_AUTOSTART),
    ("check",),
    negative="no sandbox can be started here",
)
CANNOT = 1
ADVICE = "advice_"
"""The prefix of the codes of optional steps."""
_COLOURS = {"ok": "green", "FAILED": "red"}


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    with client(parsed) as box:
        result = box.check()
    if "json" in parsed:
        print_json(result)
    else:
        _print(result)
    return 0 if result.ok else CANNOT


def _print(result: CheckResult) -> None:
    width = max((len(step.name) for step in result.steps), default=0)
    for step in result.steps:
        mark = "ok" if step.ok else "advice" if step.code.startswith(ADVICE) else "without" if result.ok else "FAILED"
        mark = coloured(f"{mark:<7}", _COLOURS.get(mark, "yellow"))
        sys.stdout.write(f"{mark}  {step.name:<{width}}  {visible(step.detail, 2000)}\n")
        if not step.ok and step.remedy:
            sys.stdout.write(f"{'':9}{'':<{width}}  remedy: {visible(step.remedy, 2000)}\n")
    if result.ok:
        sys.stdout.write(f"Sandboxes can be started. Layers: {', '.join(result.layers) or 'none'}\n")
    else:
        sys.stdout.write("No sandbox can be started on this host; nothing would be run.\n")
