"""`sandboxd serve`: the daemon in the foreground. The only command that imports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.cli.arguments import Option, UsageError, parse, visible
from sandboxd.cli.asking import no_words, show_help
from sandboxd_client.commands import absolute
from sandboxd_client.connection import usable_path

SYNTAX = (
    "serve [--socket P] [--settings F] [--log-format console|json|journal] [--idle-exit SECONDS] [--resolve NAME=ADDR]…"
)
OPTIONS = (
    Option("--socket", "listen here", value="PATH"),
    Option("--settings", "a settings file that only managed settings can overrule", value="FILE"),
    Option(
        "--log-format",
        "how to log (console on a terminal, journal below systemd, else json)",
        value="FORMAT",
        only=("console", "json", "journal"),
    ),
    Option("--idle-exit", "end when nothing has been in use for so many seconds", value="SECONDS"),
    Option("--resolve", "pin a host name to an address", value="NAME=ADDR", many=True),
)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `app_process.main` is given. Paths are absolute; `resolve` is as written (NAME=ADDR)."""

    socket: str | None = None
    settings: str | None = None
    log_format: str | None = None
    resolve: tuple[str, ...] = ()
    idle_exit: float | None = None


def main(arguments: Sequence[str]) -> int:
    parsed = parse(arguments, OPTIONS)
    if show_help(parsed, SYNTAX, "Run the daemon in the foreground.", OPTIONS):
        return 0
    no_words(parsed)
    options = ServeOptions(
        socket=usable_path(absolute(parsed.get("socket"))) if "socket" in parsed else None,
        settings=absolute(parsed.get("settings")) if "settings" in parsed else None,
        log_format=parsed.get("log_format"),
        resolve=tuple(parsed.many("resolve")),
        idle_exit=seconds(parsed.get("idle_exit")) if "idle_exit" in parsed else None,
    )
    from sandboxd.app_process import main as run_daemon

    return run_daemon(options)


def seconds(text: str) -> float:
    """Raises UsageError for what is no number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"--idle-exit needs a number of seconds above 0, not {visible(text, 40)}")
    return value
