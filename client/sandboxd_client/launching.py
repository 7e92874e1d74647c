"""What `run` and `spawn` of both clients have in common and needs no I/O: the keywords they take, how these become the
arguments of a spawn, and what an exit status means.
"""

from __future__ import annotations

import difflib
import errno
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Literal, TypedDict

from sandboxd_client.commands import Path, sendable_search_path
from sandboxd_client.errors import (
    ApprovalRequired,
    CommandDenied,
    InvalidCommand,
    SandboxSetupError,
    SettingsChanged,
    WrapOutdated,
)
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.wrap import OverridesRecord, WrapOutcomeResult, WrapResult

Command = str | Sequence[Path]
Stream = int | IO[Any] | None

DEFAULT_GRACE_S = 1.0
SUSPICIOUS = frozenset((1, 125))  # bubblewrap's and the helper's own failures, or the command's: the daemon knows
WRAPS_TRIED = 3
"""Times that `run` has a command wrapped while settings or files change between that and its start."""
_BARE_SHELLS = ("/bin/bash", "/bin/sh")  # the order in which the daemon chooses one


class WrapOptions(TypedDict, total=False):
    """`cwd`, `env` (the whole environment, as in subprocess) and what `wrap` takes beside them. `shell` is the path of
    the shell for a command line. `publish` are ports of servers inside that the host is to reach, `[HOST:]PORT[:INNER]`
    each; they join those of `overrides`."""

    cwd: Path | None
    env: Mapping[str, str] | None
    shell: str | bool | None
    session_id: str | None
    command_id: str | None
    command_text: str | None
    overrides: OverridesRecord | Mapping[str, Any] | None
    publish: Sequence[str | int] | None


class SpawnOptions(WrapOptions, total=False):
    """The keywords of subprocess.Popen that make sense here, and: `decide` asks `should_sandbox` first and follows it,
    `dangerously_disable_sandbox` is the wish then sent along, `approve` is called with the decision when it is "ask".
    `start_new_session` defaults to True unless the command is given the terminal: a command in the caller's process
    group could signal the caller. `relay_stdio` passes pipes in place of network sockets among the streams, and copies
    the bytes until the command has ended."""

    stdin: Stream
    stdout: Stream
    stderr: Stream
    relay_stdio: bool
    bufsize: int
    text: bool | None
    universal_newlines: bool | None
    encoding: str | None
    errors: str | None
    umask: int
    pipesize: int
    start_new_session: bool | None
    process_group: int | None
    decide: bool
    dangerously_disable_sandbox: bool
    approve: Callable[[ShouldSandboxResult], Any] | None
    grace: float


class RunOptions(SpawnOptions, total=False):
    """The further keywords of subprocess.run. After `timeout` the command gets SIGTERM, and `grace` seconds later its
    whole tree SIGKILL. `on_violation="ask"` asks people, after a run in which something was blocked, whether the
    command may run once more, outside the sandbox."""

    input: bytes | str | None
    capture_output: bool
    timeout: float | None
    check: bool
    on_violation: Literal["ask"] | None


def check_options(options: Mapping[str, Any], allowed: type, function: str) -> None:
    """Raises TypeError for a keyword that `function` does not take, as Python does for a parameter list."""
    known = allowed.__annotations__  # includes those of the bases: a TypedDict collects them
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{advice}")


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be spawned. `wrap` is None for a command that the decision lets run bare."""

    args: Command
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    wrap: WrapResult | None
    decision: ShouldSandboxResult | None


def wrap_arguments(command: Command, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `wrap` for a command and its options. Raises InvalidCommand."""
    given: dict[str, Any] = {
        name: options[name]
        for name in ("cwd", "env", "session_id", "command_id", "command_text")
        if options.get(name) is not None
    }
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
    """Raises TypeError for a single text or number where several are meant."""
    if isinstance(overrides, OverridesRecord):
        record = overrides
    else:
        single = ("settings", "ignore_unknown_restrictions")
        given: dict[str, Any] = {name: v if name in single else tuple(v) for name, v in overrides.items()}
        record = OverridesRecord(**given)
    if isinstance(publish, (str, int)):
        raise TypeError("publish is a list of ports, such as [3000] or ['8080:3000']")
    ports = (*(record.publish or ()), *map(str, publish))
    return replace(record, publish=ports) if ports else record


def _shell(command: Command, shell: str | bool | None) -> str | None:
    if shell is None or (shell is True and isinstance(command, str)):
        return None
    if isinstance(shell, str):
        if isinstance(command, str):
            return shell
        raise InvalidCommand("shell_unknown", "shell= is for a command given as one string; this one is a list")
    if shell is False and not isinstance(command, str):
        return None
    wanted = "a string" if shell else "a list"
    raise InvalidCommand(
        "shell_unknown",
        f"shell={shell} needs the command as {wanted}",
        "a string is a shell line, a list a program with its arguments",
    )


def command_line(command: Command) -> str:
    """The command as one shell line, for a decision."""
    return command if isinstance(command, str) else shlex.join(os.fspath(word) for word in command)


def search_path(options: Mapping[str, Any]) -> str:
    """The PATH that a command without a sandbox would be run with."""
    env = options.get("env")
    return sendable_search_path(os.environ if env is None else env)


def wrapped_launch(
    command: Command, options: Mapping[str, Any], wrap: WrapResult, decision: ShouldSandboxResult | None
) -> Launch:
    return Launch(command, wrap.argv, wrap.cwd, changed_environment(options.get("env"), wrap), wrap, decision)


