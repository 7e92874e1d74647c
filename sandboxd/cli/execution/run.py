"""`sandboxd run`: one command in the sandbox.

The hot path of the command line: each import costs start-up time."""

from __future__ import annotations

import os
import sys
import time

from sandboxd.cli import output
from sandboxd.cli.arguments import NO_AUTOSTART, Help, Option, Parsed, UsageError, visible
from sandboxd.cli.execution.foreground import DEFAULT_GRACE_S, run_in_foreground, signal_mask
from sandboxd.cli.execution.told import After, kept_line, outcome
from sandboxd_client.errors import DaemonNotRunning, InvalidCommand, SandboxdError
from sandboxd_client.running.commands import SESSION_VARIABLE, absolute, check_command, sendable
from sandboxd_client.transport.connection import Connection, open_connection, usable_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from sandboxd.cli.execution.handed_over import HandedOver
    from sandboxd_client.running.relay import Relay

SUMMARY = "Run one command in the sandbox. Streams, terminal and exit status are the command's."
SYNTAX = "run [OPTION…] ([--] CMD ARG… | -c TEXT)"
OPTIONS = (
    Option("-c", "run this line in your shell ($SHELL: bash, zsh, fish or dash)", value="TEXT"),
    Option("--shell", "run the line of -c in this shell: a path, or a name in PATH", value="SHELL"),
    Option("--login", "let the shell of -c read the start-up files of a login"),
    Option("--cwd", "run in this directory", value="DIR"),
    Option(
        "--allow-domain", "let the command connect to this host, besides those of the settings", value="HOST", many=True
    ),
    Option("--allow-write", "let the command write this path, besides those of the settings", value="PATH", many=True),
    Option("--allow-read", "let the command read this path although the settings deny it", value="PATH", many=True),
    Option(
        "--publish",
        "let this machine reach a server in the sandbox: [HOST:]PORT[:INNER], or SOCKET:INNER for you alone",
        value="PORT",
        many=True,
    ),
    Option(
        "--settings",
        "add settings for this command: the path of a file, a NAME of --learn, or an object as JSON",
        value="FILE",
    ),
    Option("--profile", "add what this agent needs: hosts, directories, variables (see profile list)", value="NAME"),
    Option("--memory", "limit the memory of the command: 512M, 2G", value="SIZE"),
    Option("--cpus", "limit the processors of the command: 1.5", value="NUMBER"),
    Option("--timeout", "end the command after this time: 90s, 10m, 1h30m", value="TIME"),
    Option(
        "--ignore-unknown-restrictions",
        "run the command although a restriction in the settings is unknown and not enforced",
    ),
    Option(
        "--session",
        "run in this session: its ID or NAME, auto for that of the agent that starts this, or auto:KEY "
        "(default: $SANDBOXD_SESSION)",
        value="ID",
    ),
    Option("--command-id", "list what is blocked under this name of the command", value="ID"),
    Option("--decide", "decide first whether the command may run, and whether in the sandbox, as for an agent's tool"),
    Option("--disable-sandbox", "request to run the command without a sandbox; a user must confirm it"),
    Option("--annotate", "hold standard error back until the end, and put a block of what was blocked below it"),
    Option("--relay-stdio", "pass pipes in place of network sockets as standard streams, and copy the bytes"),
    Option("--show-violations", "list afterwards each access that was blocked"),
    Option("--quiet", "do not tell what was blocked, as is done after a failed command and on a terminal"),
    Option("--ask", "ask in this terminal about hosts that no rule allows, as prompts does in another one"),
    Option(
        "--learn",
        "write the settings that the command needed: to this path, or under a NAME for --settings NAME",
        value="FILE",
    ),
    Option("--grace", f"seconds between the first signal to end and SIGKILL ({DEFAULT_GRACE_S:g})", value="SECONDS"),
    NO_AUTOSTART,
)
HELP = Help(
    SYNTAX,
    SUMMARY,
    OPTIONS,
    ("run npm test", "run --allow-domain registry.example.org npm ci", "run -c 'make && ./demo'"),
    words=("COMMAND",),
    statuses="the command's; 125 nothing was run, or the end was not confirmed, "
    "126 not executable, 127 not found, 128+N ended by signal N",
)
_LIMITS = frozenset(("memory-limit", "memory-limit-watched", "time-limit"))
"""Layers that end a command which meets them: that is told."""
_SHELLS = ("bash", "zsh", "fish", "dash")
_LONGEST_ANNOTATED = 512 << 10

