"""Options of `run` and `spawn`, arguments of the spawn, and exit statuses.

Both clients use it. No I/O."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import IO, Any, Literal, TypedDict, TypeVar

from sandboxd_client.errors import (
    ApprovalRequired,
    CommandDenied,
    InvalidCommand,
    SandboxSetupError,
    SettingsChanged,
    WrapOutdated,
)
from sandboxd_client.records import dataclass
from sandboxd_client.running.commands import Path, absolute, is_in_sandbox, sendable_search_path, sendable_settings
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.prompts import PermissionRequestResult
from sandboxd_client.wire.messages.wrap import OverridesRecord, WrapOutcomeResult, WrapResult

Command = str | Sequence[Path]
Stream = int | IO[Any] | None

DEFAULT_GRACE_S = 1.0
SUSPICIOUS = frozenset((1, 125))  # of bubblewrap and the helper, or of the command: only the daemon can tell
WRAPS_TRIED = 3
"""Wraps of one `run`, while settings or files change between the wrap and the start."""
_BARE_SHELLS = ("/bin/bash", "/bin/sh")  # the order in which the daemon chooses one


class OverridesDict(TypedDict, total=False):
    """Additions to the policy for one command, as `OverridesRecord` has them."""

    allow_domains: Sequence[str]
    allow_write: Sequence[str]
    allow_read: Sequence[str]
    settings: str | Mapping[str, Any] | None
    publish: Sequence[str] | None
    limits: Mapping[str, Any] | None
    ignore_unknown_restrictions: bool | None


class WrapOptions(TypedDict, total=False):
    """The keywords of `wrap`."""

    cwd: Path | None
    env: Mapping[str, str] | None  # the whole environment, as in subprocess
    environment: Literal["clean"] | None  # without env: only variables that hold no secrets by their meaning
    allow_env: Sequence[str]  # further variables of a clean environment
    shell: str | bool | None  # the path of the shell for a command line
    session_id: str | None
    command_id: str | None
    command_text: str | None
    overrides: OverridesRecord | OverridesDict | Mapping[str, Any] | None
    publish: Sequence[str | int] | None  # `[HOST:]PORT[:INNER]`, in addition to those of `overrides`


class BinaryOptions(WrapOptions, total=False):
    """The supported keywords of subprocess.Popen but `text`, and further ones."""

    stdin: Stream  # default: DEVNULL, as this process may speak a protocol there; None inherits
    stdout: Stream
    stderr: Stream
    relay_stdio: bool  # pipes in place of network sockets, copied until the command has ended
    bufsize: int
    universal_newlines: bool | None
    encoding: str | None
    errors: str | None
    umask: int
    pipesize: int
    start_new_session: bool | None  # default: True without the terminal, since a command can signal its process group
    process_group: int | None
    decide: bool  # ask `should_sandbox` first, and follow it
    dangerously_disable_sandbox: bool  # sent along with that query
    dangerouslyDisableSandbox: bool  # the same
    approve: Callable[[ShouldSandboxResult], Any] | None  # called with a decision that is "ask"
    grace: float  # seconds between TERM and KILL


class SpawnOptions(BinaryOptions, total=False):
    """The keywords of `spawn`."""

    text: bool | None


class _OfRun(TypedDict, total=False):
    """The further keywords of subprocess.run, and others."""

    input: bytes | str | None
    capture_output: bool
    timeout: float | None  # seconds until TERM; after `grace` the whole tree gets KILL
    check: bool
    on_violation: Literal["ask"] | None  # ask the user for a second run outside the sandbox
    annotate: bool | None  # a block of violations at the end of standard error; default: where it is captured as text
    max_output: int | None  # bytes to keep of each captured stream: its head and tail


class RunOptions(SpawnOptions, _OfRun, total=False):
    """The keywords of `run`."""


class TextOptions(BinaryOptions, _OfRun, total=False):
    """The keywords of `run` beside `text`."""


F = TypeVar("F", bound=Callable[..., Any])


def lists_keywords(allowed: type) -> Callable[[F], F]:
    """Add the keywords of a TypedDict to a function's documentation, as help() shows it."""

    def documented(function: F) -> F:
        function.__doc__ = f"{function.__doc__}\n\nKeywords: {', '.join(allowed.__annotations__)}."
        return function

    return documented


