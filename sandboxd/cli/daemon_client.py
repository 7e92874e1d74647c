"""The client and the output of commands that call the daemon."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from sandboxd.cli.arguments import Parsed, visible
from sandboxd.cli.output import coloured
from sandboxd_client import Client
from sandboxd_client.wire.messages.decisions import ReasonRecord
from sandboxd_client.wire.params import encode


def client(parsed: Parsed) -> Client:
    return Client(autostart="no_autostart" not in parsed)


def print_json(answer: object) -> None:
    value = answer if isinstance(answer, Mapping) else encode(answer)
    sys.stdout.write(json_text(value, indent=2) + "\n")


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON for a terminal.

    Invisible characters, as in names of files and sessions, are JSON escapes, so that programs read the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


_COLOURS = {"OFF": "red", "FAILED": "red", "warnings": "yellow", "hint": "cyan"}


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Print labels and values, aligned; an empty label continues the row above."""
    width = max(len(label) for label, _ in rows) + 1
    for label, value in rows:
        head = f"{label}:" if label else ""
        colour = _COLOURS.get(label, "bold")
        sys.stdout.write(f"{coloured(f'{head:<{width}}', colour)} {visible(value, 2000)}\n")


def reason_rows(reason: ReasonRecord, hint: str) -> list[tuple[str, str]]:
    rows = [("reason", f"{reason.text} ({reason.type})")]
    if reason.rule is not None:
        rows.append(("rule", reason.rule))
    if reason.origin is not None:
        rows.append(("from", str(reason.origin)))
    if hint:
        rows.append(("hint", hint))
    return rows


def as_text(value: Any) -> str:
    """Format a settings value on one line."""
    return json_text(value)
