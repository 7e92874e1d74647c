"""Messages of the command line on standard error: `sandboxd: …`, `hint: …`."""

from __future__ import annotations

import os
import sys

from sandboxd.cli.arguments import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

USAGE = 2
NOT_RUN = 125  # nothing was run, or nothing could be answered
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SUSPICIOUS = (1, NOT_RUN)  # failures of bubblewrap or the helper, or the command's status: the daemon knows

_LINE = 2000
_COLOURS = {"red": "1;31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1"}


def fail(message: str, hint: str = "", status: int = NOT_RUN) -> int:
    """Print an error and its hint, and return the exit status."""
    text = f"{coloured('sandboxd:', 'red', sys.stderr)} {visible(' '.join(message.split()), _LINE)}\n"
    if hint:
        text += f"{coloured('hint:', 'cyan', sys.stderr)} {visible(' '.join(hint.split()), _LINE)}\n"
    _write_error(text)
    return status


def warn(message: str) -> None:
    head = coloured("sandboxd: warning:", "yellow", sys.stderr)
    _write_error(f"{head} {visible(' '.join(message.split()), _LINE)}\n")


def coloured(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return `text` in a colour where the stream, else standard output, is a terminal that shows colours.

    NO_COLOR (no-color.org) and TERM=dumb turn them off."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return text
    try:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if stream.isatty() else text
    except (ValueError, AttributeError):  # it is closed
        return text


def quoted(target: str) -> str:
    """Format a name that came from a command: cut, and quoted unless plain."""
    shown = visible(target)
    plain = all(c.isalnum() or c in "_@%+=:,./~-\\[]*…" for c in shown) and shown
    return shown if plain else '"' + shown.replace('"', '\\"') + '"'


def note(line: str) -> None:
    """Print a line, if any, that is neither an error nor the command's output."""
    if line:
        _write_error(visible(line, _LINE) + "\n")


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # no standard error: the exit status remains
        return
