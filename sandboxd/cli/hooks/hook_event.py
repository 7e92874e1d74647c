"""`sandboxd hook run AGENT`: the answer to one event of an agent.

Part of every command of an agent, so imports count, as in `sandboxd run`. An event before a call always gets an answer,
within `LIMIT_S`, or `START_LIMIT_S` where a daemon has to be started first: what cannot be decided is refused."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys

from sandboxd.cli.hooks.dialects import Dialect, Verdict
from sandboxd_client.errors import DaemonNotRunning, SandboxdError
from sandboxd_client.transport.connection import Connection, open_connection, usable_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any, NoReturn

LIMIT_S = 2.0
START_LIMIT_S = 12.0
_LONGEST = 16 << 20
_ASKS_NO_USER = ("bypassPermissions", "dontAsk")
"""Permission modes of an agent in which its questions are answered without a user."""
_SHELLS = ("/bin/bash", "/bin/sh")
_ID = "--command-id"
_DIRECTORIES = ("dir_path", "directory", "workdir", "working_directory")
"""Directory of a call among the arguments of the tool: Gemini CLI, opencode, Cursor."""


class _TooLate(Exception):
    """The time for an answer is over."""


def main(dialect: Dialect) -> int:
    """Answer the event on standard input; the exit status is 2 where the answer cannot be written."""
    before = True
    try:
        signal.signal(signal.SIGALRM, _too_late)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        event = _event(sys.stdin.buffer.read(_LONGEST + 1))
        before = event.get("hook_event_name") not in dialect.events[1:]
        answer = _before(dialect, event) if before else _after(dialect, event)
    except Exception as error:  # without an answer the agent would run the command without a sandbox
        answer = dialect.decision(Verdict("deny", f"sandboxd: {_why(error)}")) if before else {}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    except OSError:
        return 2
    return 0


def _too_late(number: int, frame: FrameType | None) -> NoReturn:
    raise _TooLate


def _why(error: Exception) -> str:
    if isinstance(error, _TooLate):
        return "the daemon gave no decision in time; hint: run: sandboxd status"
    if isinstance(error, SandboxdError):
        return f"{error.message}; hint: {error.hint}" if error.hint else error.message
    return f"internal error: {type(error).__name__}: {error}"


def _event(text: bytes) -> dict[str, Any]:
    try:
        event = json.loads(text) if len(text) <= _LONGEST else None
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise SandboxdError("hook_event_invalid", "the agent has sent no JSON object", "update sandboxd or the agent")
    return event


def _before(dialect: Dialect, event: Mapping[str, Any]) -> dict[str, Any]:
    """Decide on a call of the shell tool; calls of other tools are left alone."""
    given = event.get("tool_input")
    if event.get("tool_name") != dialect.tool:
        return {}
    command = given.get("command") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(command, str) or not command:
        raise SandboxdError("hook_event_invalid", "the call has no command", "update sandboxd or the agent")
    cwd = _directory(event, given)
    connection = _connect()
    try:
        # the directory of a session can be written: that of the agent, never one that the model names
        session = connection.call("session.join", {"cwd": _directory(event, {})}, LIMIT_S)["session_id"]
        query = {"command": command, "session_id": session, "cwd": cwd}
        query["is_sandbox"] = bool(os.environ.get("IS_SANDBOX"))
        if given.get("dangerouslyDisableSandbox") is True:
            query["dangerously_disable_sandbox"] = True
        decision = connection.call("should_sandbox", query, LIMIT_S)
    finally:
        connection.close()
    return dialect.decision(_verdict(decision, event, given, session))


def _directory(event: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the directory of a call: that of the tool, below that of the agent."""
    base = event.get("cwd")
    within = next((given[name] for name in _DIRECTORIES if given.get(name)), "")
    above = base if isinstance(base, str) and base.startswith("/") else os.getcwd()
    return os.path.join(above, str(within)) if within else above


def _verdict(decision: Mapping[str, Any], event: Mapping[str, Any], given: dict[str, Any], session: str) -> Verdict:
    """Return the answer to a call with this decision of the daemon.

    An excluded command runs outside by the same program, which keeps directories that commands can write out of its
    PATH; whether it may run is left to the agent."""
    behavior, reason = decision["behavior"], f"sandboxd: {decision['reason']['text']}"
    if hint := decision.get("hint"):
        reason += f"; hint: {hint}"
    if behavior == "deny":
        return Verdict("deny", reason)
    if decision["sandboxed"]:
        return Verdict(behavior, reason, {**given, "command": _line(given, event, session)})
    if behavior == "ask":
        if event.get("permission_mode") in _ASKS_NO_USER:
            return Verdict("deny", f"{reason}; the agent asks no user in this mode")
        return Verdict("ask", reason)
    return Verdict(None, reason, {**given, "command": _line(given, event, session, "--decide")})


def _line(given: Mapping[str, Any], event: Mapping[str, Any], session: str, *options: str) -> str:
    """Return the shell line that runs the command of a call in the session of its agent.

    The decision is about a line of bash, so its shell is named."""
    shell = () if options else ("--shell", next(filter(os.path.exists, _SHELLS)))
    words = [*own_program(), "run", "--session", session, *shell, *options, _ID, _call_id(event, given)]
    return shlex.join([*words, "-c", given["command"]])


def _call_id(event: Mapping[str, Any], given: object) -> str:
    """Return the id of a call, which both of its events have.

    Without one of the agent it comes from the command, which the second event may have as it was run."""
    if isinstance(call := event.get("tool_use_id"), str) and call:
        return call
    command = str(given.get("command", "")) if isinstance(given, dict) else ""
    before, found, after = command.partition(f" {_ID} ")
    if found and " run --session " in before:
        return after.partition(" ")[0]
    import hashlib

    return hashlib.sha256(f"{event.get('session_id')}\0{command}".encode(errors="replace")).hexdigest()[:24]


def own_program() -> list[str]:
    """Return the argv of this installation: its script, else its interpreter, isolated."""
    script = os.path.join(os.path.dirname(sys.executable), "sandboxd")
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-I", "-m", "sandboxd"]


def _after(dialect: Dialect, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was blocked in a call, for the model."""
    if event.get("tool_name") != dialect.tool:
        return {}
    call = _call_id(event, event.get("tool_input"))
    try:
        connection = open_connection(usable_path())
    except DaemonNotRunning:
        return {}
    try:
        session = connection.call("session.join", {"cwd": _directory(event, {})}, LIMIT_S)["session_id"]
        query = {"command_id": call, "stderr": "", "session_id": session}
        found = connection.call("violation.annotate", query, LIMIT_S)
    finally:
        connection.close()
    return dialect.context(str(event["hook_event_name"]), found["stderr"].strip()) if found["violations"] else {}


def _connect() -> Connection:
    path = usable_path()
    try:
        return open_connection(path)
    except DaemonNotRunning:
        from sandboxd_client.transport.starting import connect_or_start

        signal.setitimer(signal.ITIMER_REAL, START_LIMIT_S)
        connection = connect_or_start(path)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        return connection
