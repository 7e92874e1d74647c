"""`sandboxd run --decide` and `--disable-sandbox`: the decision before a run.

Only a decision lets a command run without a sandbox, and a request for that always needs a user: at this terminal,
or without one over `sandboxd prompts`."""

from __future__ import annotations

import os
import shlex
from typing import Any, NoReturn

from sandboxd.cli import output
from sandboxd.cli.arguments import visible
from sandboxd_client.transport.connection import Connection

_SHELLS = ("/bin/bash", "/bin/sh")
_SHOWN = 2000
_OFF = ("sandboxDisabled", "platformNotEnabled")


def decide_first(connection: Connection, params: dict[str, Any], *, outside: bool) -> int | None:
    """Follow the decision: return None to run in the sandbox, or become the command.

    `params` are those of `wrap`. Returns an exit status when the command may not run."""
    text = params["command"] if "command" in params else shlex.join(params["argv"])
    where: dict[str, Any] = {name: params[name] for name in ("cwd", "session_id") if name in params}
    asked: dict[str, Any] = {"command": text, "is_sandbox": bool(os.environ.get("IS_SANDBOX")), **where}
    if outside:
        asked["dangerously_disable_sandbox"] = True
    decision = connection.call("should_sandbox", asked)
    reason, hint = decision["reason"]["text"], decision.get("hint", "")
    if decision["behavior"] == "deny":
        what = "cannot run without the sandbox" if outside else "the command is denied"
        return output.fail(f"{what}: {reason}", hint)
    if decision["behavior"] == "ask":
        kind = decision.get("question") or ("command" if decision["sandboxed"] else "sandbox_override")
        rules = [rule for rule in decision.get("suggestions", ()) if rule["behavior"] == "allow" and not rule["wide"]]
        refusal = _refusal(connection, {"kind": kind, "command": text, **where}, reason, rules[:1])
        if refusal:
            without = "leave --disable-sandbox out to run it in the sandbox" if outside else hint
            return output.fail(refusal, without)
    if decision["sandboxed"]:
        if outside:
            output.warn(f"it {reason}")
        return None
    if decision["reason"]["type"] in _OFF:
        origin = decision["reason"].get("origin") or {}
        place = f" ({origin['file']}:{origin.get('line') or 1})" if origin.get("file") else ""
        output.warn(f"running without a sandbox: {reason}{place}")
    connection.close()
    os.environ.update(decision.get("env", {}))
    return _become(params)


def _refusal(connection: Connection, query: dict[str, Any], reason: str, rules: list[dict[str, Any]]) -> str:
    """Ask the user, at the terminal where there is one; return why not, empty for a yes.

    `rules` has the one that an `always` writes, if any."""
    may = "Run this WITHOUT a sandbox?" if query["kind"] == "sandbox_override" else "May this command run?"
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            shown = visible(query["command"], _SHOWN)
            keys = f"[y/N, a: always, by {visible(rules[0]['rule'], _SHOWN)}] " if rules else "[y/N] "
            terminal.write(f"sandboxd: {visible(reason, _SHOWN)}\n{may}\n  {shown}\n{keys}".encode())
            answer = terminal.readline(100).strip().lower()
    except OSError:
        return _answer_of_subscribers(connection, query)
    if rules and answer in (b"a", b"always"):
        change = {"act": "add", "key": rules[0]["key"], "value": rules[0].get("pattern") or rules[0]["rule"]}
        connection.call("settings.update", {"cwd": query["cwd"], "changes": [change]})
        return ""
    return "" if answer in (b"y", b"yes") else "not confirmed, nothing was run"


def _answer_of_subscribers(connection: Connection, query: dict[str, Any]) -> str:
    answer = connection.call("permission.request", query)
    by = answer.get("by")
    if answer["behavior"] == "allow" and (by not in (None, "policy") or query["kind"] == "command"):
        return ""
    if by is None and answer.get("outcome", "") in ("", "no_subscriber"):
        return (
            "a user has to confirm this, and there is no terminal and no client that answers prompts: "
            "in another terminal, run: sandboxd prompts"
        )
    return f"nothing was run: {answer['text']}"


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