def changed_environment(env: Mapping[str, str] | None, wrap: WrapResult) -> dict[str, str]:
    """The environment to spawn with: the caller's, with the changes the daemon asked for."""
    merged = dict(os.environ if env is None else env)
    merged.update(wrap.env.set)
    for name in wrap.env.unset:
        merged.pop(name, None)
    return merged


def bare_launch(command: Command, options: Mapping[str, Any], cwd: str, decision: ShouldSandboxResult) -> Launch:
    """Without a sandbox. Only for a decision that says so."""
    if decision.sandboxed or decision.behavior == "deny":
        raise AssertionError("a bare launch without a decision for it")
    return _bare(command, options, cwd, decision.env, decision)


def approved_launch(command: Command, options: Mapping[str, Any], cwd: str, variables: Mapping[str, str]) -> Launch:
    """Without a sandbox. Only for a command that a person has allowed to run so (`override.launch_outside`)."""
    return _bare(command, options, cwd, variables, None)


def _bare(
    command: Command,
    options: Mapping[str, Any],
    cwd: str,
    variables: Mapping[str, str],
    decision: ShouldSandboxResult | None,
) -> Launch:
    """`variables` are those of the session, so that the command shares temporary files with the sandboxed ones."""
    argv: tuple[str, ...]
    if isinstance(command, str):
        shell = _shell(command, options.get("shell")) or next(filter(os.path.exists, _BARE_SHELLS))
        argv = (shell, "-c", command)
    else:
        argv = tuple(os.fspath(word) for word in command)
    env = options.get("env")
    return Launch(command, argv, cwd, {**(os.environ if env is None else env), **variables}, None, decision)


def check_decision(decision: ShouldSandboxResult, approved: bool | None) -> None:
    """Raises CommandDenied or ApprovalRequired unless the command may run. `approved` is the answer of whoever was
    asked, None when there was nobody."""
    if decision.behavior == "allow" or (decision.behavior == "ask" and approved):
        return
    if decision.behavior == "ask":
        how = "nobody was there to approve it" if approved is None else "it was not approved"
        raise ApprovalRequired(
            "approval_required",
            f"the command needs approval, and {how}: {decision.reason.text}",
            decision.hint or ("pass approve=, a function that gets the decision" if approved is None else ""),
            decision,
        )
    raise CommandDenied("command_denied", f"the command is denied: {decision.reason.text}", decision.hint, decision)


def has_terminal(stdin: Stream) -> bool:
    """Whether a command spawned with this `stdin` gets the terminal of this process."""
    if stdin is not None:
        return False
    try:
        return os.isatty(0)
    except OSError:
        return False


def spawn_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the spawn itself, without those about text."""
    given = {
        name: options[name]
        for name in ("stdin", "stdout", "stderr", "bufsize", "umask", "pipesize", "process_group")
        if options.get(name) is not None
    }
    new_session = options.get("start_new_session")
    if new_session is None:
        new_session = options.get("process_group") is None and not has_terminal(options.get("stdin"))
    return {**given, "start_new_session": new_session}


def leads_group(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["start_new_session"]) or arguments.get("process_group") == 0


def shell_status(code: int | None) -> int | None:
    """subprocess's return code as an exit status: -N (killed by signal N) becomes 128+N, which is also what comes out
    of a sandbox whose command was killed."""
    return 128 - code if code is not None and code < 0 else code


def setup_error(outcome: WrapOutcomeResult, stderr: bytes | str | None = None) -> SandboxSetupError:
    """The error for a command that was never started. `stderr`, where captured, has what bubblewrap said."""
    text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr or ""
    lines = (line.strip().removeprefix("sandboxd: ") for line in text.splitlines())
    said = [] if outcome.settings_changed else [line for line in lines if line and not line.startswith("hint: ")]
    reason = outcome.reason or "the sandbox ended before the command started"
    if said and said[-1] not in reason:
        reason = f"{reason}: {said[-1]}"
    kind = SettingsChanged if outcome.settings_changed else WrapOutdated if outcome.outdated else SandboxSetupError
    return kind(f"the sandbox could not be set up, nothing was run: {reason}", outcome.hint or "see: sandboxd check")


def spawn_error(launch: Launch, error: OSError) -> SandboxSetupError:
    """The error for a wrapped argv that could not even be spawned."""
    if error.filename == launch.cwd:
        return SandboxSetupError(f"cannot run in {launch.cwd}: {error.strerror}", "give another cwd", "cwd_missing")
    if error.errno == errno.E2BIG:
        return SandboxSetupError(
            "the command and its environment are longer than the system lets a program receive",
            "put the command into a file and run that",
            "command_too_long",
        )
    return SandboxSetupError(
        f"the sandbox could not be started, nothing was run: {launch.argv[0]}: {error.strerror}", "see: sandboxd check"
    )


def run_arguments(options: RunOptions) -> tuple[bytes | str | None, float | None, bool, SpawnOptions]:
    """The parts of a run: input, time-out, whether to check the status, and the options of the spawn. Raises ValueError
    for contradictions, as subprocess.run does."""
    spawning: Any = dict(options)
    input = spawning.pop("input", None)
    timeout = spawning.pop("timeout", None)
    check = spawning.pop("check", False)
    spawning.pop("on_violation", None)
    if input is not None:
        if spawning.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        spawning["stdin"] = subprocess.PIPE
    if spawning.pop("capture_output", False):
        if spawning.get("stdout") is not None or spawning.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        spawning["stdout"] = spawning["stderr"] = subprocess.PIPE
    return input, timeout, check, spawning
