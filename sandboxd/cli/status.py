"""`sandboxd status`: never starts a daemon. Exit status 1 when none is running."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, parse
from sandboxd.cli.asking import no_words, print_json, print_rows, show_help
from sandboxd_client import Client, DaemonNotRunning
from sandboxd_client.activation import only_a_connection_is_missing
from sandboxd_client.wire.messages.status import StatusResult
from sandboxd_client.wire.params import encode

OPTIONS = (JSON,)
NOT_RUNNING = 1


def main(arguments: Sequence[str]) -> int:
    parsed = parse(arguments, OPTIONS)
    if show_help(parsed, "status [--json]", "Tell whether the daemon is running, and with what.", OPTIONS):
        return 0
    no_words(parsed)
    with Client(autostart=False) as box:
        waiting = only_a_connection_is_missing(box.socket)
        try:
            if waiting:
                raise DaemonNotRunning(box.socket)
            status = box.status()
        except DaemonNotRunning:
            if "json" in parsed:
                print_json({"running": False, "socket": box.socket, "starts_on_connection": waiting})
            else:
                why = "the next connection starts it" if waiting else f"nothing answers at {box.socket}"
                sys.stdout.write(f"not running ({why})\n")
            return NOT_RUNNING
    if "json" in parsed:
        print_json({"running": True, **encode(status)})
    else:
        print_rows(_rows(status))
    return 0


def _rows(status: StatusResult) -> list[tuple[str, str]]:
    since = datetime.datetime.fromtimestamp(status.started_at).astimezone().isoformat(" ", "seconds")
    rows = [
        ("running", f"version {status.version}, pid {status.pid}, since {since}"),
        ("socket", status.socket),
        ("sandbox", "on" if status.enabled else "off in the settings (run and wrap use it all the same)"),
        ("layers", ", ".join(status.layers) or "none"),
        ("policy", f"generation {status.generation}"),
    ]
    rows += _listed("network", list(status.network))
    files = [f"{file.path} ({file.source}, {file.state})" for file in status.settings if file.state != "absent"]
    rows += _listed("settings", files or ["no settings file, only defaults"])
    sessions = [
        f"{session.session_id} {session.name or ''} in {session.cwd}: "
        f"{session.commands} running, {session.violations} blocked"
        + (f" ({session.violations_lost} of them too fast to record)" if session.violations_lost else "")
        for session in status.sessions
    ]
    rows += _listed("sessions", sessions or ["none"])
    rows += _listed("published", [f"{port} ({s.session_id})" for s in status.sessions for port in s.published])
    if status.audit is not None and status.audit.enabled:
        lost = f", {status.audit.lost} lost" if status.audit.lost else ""
        rows.append(("audit", f"{status.audit.path}: {status.audit.lines} lines since the start{lost}"))
    return rows + _listed("warnings", list(status.warnings))


def _listed(label: str, values: list[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", value) for index, value in enumerate(values)]
