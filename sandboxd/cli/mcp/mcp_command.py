"""`sandboxd mcp`: a server of the Model Context Protocol over standard input and output."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sandboxd.cli.arguments import NO_AUTOSTART, Help, Option, UsageError
from sandboxd.cli.output import fail

_SERVER_ONLY = ("output_limit", "no_autostart")
HELP = Help(
    "mcp [OPTION…] | mcp --wrap [OPTION…] [--] CMD ARG…",
    """Serve tools that run commands in the sandbox to a client of the Model Context Protocol, on standard input and
output: run, start, read, stop, explain and request_permission. All commands share one session.

With --wrap, run the MCP server CMD in the sandbox instead; its protocol passes through unchanged.""",
    (
        Option("--wrap", "run another MCP server, which follows, in the sandbox"),
        Option("--cwd", "the directory of the project (default: the current one)", value="DIR"),
        Option("--allow-domain", "--wrap: let the server connect to this host", value="HOST", many=True),
        Option("--allow-write", "--wrap: let the server write this path", value="PATH", many=True),
        Option(
            "--allow-read",
            "--wrap: let the server read this path although the settings deny it",
            value="PATH",
            many=True,
        ),
        Option("--settings", "--wrap: add a settings file: a path, or a NAME of run --learn", value="FILE"),
        Option("--output-limit", "characters of one output; the middle of a longer one is left out (30000)", value="N"),
        NO_AUTOSTART,
    ),
    ("mcp", "mcp --wrap --allow-domain api.example.org -- npx some-server"),
    words=("COMMAND",),
    statuses="0 the client has closed the connection, 2 a wrong command line, 125 an error; with --wrap those of run",
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    if "wrap" in parsed:
        if parsed.command is None:
            raise UsageError("--wrap needs the command of an MCP server", "usage: sandboxd mcp --wrap -- CMD ARG…")
        if any(name in parsed for name in _SERVER_ONLY[:1]):
            raise UsageError("--output-limit is not an option of --wrap")
        from sandboxd.cli.execution.run import main as run

        options = [word for word in arguments[: len(arguments) - len(parsed.command)] if word not in ("--wrap", "--")]
        return run([*options, "--", *parsed.command])
    if parsed.command is not None:
        raise UsageError("a command needs --wrap", "usage: sandboxd mcp --wrap -- CMD ARG…")
    for option in HELP.options:
        if option.key in parsed and option.text.startswith("--wrap: "):
            raise UsageError(f"{option.name} is an option of --wrap", "put such rules into the settings of the project")
    limit = parsed.get("output_limit") or "30000"
    if not (limit.isascii() and limit.isdigit() and 100 <= int(limit) <= 10_000_000):
        raise UsageError("--output-limit needs a number from 100 to 10000000")
    cwd = os.path.abspath(parsed.get("cwd") or ".")
    if not os.path.isdir(cwd):
        raise UsageError(f"--cwd: {cwd} is not a directory")
    try:
        from sandboxd.cli.mcp.server import serve
    except ImportError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        return fail("sandboxd mcp needs the package mcp, which is not installed", "pip install 'sandboxd[mcp]'")
    serve(cwd, int(limit), autostart="no_autostart" not in parsed)
    return 0
