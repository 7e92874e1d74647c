"""Messages of the command line on standard error: `sandboxd: …`, `hint: …`."""

from __future__ import annotations

import sys

from sandboxd.cli.arguments import visible

USAGE = 2
NOT_RUN = 125  # nothing was run, or nothing could be answered
NOT_EXECUTABLE = 126
NOT_FOUND = 127

_LINE = 2000


def fail(message: str, hint: str = "", status: int = NOT_RUN) -> int:
    """Print an error and its hint, and return the exit status."""
    text = f"sandboxd: {visible(' '.join(message.split()), _LINE)}\n"
    if hint:
        text += f"hint: {visible(' '.join(hint.split()), _LINE)}\n"
    _write_error(text)
    return status


def warn(message: str) -> None:
    _write_error(f"sandboxd: warning: {visible(' '.join(message.split()), _LINE)}\n")


def quoted(target: str) -> str:
    """Format a name that came from a command: cut, and quoted unless plain."""
    shown = visible(target)
    plain = all(c.isalnum() or c in "_@%+=:,./~-\\[]*…" for c in shown) and shown
    return shown if plain else '"' + shown.replace('"', '\\"') + '"'


def note(line: str) -> None:
    """Print a line that is neither an error nor the command's output."""
    _write_error(visible(line, _LINE) + "\n")


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # no standard error: the exit status remains
        return
