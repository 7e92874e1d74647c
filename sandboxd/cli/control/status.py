"""`sandboxd status`: never starts a daemon. Exit status 1 when none is running."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Sequence

from sandboxd import PACKAGE, __version__
from sandboxd.cli.arguments import JSON, Help, Option, UsageError, no_words, visible
from sandboxd.cli.control.status_line import print_line, watch
from sandboxd.cli.daemon_client import print_json, print_rows
from sandboxd.cli.output import warn
from sandboxd_client import Client, DaemonNotRunning
from sandboxd_client.transport.activation import only_a_connection_is_missing
from sandboxd_client.wire.messages.status import StatusResult
from sandboxd_client.wire.params import encode

HELP = Help(
    "status [--json | --line [--watch] [--last SECONDS]]",
    """Show the running daemon, its settings, sessions and layers.

With --line, one short line for tmux, a shell prompt or an agent's status bar, such as: ⛔ 3 blocked · 1 question.
It is empty while all is quiet, and where no daemon runs.""",
    (
        JSON,
        Option("--line", "print one short line: what was blocked in the last seconds, and open questions"),
        Option("--watch", "--line: keep running, and print the line at each change"),
        Option("--last", "--line: the seconds for which what was blocked is counted (5)", value="SECONDS"),
    ),
    ("status", "status --line", "status --line --watch"),
    negative="no daemon is running",
)
NOT_RUNNING = 1
SESSIONS_SHOWN = 10


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    if "line" in parsed:
        last_s = parsed.get("last") or "5"
        if not (last_s.isascii() and last_s.isdigit() and 0 < int(last_s) <= 86400):
            raise UsageError(f"--last needs a number of seconds from 1 to 86400, not {visible(last_s, 60)}")
        return watch(float(last_s)) if "watch" in parsed else print_line(float(last_s))
    for option in ("watch", "last"):
        if option in parsed:
            raise UsageError(f"--{option} is an option of --line", "sandboxd status --line --watch")
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
    warn_of_another_program(status)
    return 0


def warn_of_another_program(status: StatusResult) -> None:
    """Warn when the daemon is of another version, or of another installation than this program."""
    if (status.version, status.program or PACKAGE) != (__version__, PACKAGE):
        daemon = f"version {status.version} of {status.program or 'another installation'}"
        warn(f"the daemon is {daemon}, and this program version {__version__} of {PACKAGE}; run: sandboxd restart")


def _enabled(status: StatusResult) -> str:
    place = status.enabled_origin
    where = f", by {place.file}:{place.line or 1} ({place.source})" if place is not None and place.file else ""
    return f"on{where}" if status.enabled else f"off in the settings{where} (run and wrap use it all the same)"


def _rows(status: StatusResult) -> list[tuple[str, str]]:
    """Return the rows, most important first: daemon, problems, activity."""
    since = datetime.datetime.fromtimestamp(status.started_at).astimezone()
    rows = [] if status.enabled else [("OFF", f"the sandbox is {_enabled(status)}: callers that ask first run bare")]
    rows += [
        (
            "running",
            f"version {status.version}, pid {status.pid}, for {duration(time.time() - status.started_at)}, "
            f"since {since.isoformat(' ', 'seconds')}",
        )
    ]
    missing = status.unavailable
    if missing is not None:
        rows.append(("FAILED", f"no sandbox can be started: {missing.message} ({missing.slug})"))
        rows += [("", f"hint: {missing.hint}")] if missing.hint else []
    rows += _listed("warnings", list(status.warnings))
    busy = f"{status.commands} running" if status.commands else "none running"
    rows += [
        *([("sandbox", _enabled(status))] if status.enabled else []),
        ("layers", ", ".join(status.layers) or "none"),
        ("commands", f"{busy}, in {counted(len(status.sessions), 'session')}"),
    ]
    shown = sorted(status.sessions, key=lambda session: (-session.commands, session.session_id))[:SESSIONS_SHOWN]
    sessions = [
        f"{session.session_id} {session.name or ''} in {session.cwd}: "
        f"{session.commands} running, {session.violations} blocked"
        + (f" ({session.violations_lost} of them too fast to record)" if session.violations_lost else "")
        for session in shown
    ]
    if len(status.sessions) > len(shown):
        sessions.append(f"and {len(status.sessions) - len(shown)} more (--json has them all)")
    rows += _listed("sessions", sessions)
    rows += _listed("published", [f"{port} ({s.session_id})" for s in status.sessions for port in s.published])
    files = [f"{file.path} ({file.source}, {file.state})" for file in status.settings if file.state != "absent"]
    rows += _listed("settings", files or ["no settings file, only defaults"])
    rows += _listed("network", list(status.network))
    if status.audit is not None and status.audit.enabled:
        audit = status.audit
        lost = f", {audit.lost} lost" if audit.lost else ""
        stopped = "; nothing new runs" if audit.blocking and audit.failure else ""
        rows.append(("audit", f"{audit.path}, {counted(audit.lines, 'line')}{lost}{stopped}"))
    rows.append(("program", status.program or "unknown"))
    rows.append(("client", f"version {__version__}, {'the same program' if status.program == PACKAGE else PACKAGE}"))
    rows.append(("socket", status.socket + (" (the service manager's)" if status.activated else "")))
    if status.startup:
        parts = ", ".join(f"{phase.name} {phase.seconds:.2f}" for phase in status.startup)
        rows.append(("start", f"took {sum(phase.seconds for phase in status.startup):.2f} s ({parts})"))
    return rows


def duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    left = max(int(seconds), 0)
    parts: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
        left %= size
    return " ".join(parts[:2])


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(label: str, values: list[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", value) for index, value in enumerate(values)]