_WRAPS_TRIED = 3
"""Wraps of one command while settings change before its start."""


def main(arguments: Sequence[str], begun: HandedOver | None = None) -> int:
    parsed = HELP.read(arguments)
    _fill_standard_descriptors()
    try:
        text, argv = _command(parsed)
        check_command(text, argv)
        params = _wrap_params(parsed, text, argv)
        grace_s = _grace(parsed)
        after = After(parsed)
        connection = begun or _connect(autostart="no_autostart" not in parsed)
        try:
            _join(connection, params)
            if "profile" in parsed:
                from sandboxd.cli.execution.profiled import add_profile

                add_profile(connection, params, parsed.get("profile"))
            if "disable_sandbox" in parsed or "decide" in parsed:
                from sandboxd.cli.execution.unsandboxed import decide_first

                status = decide_first(connection, params, outside="disable_sandbox" in parsed)
                if status is not None:
                    return status
            relays = "relay_stdio" in parsed
            if "ask" in parsed:
                from sandboxd.cli.prompts import answer_beside

                after.stop_asking = answer_beside()
            if "learn" not in parsed:
                return _run(connection, params, grace_s, after, relays=relays, begun=begun)
            from sandboxd.cli.execution.learn import LearnedFile

            with LearnedFile.opened(parsed.get("learn")) as after.learn:
                return _run(connection, params, grace_s, after, relays=relays)
        finally:
            after.stop_asking()
            connection.close()
    except InvalidCommand as error:
        raise UsageError(error.message, error.hint) from None


def _run(
    connection: Connection,
    params: dict[str, Any],
    grace_s: float,
    after: After,
    *,
    relays: bool,
    begun: HandedOver | None = None,
) -> int:
    mask = signal_mask()
    relay: Relay | None = None
    for left in reversed(range(_WRAPS_TRIED)):
        if relays:
            relay = _relay_after(relay)
        if begun is not None and begun.was_spawned:
            wrapped = begun.call("wrap", params)
            status = _told(begun, wrapped, begun.status(), begun.begun, after, again=left > 0)
            begun = None
        else:
            status = _run_once(connection, params, grace_s, mask, relay, after, again=left > 0)
        if status is not None:
            return status
    raise AssertionError("the last try has a status")


def _relay_after(failed: Relay | None) -> Relay:
    from sandboxd_client.running.relay import Relay

    return Relay((0, 1, 2), after=failed)


def _run_once(
    connection: Connection,
    params: dict[str, Any],
    grace_s: float,
    mask: frozenset[int],
    relay: Relay | None,
    after: After,
    *,
    again: bool,
) -> int | None:
    """Run the command once and return its exit status.

    None when it did not start because of changed settings or files, and may be tried `again`."""
    wrapped = connection.call("wrap", params)
    for warning in wrapped["warnings"]:
        output.warn(warning)
    if any(":0:" in f":{text}:" for text in params.get("overrides", {}).get("publish", ())):
        for found in wrapped.get("published", ()):
            output.note(f"sandboxd: published {found}")
    begun = time.time()
    if after.annotate:
        status = _spawn_annotated(connection, wrapped, grace_s, mask, relay)
    else:
        status = _spawn(wrapped, grace_s, mask, relay)
    return _told(connection, wrapped, status, begun, after, again=again)


