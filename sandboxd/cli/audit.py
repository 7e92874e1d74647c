"""`sandboxd audit show` and `audit verify`: readers of the log files.

They work without a daemon, and on copies."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sandboxd.cli.arguments import JSON, Help, Option, Parsed, UsageError, no_words, visible
from sandboxd.cli.daemon_client import json_text, print_json
from sandboxd.cli.output import fail, note
from sandboxd.daemon.audit.audit_chain import default_path, records, verify
from sandboxd_client import Client, SandboxdError
from sandboxd_client.wire.location import STATE_DIRECTORY

FILE = Option("--file", "read this file instead of the log that the settings name", value="FILE")
SHOW = (
    Option("--since", "show lines from this time on: 2026-01-31, 2026-01-31T08:00, or 30m, 12h, 7d ago", value="TIME"),
    Option("--command-id", "show lines of this command only", value="ID"),
    Option("--kind", "show lines of this kind: run, ended, violation, connection, answer, settings, …", value="KIND"),
    FILE,
    JSON,
)
VERIFY = (FILE, JSON)
SEND = (
    Option(
        "--otlp",
        "send: the collector, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_HEADERS adds headers",
        value="URL",
    ),
    Option("--once", "send: end when everything has been sent"),
    FILE,
)
HELP = Help(
    "audit (show | verify | send --otlp URL) [--file FILE]",
    "Read the audit log, or send it with the metrics to a collector of OpenTelemetry.",
    (*SEND[:2], *SHOW),
    ("audit show --since 12h --kind run", "audit verify", "audit send --otlp http://127.0.0.1:4318"),
    words=("show", "verify", "send"),
    negative="the log was changed",
)
_SHOW_HELP = Help(
    "audit show [--since TIME] [--command-id ID] [--kind KIND] [--file FILE] [--json]",
    "Print what the audit log says.",
    SHOW,
    ("audit show --since 12h --kind run",),
)
_VERIFY_HELP = Help(
    "audit verify [--file FILE] [--json]",
    "Follow the chain of the audit log. Exit status 1 when a line was changed, removed or moved.",
    VERIFY,
    ("audit verify",),
    negative="the log was changed",
)
_SEND_HELP = Help(
    "audit send --otlp URL [--once] [--file FILE]",
    "Send the audit log and the metrics to a collector of OpenTelemetry, and go on where the last one ended.",
    SEND,
    ("audit send --otlp http://127.0.0.1:4318",),
)
BROKEN = 1
_AGO = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FIRST = ("seq", "time", "kind", "prev", "hash")


def main(arguments: Sequence[str]) -> int:
    actions: dict[str, Callable[[Sequence[str]], int]] = {"show": _show, "verify": _verify, "send": _send}
    if arguments and arguments[0] in actions:
        return actions[arguments[0]](arguments[1:])
    HELP.read(arguments)
    raise UsageError("audit takes one of: show, verify, send", "to verify the log: sandboxd audit verify")


def _show(arguments: Sequence[str]) -> int:
    parsed = _SHOW_HELP.read(arguments)
    no_words(parsed)
    since = _time(parsed.get("since")) if "since" in parsed else None
    for record in records(_files(_path(parsed))):
        if since is not None and str(record.get("time", "")) < since:
            continue
        if "command_id" in parsed and record.get("command_id") != parsed.get("command_id"):
            continue
        if "kind" in parsed and record.get("kind") != parsed.get("kind"):
            continue
        text = json_text(record) if "json" in parsed else visible(_line(record), 20_000)
        sys.stdout.write(text + "\n")
    return 0


def _verify(arguments: Sequence[str]) -> int:
    parsed = _VERIFY_HELP.read(arguments)
    no_words(parsed)
    path = _path(parsed)
    found = verify(_files(path), _head(path))
    if "json" in parsed:
        print_json(
            {
                "ok": found.ok,
                "path": path,
                "lines": found.lines,
                "first": found.first,
                "last": found.last,
                "faults": [{"file": f.file, "line": f.line, "text": f.text} for f in found.faults],
                "notes": list(found.notes),
            }
        )
        return 0 if found.ok else BROKEN
    for text in found.notes:
        note(f"note: {text}")
    for fault in found.faults:
        place = f"{fault.file}:{fault.line}" if fault.line else fault.file
        sys.stdout.write(visible(f"{place}: {fault.text}", 2000) + "\n")
    if not found.ok:
        return fail(f"the audit log {path} is not whole: {len(found.faults)} faults", status=BROKEN)
    sys.stdout.write(f"whole: {found.lines} lines, {found.first} to {found.last}\n")
    return 0


def _send(arguments: Sequence[str]) -> int:
    parsed = _SEND_HELP.read(arguments)
    no_words(parsed)
    endpoint = parsed.get("otlp") or ""
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError("audit send needs the address of a collector", "name it: --otlp http://127.0.0.1:4318")
    try:
        from sandboxd.cli import otlp
    except ImportError as error:
        if error.name is None or not error.name.startswith(("opentelemetry", "prometheus_client")):
            raise
        return fail(
            f"audit send needs the package {error.name}, which is not installed", "pip install 'sandboxd[otel]'"
        )
    path = _path(parsed)
    place = os.path.join(os.path.expanduser("~"), STATE_DIRECTORY, "audit-sent.json")
    follower = otlp.Follower(path, lambda: records(_files(path)), _sent(place, path))

    def save(number: int) -> None:
        with open(
            f"{place}.new", "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as file:
            json.dump({"path": path, "sent": number}, file)
        os.replace(f"{place}.new", place)

    taken = otlp.send(endpoint, follower, save, note, once="once" in parsed)
    return 0 if taken else fail(f"the collector at {endpoint} did not take everything", "start it, and run this again")


def _sent(place: str, path: str) -> int:
    """Return the number of the last line of a log that was sent, 0 for none."""
    try:
        with open(place, encoding="utf-8") as file:
            found = json.load(file)
        return int(found["sent"]) if found["path"] == path else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _line(record: dict[str, Any]) -> str:
    rest = [
        f"{key}={value if isinstance(value, str) and ' ' not in value else json.dumps(value, ensure_ascii=False)}"
        for key, value in record.items()
        if key not in _FIRST and value not in (None, [], "")
    ]
    return f"{record.get('time', '?')} {record.get('seq')} {record.get('kind', '?')} {' '.join(rest)}".rstrip()


def _path(parsed: Parsed) -> str:
    """Return the path of the log. Raises SandboxdError without one."""
    named = parsed.get("file")
    path = os.path.abspath(named) if named else _path_of_daemon() or default_path(os.path.expanduser("~"))
    if not os.path.exists(path):
        raise SandboxdError(
            "audit_missing",
            f"there is no audit log {path}",
            hint='set audit: {"enabled": true} in user or managed settings to switch it on',
        )
    return path


def _path_of_daemon() -> str | None:
    """Return the log's path as the running daemon reports it."""
    try:
        with Client(autostart=False) as box:
            status = box.status()
    except SandboxdError:
        return None
    return None if status.audit is None else status.audit.path


def _files(path: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """All files of the log, oldest first, each with its lines."""
    directory, name = os.path.split(path)
    older = re.compile(re.escape(name) + r"\.(\d{1,4})")
    numbers = [int(found[1]) for entry in os.listdir(directory) if (found := older.fullmatch(entry))]
    for file in [*(f"{path}.{number}" for number in sorted(numbers, reverse=True)), path]:
        yield file, _lines(file)


def _lines(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from iter(lambda: file.readline(2 << 20), b"")
    except OSError as error:
        raise SandboxdError("audit_unreadable", f"cannot read {path}: {error.strerror}") from error


def _head(path: str) -> bytes | None:
    try:
        with open(f"{path}.head", "rb") as file:
            return file.read(200)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SandboxdError("audit_unreadable", f"cannot read {path}.head: {error.strerror}") from error


def _time(text: str) -> str:
    """Return a point in time in the log's format."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            seconds = int(ago[1]) * _SECONDS[ago[2]]
            at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
        else:
            at = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"not a time: {visible(text)}", "write 2026-01-31, 2026-01-31T08:00, or 30m, 12h, 7d"
        ) from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
