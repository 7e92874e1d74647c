"""`sandboxd run --disable-sandbox`: a command without a sandbox.

Needs a decision that allows it, and a user at a terminal who confirms."""

from __future__ import annotations

import os
import shlex
from typing import Any, NoReturn

from sandboxd.cli import output
from sandboxd.cli.arguments import visible
from sandboxd_client.transport.connection import Connection

_SHELLS = ("/bin/bash", "/bin/sh")
_SHOWN = 2000


def run_unsandboxed(connection: Connection, params: dict[str, Any]) -> int:
    """Ask for the decision, then the user, and become the command.

    `params` are those of `wrap`. Returns an exit status otherwise."""
    text = params["command"] if "command" in params else shlex.join(params["argv"])
    asked = {"command": text, "cwd": params["cwd"], "dangerously_disable_sandbox": True}
    if "session_id" in params:
        asked["session_id"] = params["session_id"]
    decision = connection.call("should_sandbox", asked)
    reason = decision["reason"]["text"]
    if decision["sandboxed"] or decision["behavior"] == "deny":
        return output.fail(f"cannot run without the sandbox: {reason}", decision.get("hint", ""))
    refusal = _refusal(text, reason)
    if refusal:
        return output.fail(refusal, "leave --disable-sandbox out to run it in the sandbox")
    connection.close()
    os.environ.update(decision.get("env", {}))
    return _become(params)


def _refusal(text: str, reason: str) -> str:
    """Ask the user at the terminal itself; return why not, empty for a yes."""
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(
                f"sandboxd: {visible(reason, _SHOWN)}\n"
                f"Run this WITHOUT a sandbox?\n  {visible(text, _SHOWN)}\n[y/N] ".encode()
            )
            answer = terminal.readline(100).strip().lower()
    except OSError:
        return "running without a sandbox needs a person at a terminal to confirm it, and there is no terminal"
    return "" if answer in (b"y", b"yes") else "not confirmed, nothing was run"


def _become(params: dict[str, Any]) -> int:
    if "command" in params:
        shell = next(filter(os.path.exists, _SHELLS))
        argv = [shell, "-c", params["command"]]
    else:
        argv = params["argv"]
    try:
        os.chdir(params["cwd"])
        _exec(argv)
    except FileNotFoundError:
        return output.fail(f"cannot run {argv[0]}: not found", status=output.NOT_FOUND)
    except OSError as error:
        return output.fail(f"cannot run {argv[0]}: {error.strerror}", status=output.NOT_EXECUTABLE)


def _exec(argv: list[str]) -> NoReturn:
    import signal

    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by this interpreter, not by its parent
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(argv[0], argv)
