"""`sandboxd serve`: the daemon in the foreground.

The only command that imports the daemon."""

from __future__ import annotations

import gc
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sandboxd.cli.arguments import Help, Option, UsageError, no_words, visible
from sandboxd_client import programs
from sandboxd_client.errors import SandboxdError
from sandboxd_client.records import dataclass
from sandboxd_client.running.commands import absolute
from sandboxd_client.transport.connection import usable_path

OPTIONS = (
    Option("--socket", "listen at this socket", value="PATH"),
    Option("--settings", "add a settings file that only managed settings overrule", value="FILE"),
    Option(
        "--log-format",
        "log as console (default on a terminal), journal (default under systemd) or json",
        value="FORMAT",
        only=("console", "json", "journal"),
    ),
    Option("--idle-exit", "end after so many seconds without use", value="SECONDS"),
    Option("--resolve", "pin a host name to an address", value="NAME=ADDR", many=True),
)


HELP = Help(
    "serve [OPTION…]",
    "Run the daemon in the foreground.",
    OPTIONS,
    ("serve", "serve --idle-exit 600 --log-format console"),
)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The arguments of `app.process.main`.

    Paths are absolute; `resolve` is as written (NAME=ADDR)."""

    socket: str | None = None
    settings: str | None = None
    log_format: str | None = None
    resolve: tuple[str, ...] = ()
    idle_exit: float | None = None


def main(arguments: Sequence[str]) -> int:
    if "--help" not in arguments:
        _go_on_isolated(arguments)
    parsed = HELP.read(arguments)
    no_words(parsed)
    options = ServeOptions(
        socket=usable_path(absolute(parsed.get("socket"))) if "socket" in parsed else None,
        settings=absolute(parsed.get("settings")) if "settings" in parsed else None,
        log_format=parsed.get("log_format"),
        resolve=tuple(parsed.many("resolve")),
        idle_exit=seconds(parsed.get("idle_exit")) if "idle_exit" in parsed else None,
    )
    gc.disable()  # what imports make stays: looking for garbage in it takes a tenth of the start
    with _without("rich"):
        from sandboxd.app.process import main as run_daemon

    gc.freeze()
    gc.enable()
    return run_daemon(options)


@contextmanager
def _without(library: str) -> Iterator[None]:
    """Hide a library from imports: structlog loads rich where it is installed, for tracebacks that this log never has.

    It takes 40 ms, a sixth of the start."""
    hidden = library not in sys.modules
    if hidden:
        sys.modules[library] = None  # type: ignore[assignment] # makes an import fail (import statement, reference)
    try:
        yield
    finally:
        if hidden:
            del sys.modules[library]


def _go_on_isolated(arguments: Sequence[str]) -> None:
    """Execute the daemon anew when the environment chose its interpreter or modules.

    Commands may write to the places named there, and the daemon would keep them over each restart."""
    environment = programs.without_code(os.environ)
    if sys.flags.isolated and environment == dict(os.environ):
        return
    if importlib.machinery.PathFinder.find_spec("sandboxd", programs.isolated_path()) is None:
        raise SandboxdError(
            "not_isolated",
            "the daemon would be imported from the current directory or from PYTHONPATH, where commands may write",
            "install it with: ./dev install, in a checkout of sandboxd",
        )
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-I", "-m", "sandboxd", "serve", *arguments], environment)


def seconds(text: str) -> float:
    """Parse a number of seconds above 0. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"--idle-exit needs a number of seconds above 0, not {visible(text, 40)}")
    return value
