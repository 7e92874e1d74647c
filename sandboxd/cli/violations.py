"""`sandboxd violations`: what was blocked, now and with `--follow` as it happens."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, Option, no_words, visible
from sandboxd.cli.daemon_client import client, json_text, print_json
from sandboxd.cli.output import note, quoted, warn
from sandboxd_client import Client
from sandboxd_client.wire.messages.violations import ViolationHappened, ViolationListResult, ViolationRecord
from sandboxd_client.wire.params import encode

OPTIONS = (
    Option("--follow", "keep running, and print violations as they happen (in a pipe: one JSON text a line)"),
    Option("--session", "list those of this session only", value="ID"),
    JSON,
    NO_AUTOSTART,
)

HELP = Help(
    "violations [--follow] [--json] [--session ID]", "List what was blocked.", OPTIONS, ("violations --follow",)
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    session = parsed.get("session")
    with client(parsed) as box:
        if "follow" in parsed:
            return _follow(box, session, as_json="json" in parsed or not sys.stdout.isatty())
        found = box.violation_list(session_id=session)
    if "json" in parsed:
        print_json(found)
        return 0
    for violation in found.violations:
        sys.stdout.write(line_of(violation) + "\n")
    _say_what_is_missing(found)
    if not found.violations:
        sys.stdout.write("nothing was blocked\n" if not found.total else "")
    return 0


def _follow(box: Client, session: str | None, *, as_json: bool) -> int:
    found = box.violation_subscribe(session_id=session)
    for violation in found.violations:
        _print(violation, as_json)
    if not as_json:
        _say_what_is_missing(found)
    for event in box.notifications():
        if isinstance(event.params, ViolationHappened):
            _print(event.params.violation, as_json)
    return 0


def _print(violation: ViolationRecord, as_json: bool) -> None:
    text = json_text(encode(violation)) if as_json else line_of(violation)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line_of(violation: ViolationRecord) -> str:
    """One violation on one line of a terminal."""
    at = datetime.datetime.fromtimestamp(violation.time).astimezone().strftime("%H:%M:%S")
    command = f" in {quoted(violation.command)}:" if violation.command else ""
    line = f"{at} {violation.session_id}{command} {violation.kind} {violation.operation} {quoted(violation.target)}"
    line += f": {violation.outcome}"
    if violation.count > 1:
        line += f", {violation.count} times"
    if violation.process:
        line += f", by {violation.process}"
    if violation.rule:
        line += f", rule {violation.rule}"
    if violation.origin is not None:
        line += f" in {violation.origin}"
    if violation.inferred:
        line += " (guessed from the output)"
    if violation.hint:
        line += f" ({violation.hint})"
    return visible(line, 2000)


def _say_what_is_missing(found: ViolationListResult) -> None:
    counted = sum(violation.count for violation in found.violations) + found.lost + found.hidden
    if found.total > counted:
        note(f"{found.total - counted} earlier ones are not kept")
    if found.lost:
        warn(f"{found.lost} more came too fast to be recorded one by one")
    if found.hidden:
        warn(f"{found.hidden} more are hidden by sandbox.ignoreViolations")
