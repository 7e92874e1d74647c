"""The lines after a command of `run`: what the sandbox blocked, one line for each kind of refusal.

On the hot path of `run`: each import costs."""

from __future__ import annotations

import itertools
import os
import stat

from sandboxd.cli import output
from sandboxd.cli.output import quoted
from sandboxd_client.errors import SandboxdError
from sandboxd_client.running.commands import absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Final

    from sandboxd.cli.arguments import Parsed
    from sandboxd.cli.execution.learn import LearnedFile
    from sandboxd_client.transport.connection import Connection

_WHAT: Final = {
    "network": "connecting to",
    "connect": "connecting to",
    "unix-socket": "connecting to the socket",
    "read": "reading",
    "write": "writing",
    "service": "using the service",
}
_MOST_LOOKED_AT: Final = 2000


class After:
    """The work after the end of a command."""

    def __init__(self, parsed: Parsed) -> None:
        self.show = "show_violations" in parsed
        self.tell = "quiet" not in parsed and not self.show and "annotate" not in parsed
        self.annotate = "annotate" in parsed
        self.learn: LearnedFile | None = None
        self.program = (parsed.command or [""])[0] if "c" not in parsed else ""
        self.cwd = absolute(parsed.get("cwd"))
        self.session = parsed.get("session") or os.environ.get("SANDBOXD_SESSION", "")
        self.stop_asking: Callable[[], None] = lambda: None


def outcome(connection: Connection, wrap_id: str, status: int, after: After, *, told: bool, again: bool) -> int | None:
    """Ask the daemon whether the command ran, tell what was blocked, and return the exit status or None."""
    show, learn = after.show, after.learn
    try:
        found = connection.call(
            "wrap.outcome", {"wrap_id": wrap_id, **({} if learn is None else {"learn": True})}, 10.0
        )
    except SandboxdError as error:
        if show or learn is not None:
            output.warn(f"cannot list what was blocked: {error.message}")
        return status
    if again and status in output.SUSPICIOUS and found.get("outdated"):
        return None
    for violation in found["violations"]:
        if show or violation["kind"] == "limit":
            output.note(_long_line(violation))
            if violation.get("hint"):
                output.note(f"  hint: {violation['hint']}")
    if told:
        for line in told_lines(found["violations"], found.get("violations_lost", 0)):
            output.note(line)
        if status in (output.NOT_FOUND, output.NOT_EXECUTABLE) and after.program:
            output.note(why_not_found(connection, after.program, after.cwd))
    if show and found.get("violations_lost"):
        output.note(_lost_line(found["violations_lost"]))
    if learn is not None and found["started"]:
        learn.take(found["learned"])
    if status in output.SUSPICIOUS and not found["started"]:
        reason = found["reason"] or "the sandbox ended before the command started"
        return output.fail(f"the sandbox could not be set up: {reason}", found.get("hint") or "run: sandboxd check")
    return status


def _lost_line(lost: int) -> str:
    return f"sandboxd: {lost} more were blocked than could be recorded one by one"


def _long_line(violation: Mapping[str, Any]) -> str:
    if violation["kind"] == "limit":
        why = "" if violation["operation"] == "limit" else f" ({violation['operation']})"
        line = f"sandboxd: the limit was met: {violation['target']}{why}"
    else:
        line = f"sandboxd: blocked {violation['kind']} {violation['operation']} {quoted(violation['target'])}"
    if violation.get("count", 1) > 1:
        line += f", {violation['count']} times"
    if violation.get("process"):
        line += f", by {violation['process']}"
    if violation.get("rule"):
        line += f" (rule {violation['rule']})"
    if violation.get("inferred"):
        line += " (guessed from the output)"
    return line


def told_lines(violations: Iterable[Mapping[str, Any]], lost: int = 0) -> list[str]:
    """Return one line a kind: what was refused, how often, and the way to allow it."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for violation in violations:
        if (what := _WHAT.get(violation["kind"])) is not None:
            kinds.setdefault(what, []).append(violation)
    lines = [_line(what, found) for what, found in kinds.items()]
    if lost:
        lines.append(_lost_line(lost))
    return lines


def kept_line(directory: str, since: float, *, lasts: bool) -> str:
    """Return what a command has left in /tmp, which only its session sees, else "".

    `directory` is where the host sees it, as long as the session `lasts`."""
    names, own = [], os.geteuid()
    try:
        with os.scandir(directory) as entries:
            for entry in itertools.islice(entries, _MOST_LOOKED_AT):
                state = entry.stat(follow_symlinks=False)
                is_removal = stat.S_ISCHR(state.st_mode)
                if state.st_ctime >= since and not is_removal and not _is_foreign(f"/tmp/{entry.name}", own):
                    names.append(entry.name)
    except OSError:
        return ""
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    name = min(names)
    if lasts:
        where = f"{directory}/{name}"
        return f"sandboxd: {quoted('/tmp/' + name)}{more} stays in the session; outside it is {quoted(where)}"
    way = "to keep files, write them below the working directory, or: sandboxd allow path /tmp"
    return f"sandboxd: {quoted('/tmp/' + name)}{more} was the session's and is gone with it; {way}"


def _is_foreign(path: str, own: int) -> bool:
    """Return whether the host has a directory of another user there, which sessions copy at their start."""
    try:
        return os.lstat(path).st_uid != own
    except OSError:
        return False


def _line(what: str, found: Sequence[Mapping[str, Any]]) -> str:
    targets: dict[str, int] = {}
    for violation in found:
        target = _host(violation["target"]) if what == "connecting to" else violation["target"]
        targets[target] = targets.get(target, 0) + violation.get("count", 1)
    (first, count), *others = targets.items()
    told = next((one for one in found if one.get("hint")), found[0])
    times = f" ({count} times)" if count > 1 else ""
    more = f" and {len(others)} more (sandboxd violations lists them)" if others else ""
    rule = f", by the rule {told['rule']}" if told.get("rule") else ""
    hint = f": {told['hint']}" if told.get("hint") else ""
    return f"sandboxd: blocked {what} {quoted(first)}{times}{more}{rule}{hint}"


def _host(target: str) -> str:
    """Return a target without its port: a name that is looked up has none."""
    host, colon, port = target.rpartition(":")
    return host if colon and port.isdecimal() and not host.endswith(":") else target


def why_not_found(connection: Connection, program: str, cwd: str) -> str:
    """Return why a program that exists outside is not found inside, else ""."""
    names = [program] if "/" in program else [os.path.join(d, program) for d in os.get_exec_path()]
    for path in (os.path.join(cwd, name) for name in names):
        for part in (path, os.path.realpath(path), _interpreter(path)):
            if not (os.path.isabs(part) and os.path.exists(part)):
                continue
            try:
                found = connection.call("policy.explain", {"kind": "path", "target": part, "cwd": cwd}, 10.0)
            except SandboxdError:
                return ""
            if found["behavior"] != "allow" or found["reason"]["type"] == "sessionTmp":
                return f"sandboxd: {quoted(program)} exists, but not in the sandbox: {found['reason']['text']}"
    return ""


def _interpreter(path: str) -> str:
    """Return the program that the first line of a script names, else ""."""
    try:
        with open(path, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return ""
    return os.fsdecode(first[2:]).split()[0] if first.startswith(b"#!") and first[2:].split() else ""