def _told(
    connection: Connection, wrapped: dict[str, Any], status: int, begun: float, after: After, *, again: bool
) -> int | None:
    """Tell what a command left and what was blocked, and return its exit status; None if it may be tried `again`."""
    if after.tell and wrapped.get("tmp"):
        output.note(kept_line(wrapped["tmp"], begun, lasts=bool(after.session)))
    limited = status >= output.NOT_RUN and any(layer in _LIMITS for layer in wrapped["layers"])
    limited = limited or (status != 0 and "tmp-limit" in wrapped["layers"])
    told = after.tell and (status != 0 or _is_terminal(2))
    if status in output.SUSPICIOUS or limited or told or after.show or after.learn is not None:
        return outcome(connection, wrapped["wrap_id"], status, after, told=told, again=again)
    return status


def _fill_standard_descriptors() -> None:
    """Open closed descriptors 0, 1 and 2, so that no other file gets their numbers."""
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _command(parsed: Parsed) -> tuple[str | None, list[str] | None]:
    text: str | None = parsed.get("c")
    if text is not None:
        if parsed.command is not None:
            raise UsageError(
                f"unexpected word {visible(' '.join(parsed.command[:1]), 60)} beside -c TEXT",
                "give a command, or a shell line with -c; for a line with arguments: sandboxd run sh -c TEXT NAME ARG…",
            )
        return text, None
    if not parsed.command:
        raise UsageError("no command given", "usage: sandboxd " + SYNTAX)
    return None, parsed.command


def _grace(parsed: Parsed) -> float:
    if "grace" not in parsed:
        return DEFAULT_GRACE_S
    try:
        grace_s = float(parsed.get("grace"))
    except ValueError:
        grace_s = -1.0
    if not 0 <= grace_s <= 86400:
        raise UsageError(f"--grace needs a number of seconds, not {visible(parsed.get('grace'))}")
    return max(grace_s, 0.001)  # a timer of 0 never fires


def _wrap_params(parsed: Parsed, text: str | None, argv: list[str] | None) -> dict[str, Any]:
    cwd = absolute(parsed.get("cwd"))
    if not os.path.isdir(cwd):
        raise InvalidCommand("cwd_missing", f"--cwd: {cwd} is not a directory")
    params: dict[str, Any] = {"cwd": cwd, "env": sendable(os.environ)}
    if text is not None:
        params["command"] = text
        if shell := _shell(parsed):
            params["shell"] = shell
        if "login" in parsed:
            params["login"] = True
    elif "shell" in parsed or "login" in parsed:
        raise UsageError("--shell and --login need a shell line: -c TEXT")
    else:
        params["argv"] = argv
    if session := parsed.get("session") or os.environ.get(SESSION_VARIABLE):
        params["session_id"] = session
    if "command_id" in parsed:
        params["command_id"] = parsed.get("command_id")
    overrides: dict[str, Any] = {}
    for option, name in (
        ("allow_domain", "allow_domains"),
        ("allow_write", "allow_write"),
        ("allow_read", "allow_read"),
    ):
        given = parsed.many(option)
        if given:
            overrides[name] = given if option == "allow_domain" else [_rule_path(path, parsed) for path in given]
    if parsed.many("publish"):
        overrides["publish"] = [_publication(text) for text in parsed.many("publish")]
    if "settings" in parsed:
        overrides["settings"] = _settings(parsed.get("settings"))
    if limits := _limits(parsed):
        overrides["limits"] = limits
    if "ignore_unknown_restrictions" in parsed:
        overrides["ignore_unknown_restrictions"] = True
    if overrides:
        params["overrides"] = overrides
    return params