_CLEAN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TERM|COLORTERM|TERM_PROGRAM|NO_COLOR|FORCE_COLOR|TZ|PWD|COLUMNS|LINES"
    r"|CI|EDITOR|PAGER|VIRTUAL_ENV|CONDA_PREFIX|JAVA_HOME|GOPATH|GOROOT|CARGO_HOME|RUSTUP_HOME|NVM_DIR|XDG_\w+|MANPATH"
)
_SECRET = re.compile(
    r"(?i).*(TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL)(?!S?_(FILE|PATH|DIR|HELPER)).*"
)


def environment_of(options: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the environment that the options name; None for that of this process. Raises ValueError."""
    env, kind = options.get("env"), options.get("environment")
    if kind is None:
        return env
    if kind != "clean" or env is not None:
        raise ValueError(f"environment is 'clean', without env, not {kind!r}")
    allowed = options.get("allow_env", ())
    return {name: value for name, value in os.environ.items() if name in allowed or _CLEAN.fullmatch(name)}


@lru_cache(maxsize=1024)
def _looks_secret(name: str) -> bool:
    return _SECRET.fullmatch(name) is not None


def secrets_warning(options: Mapping[str, Any]) -> str:
    """Return the warning about variables of this process that look like secrets and reach the command; else ""."""
    if options.get("env") is not None or options.get("environment") is not None:
        return ""
    names = sorted(name for name in os.environ if _looks_secret(name) and os.environ.get(name))
    if not names:
        return ""
    return (
        f"commands get {', '.join(names)} from this process: pass environment='clean', and allow_env= for those needed"
    )


def check_options(options: Mapping[str, Any], allowed: type, function: str) -> None:
    """Refuse unknown keywords with TypeError, as Python does."""
    known = allowed.__annotations__  # a TypedDict collects those of its bases
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{advice}")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to spawn; `wrap` is None for one that may run bare."""

    args: Command
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    wrap: WrapResult | None
    decision: ShouldSandboxResult | None
    prepared: Any = None  # the waiting sandbox that runs it


def wrap_arguments(command: Command, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `wrap`. Raises InvalidCommand."""
    given: dict[str, Any] = {
        name: options[name]
        for name in ("cwd", "session_id", "command_id", "command_text")
        if options.get(name) is not None
    }
    if (env := environment_of(options)) is not None:
        given["env"] = env
    shell = _shell(command, options.get("shell"))
    if isinstance(command, str):
        given.update(command=command, shell=shell)
    else:
        given.update(argv=list(command))
    overrides = options.get("overrides")
    publish = options.get("publish")
    if overrides is not None or publish:
        given["overrides"] = overrides_of(overrides or {}, publish or ())
    return given


def overrides_of(overrides: OverridesRecord | Mapping[str, Any], publish: Sequence[str | int] = ()) -> OverridesRecord:
    """Return the overrides as a record. Raises TypeError for a wrong `publish`."""
    if isinstance(overrides, OverridesRecord):
        record = overrides
    else:
        single = ("settings", "limits", "ignore_unknown_restrictions")
        given: dict[str, Any] = {name: v if name in single else tuple(v) for name, v in overrides.items()}
        record = OverridesRecord(**given)
    if isinstance(publish, (str, int)):
        raise TypeError("publish is a list of ports, such as [3000] or ['8080:3000']")
    record = replace(record, settings=sendable_settings(record.settings))
    ports = (*(record.publish or ()), *map(str, publish))
    return replace(record, publish=ports) if ports else record


def _shell(command: Command, shell: str | bool | None) -> str | None:
    if shell is None or (shell is True and isinstance(command, str)):
        return None
    if isinstance(shell, str):
        if isinstance(command, str):
            return shell
        raise InvalidCommand("shell_unknown", "shell= needs the command as a string; this one is a list")
    if shell is False and not isinstance(command, str):
        return None
    wanted = "a string" if shell else "a list"
    raise InvalidCommand(
        "shell_unknown",
        f"shell={shell} needs the command as {wanted}",
        "a string is a shell line, a list a program with its arguments",
    )


def command_line(command: Command) -> str:
    """Return the command as one shell line, for a decision."""
    return command if isinstance(command, str) else shlex.join(os.fspath(word) for word in command)


def wants_outside(options: Mapping[str, Any]) -> bool:
    return bool(options.get("dangerously_disable_sandbox") or options.get("dangerouslyDisableSandbox"))


def search_path(options: Mapping[str, Any]) -> str:
    """Return the PATH of a command without a sandbox."""
    env = options.get("env")
    return sendable_search_path(os.environ if env is None else env)


def wrapped_launch(
    command: Command, options: Mapping[str, Any], wrap: WrapResult, decision: ShouldSandboxResult | None
) -> Launch:
    return Launch(command, wrap.argv, wrap.cwd, changed_environment(environment_of(options), wrap), wrap, decision)


def changed_environment(env: Mapping[str, str] | None, wrap: WrapResult) -> dict[str, str]:
    """Return the caller's environment with the changes of the daemon."""
    merged = dict(os.environ if env is None else env)
    merged.update(wrap.env.set)
    for name in wrap.env.unset:
        merged.pop(name, None)
    return merged


def bare_launch(command: Command, options: Mapping[str, Any], cwd: str, decision: ShouldSandboxResult) -> Launch:
    """Return a launch without a sandbox, for a decision that allows it."""
    if decision.sandboxed or decision.behavior == "deny":
        raise AssertionError("a bare launch without a decision for it")
    return _bare(command, options, cwd, decision.env, decision)


def approved_launch(command: Command, options: Mapping[str, Any], cwd: str, variables: Mapping[str, str]) -> Launch:
    """Return a launch without a sandbox, for a command that a user allowed."""
    return _bare(command, options, cwd, variables, None)


def _bare(
    command: Command,
    options: Mapping[str, Any],
    cwd: str,
    variables: Mapping[str, str],  # of the session: its commands share temporary files
    decision: ShouldSandboxResult | None,
) -> Launch:
    argv: tuple[str, ...]
    if isinstance(command, str):
        shell = _shell(command, options.get("shell")) or next(filter(os.path.exists, _BARE_SHELLS))
        argv = (shell, "-c", command)
    else:
        argv = tuple(os.fspath(word) for word in command)
    env = environment_of(options)
    return Launch(command, argv, cwd, {**(os.environ if env is None else env), **variables}, None, decision)


def check_decision(decision: ShouldSandboxResult, approved: bool | None) -> None:
    """Raise CommandDenied or ApprovalRequired unless the command may run."""
    if decision.behavior == "allow" or (decision.behavior == "ask" and approved):
        return
    why = "the command was not approved" if decision.behavior == "ask" else "the command is denied"
    raise CommandDenied("command_denied", f"{why}: {decision.reason.text}", decision.hint, decision)


def question_about(
    command: Command, options: Mapping[str, Any], decision: ShouldSandboxResult
) -> tuple[Literal["command", "sandbox_override"], dict[str, Any]]:
    """Return kind and keyword arguments of the `permission_request` for an ask."""
    kind = decision.question or ("command" if decision.sandboxed else "sandbox_override")
    return kind, {
        "session_id": options.get("session_id"),
        "cwd": absolute(options.get("cwd")),
        "command": command_line(command),
        "command_id": options.get("command_id"),
        "search_path": search_path(options),
        "is_sandbox": is_in_sandbox(options.get("env")),
    }


def answered(decision: ShouldSandboxResult, answer: PermissionRequestResult) -> ShouldSandboxResult:
    """Return a decision to ask after the answer. Raises CommandDenied and ApprovalRequired."""
    if answer.behavior == "allow" and (answer.by not in (None, "policy") or decision.question == "command"):
        return replace(decision, env={**decision.env, **answer.env})
    if answer.by is None and answer.outcome in ("", "no_subscriber"):
        raise ApprovalRequired(
            "approval_required",
            f"the command needs approval, and no client answers prompts: {decision.reason.text}",
            "answer in another terminal with: sandboxd prompts; or pass approve=, a function of the decision",
            decision,
        )
    raise CommandDenied("command_denied", f"the command is denied: {answer.text}", answer.hint, decision)


def off_warning(decision: ShouldSandboxResult, session_id: str | None) -> str:
    """Return the warning about a bare run that the settings want; else ""."""
    if decision.sandboxed or decision.reason.type not in ("sandboxDisabled", "platformNotEnabled"):
        return ""
    origin = decision.reason.origin
    place = "" if origin is None or origin.file is None else f" by {origin.file}:{origin.line or 1}"
    session = f" of session {session_id}" if session_id else ""
    return f"commands{session} run without a sandbox: {decision.reason.text}{place} (turn it on with: sandboxd enable)"


def annotated_stream(options: Mapping[str, Any]) -> str | None:
    """Return the captured stream that a block of violations belongs to. Raises ValueError."""
    wanted = options.get("annotate")
    text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
    captured, stderr = options.get("capture_output"), options.get("stderr")
    stream = "stderr" if captured or stderr == subprocess.PIPE else None
    if stderr == subprocess.STDOUT and options.get("stdout") == subprocess.PIPE:
        stream = "stdout"
    if wanted and not (text and stream):
        raise ValueError("annotate needs standard error captured as text")
    return stream if text and wanted is not False else None


LONGEST_ANNOTATED = 1 << 20
TOO_LONG = "\n(this text is too long to be annotated: a block of violations in it is of the command itself)\n"


def has_terminal(stdin: Stream) -> bool:
    """Return whether a command with this `stdin` gets this process's terminal."""
    if stdin is not None:
        return False
    try:
        return os.isatty(0)
    except OSError:
        return False


def spawn_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of the spawn, without those about text."""
    given = {
        name: options[name]
        for name in ("stdout", "stderr", "bufsize", "umask", "pipesize", "process_group")
        if options.get(name) is not None
    }
    stdin = options.get("stdin", subprocess.DEVNULL)
    if stdin is not None:
        given["stdin"] = stdin
    new_session = options.get("start_new_session")
    if new_session is None:
        new_session = options.get("process_group") is None and not has_terminal(stdin)
    return {**given, "start_new_session": new_session}


def popen_arguments(launch: Launch, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of Popen."""
    text = {name: options.get(name) for name in ("text", "universal_newlines", "encoding", "errors")}
    return {"cwd": launch.cwd, "env": launch.env, **spawn_arguments(options), **text}


def leads_group(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["start_new_session"]) or arguments.get("process_group") == 0


def shell_status(code: int | None) -> int | None:
    """Return subprocess's code as a shell's status: 128+N for signal N."""
    return 128 - code if code is not None and code < 0 else code


def setup_error(outcome: WrapOutcomeResult, stderr: bytes | str | None = None) -> SandboxSetupError:
    """Return the error for a command that never started."""
    text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr or ""
    lines = (line.strip().removeprefix("sandboxd: ") for line in text.splitlines())
    messages = [] if outcome.settings_changed else [line for line in lines if line and not line.startswith("hint: ")]
    reason = outcome.reason or "the sandbox ended before the command started"
    if messages and messages[-1] not in reason:
        reason = f"{reason}: {messages[-1]}"
    kind = SettingsChanged if outcome.settings_changed else WrapOutdated if outcome.outdated else SandboxSetupError
    return kind(f"the sandbox could not be set up, nothing was run: {reason}", outcome.hint or "see: sandboxd check")


def spawn_error(launch: Launch, error: OSError) -> SandboxSetupError:
    """Return the error for a wrapped argv that could not be spawned."""
    if error.filename == launch.cwd:
        return SandboxSetupError(f"cannot run in {launch.cwd}: {error.strerror}", "pass an existing cwd", "cwd_missing")
    if error.errno == errno.E2BIG:
        return SandboxSetupError(
            "the command and its environment are longer than the system permits",
            "put the command into a file and run that",
            "command_too_long",
        )
    return SandboxSetupError(
        f"the sandbox could not be started, nothing was run: {launch.argv[0]}: {error.strerror}", "see: sandboxd check"
    )


def run_arguments(options: RunOptions) -> tuple[bytes | str | None, float | None, bool, SpawnOptions]:
    """Return input, time-out, check and spawn options. Raises ValueError."""
    spawning: Any = dict(options)
    input = spawning.pop("input", None)
    timeout = spawning.pop("timeout", None)
    check = spawning.pop("check", False)
    spawning.pop("on_violation", None)
    spawning.pop("annotate", None)
    spawning.pop("max_output", None)
    if input is not None:
        if spawning.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        spawning["stdin"] = subprocess.PIPE
    if spawning.pop("capture_output", False):
        if spawning.get("stdout") is not None or spawning.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        spawning["stdout"] = spawning["stderr"] = subprocess.PIPE
    return input, timeout, check, spawning
