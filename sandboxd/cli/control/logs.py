"""`sandboxd logs`: the log of the daemon, from its file or from systemd's journal."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from sandboxd.cli.arguments import Help, Option, no_words, visible
from sandboxd.cli.output import fail
from sandboxd_client import programs
from sandboxd_client.transport.activation import daemon_pid
from sandboxd_client.transport.connection import usable_path
from sandboxd_client.wire.location import log_paths

HELP = Help(
    "logs [-f]",
    "Show the log of the daemon. It is kept when the daemon ends, in ~/.local/state/sandboxd or in systemd's journal.",
    (
        Option("-f", "go on with what is logged from now on"),
        Option("--follow", "the same as -f"),
        Option("--json", "print the lines of the file as they are: JSON"),
    ),
    ("logs -f",),
    negative="there is no log",
)
NO_LOG = 1
_LOOK_S = 0.2
_FIRST = ("timestamp", "level", "event")


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    path, follows = _log_file(), "f" in parsed or "follow" in parsed
    if _is_in_the_journal(path):
        _show_journal(follows)
    found = False
    for line in _lines(path, follows):
        found = True
        sys.stdout.write((line if "json" in parsed else _readable(line)) + "\n")
        sys.stdout.flush()
    if found:
        return 0
    return fail(f"there is no log {path}: no daemon has written one", "start a daemon with: sandboxd run true", NO_LOG)


def _log_file() -> str:
    if sys.platform == "darwin":
        from sandboxd.cli.service.launchd_service import own_agent

        agent = own_agent()
        if os.path.exists(agent.plist_path):
            return agent.log_path
    paths = log_paths(usable_path(), os.environ.get("HOME") or programs.home_of_the_user())
    return max(filter(os.path.exists, paths), key=os.path.getmtime, default=paths[0])


def _is_in_the_journal(path: str) -> bool:
    """Return whether systemd runs the daemon, or would and no file is there."""
    if not sys.platform.startswith("linux"):
        return False
    from sandboxd.cli.service.systemctl import UserManager
    from sandboxd_client.errors import SandboxdError

    try:
        service = UserManager.reached().service()
    except SandboxdError:
        return False
    pid = daemon_pid(usable_path())
    if pid is not None:
        return str(pid) == service["MainPID"]
    return service["LoadState"] == "loaded" and not os.path.exists(path)


def _show_journal(follows: bool) -> None:
    """Execute journalctl(1) in the place of this program, if it is installed."""
    from sandboxd.cli.service.systemd_units import SERVICE

    program = programs.find("journalctl").path
    if program is not None:
        argv = [program, "--user", "-u", SERVICE, *(["--follow"] if follows else [])]
        os.execve(program, argv, programs.without_code(os.environ))


def _lines(path: str, follows: bool) -> Iterator[str]:
    """Yield the lines of the older part and of the file, and with `follows` those of each new file in its place."""
    yield from _part(f"{path}.1", False)
    yield from _part(path, follows)
    while follows:
        yield from _part(path, follows)


def _part(path: str, follows: bool) -> Iterator[str]:
    """Yield the lines of one file, with `follows` until another one is in its place."""
    try:
        with open(path, "rb") as file:
            yield from _complete(file)
            while follows and _is_at(path, file):
                time.sleep(_LOOK_S)
                yield from _complete(file)
    except OSError:  # there is none, or none yet
        if follows:
            time.sleep(_LOOK_S)


def _complete(file: BinaryIO) -> Iterator[str]:
    """Yield the complete lines that a file has now."""
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line.decode(errors="replace").rstrip("\n")


def _is_at(path: str, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return True  # between two parts


def _readable(line: str) -> str:
    try:
        record = json.loads(line)
        at = datetime.datetime.fromisoformat(record["timestamp"]).astimezone()
        rest = [f"{name}={_word(value)}" for name, value in record.items() if name not in _FIRST]
        text = f"{at:%Y-%m-%d %H:%M:%S} {record['level']:<7} {' '.join([record['event'], *rest])}"
    except (ValueError, KeyError, TypeError, AttributeError):  # written by Python, or by another program
        text = line
    return visible(text, 20_000)


def _word(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)