def _shell(parsed: Parsed) -> str | None:
    """Return the shell of -c: the one named, or that of the user; None for bash.

    A decision is about a line of bash, so --decide and --disable-sandbox run it in that."""
    decides = "decide" in parsed or "disable_sandbox" in parsed
    named: str | None = parsed.get("shell")
    if named is None:
        users = os.environ.get("SHELL", "")
        known = not decides and users.startswith("/") and os.path.basename(users) in _SHELLS
        return users if known and os.access(users, os.X_OK) else None
    if decides:
        raise UsageError("--shell cannot be used with --decide and --disable-sandbox, which judge a line of bash")
    if "/" in named:
        return absolute(named)
    for directory in os.environ.get("PATH", os.defpath).split(":"):
        if directory.startswith("/") and os.access(path := os.path.join(directory, named), os.X_OK):
            return path
    raise UsageError(f"--shell: there is no program {visible(named)} in PATH")


def _limits(parsed: Parsed) -> dict[str, Any]:
    named = (("memory", "memory"), ("time", "timeout"), ("cpu", "cpus"))
    limits = {key: parsed.get(option) for key, option in named if option in parsed}
    if "cpu" in limits:
        try:
            limits["cpu"] = float(limits["cpu"])
        except ValueError:
            raise UsageError(f"--cpus needs a number of processors, not {visible(limits['cpu'])}") from None
    return limits


def _join(connection: Connection, params: dict[str, Any]) -> None:
    """Put the session of the agent, or of a key, in the place of `auto`."""
    name, _, key = params.get("session_id", "").partition(":")
    if name == "auto":
        question = {"cwd": params["cwd"], **({"key": key} if key else {})}
        params["session_id"] = connection.call("session.join", question)["session_id"]


def _rule_path(path: str, parsed: Parsed) -> str:
    """Resolve a relative path against the user's directory, not `--cwd`.

    Without `--cwd` it stays relative, so that the directory's own name is not taken for a pattern."""
    if not path or path[0] in "/~$":
        return path
    return absolute(path) if "cwd" in parsed else f"./{path.removeprefix('./')}"


def _publication(text: str) -> str:
    path, _, inner = text.rpartition(":")
    return f"{absolute(path)}:{inner}" if "/" in path else text


def _connect(*, autostart: bool) -> Connection:
    path = usable_path()
    try:
        return open_connection(path)
    except DaemonNotRunning:
        if not autostart:
            raise
    from sandboxd_client.transport.starting import connect_or_start

    return connect_or_start(path)


def _settings(name: str) -> Any:
    if name.startswith("{"):
        import json

        try:
            return json.loads(name)
        except ValueError as error:
            raise UsageError(f"--settings: the object is no valid JSON: {error}") from None
    if "/" in name:
        return absolute(name)
    from sandboxd.cli.execution.learn import settings_path

    return settings_path(name)


def _spawn(wrapped: dict[str, Any], grace_s: float, mask: frozenset[int], relay: Relay | None) -> int:
    environment = dict(os.environ)
    environment.update(wrapped["env"]["set"])
    for name in wrapped["env"]["unset"]:
        environment.pop(name, None)
    try:
        os.chdir(wrapped["cwd"])
        return run_in_foreground(wrapped["argv"], environment, grace_s, mask, relay)
    except OSError as error:
        what = error.filename or wrapped["argv"][0]
        return output.fail(f"cannot start the sandbox: {what}: {error.strerror}", "run: sandboxd check")


def _spawn_annotated(
    connection: Connection, wrapped: dict[str, Any], grace_s: float, mask: frozenset[int], relay: Relay | None
) -> int:
    """Run the command with its standard error held back, and print that with its block."""
    import tempfile

    with tempfile.TemporaryFile() as held:
        saved = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            status = _spawn(wrapped, grace_s, mask, relay)
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        left_out = max(held.seek(0, os.SEEK_END) - _LONGEST_ANNOTATED, 0)
        held.seek(left_out)
        text = held.read().decode("utf-8", "replace")
    try:
        text = connection.call("violation.annotate", {"command_id": wrapped["wrap_id"], "stderr": text}, 10.0)["stderr"]
    except SandboxdError as error:
        output.warn(f"cannot list what was blocked: {error.message}")
    sys.stderr.write((f"sandboxd: the first {left_out} bytes are left out\n" if left_out else "") + text)
    sys.stderr.flush()
    return status


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
