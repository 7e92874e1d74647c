"""`sandboxd explain`: a decision with its rule, its file and its key."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

from sandboxd.cli.arguments import (
    CWD,
    JSON,
    NO_AUTOSTART,
    SESSION,
    Help,
    Option,
    Parsed,
    UsageError,
    suggestion,
    visible,
)
from sandboxd.cli.daemon_client import client, print_json, print_rows, reason_rows
from sandboxd.cli.output import coloured
from sandboxd_client.wire.messages.policy import ExplainKind, ExplainResult

SYNTAX = "explain (path P [--write] | host H[:PORT] | command TEXT | socket P) [--json]"
OPTIONS = (
    Option("--write", "ask about writing the path, not reading"),
    CWD,
    SESSION,
    JSON,
    NO_AUTOSTART,
)
_KINDS = ("path", "host", "command", "socket")
HELP = Help(
    SYNTAX,
    "Show a decision of the policy, with its rule and file.",
    OPTIONS,
    ("explain host example.com", "explain path ~/.ssh --write"),
    words=_KINDS,
)
_VERDICTS = {"allow": "allowed", "ask": "asks first", "deny": "denied"}


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    kind, target = _question(parsed)
    with client(parsed) as box:
        result = box.policy_explain(
            kind, target, write="write" in parsed, cwd=parsed.get("cwd"), session_id=parsed.get("session")
        )
    if "json" in parsed:
        print_json(result)
    else:
        _print(result, "write" in parsed)
    return 0


def _question(parsed: Parsed) -> tuple[ExplainKind, str]:
    words = [*parsed.words, *(parsed.command or ())]
    if not words:
        raise UsageError("explain needs a kind and a target", "usage: sandboxd " + SYNTAX)
    kind, *rest = words
    if kind not in _KINDS:
        raise UsageError(f"cannot explain {visible(kind)}", suggestion(kind, _KINDS))
    if not rest:
        raise UsageError(f"explain {kind} needs a target", "usage: sandboxd " + SYNTAX)
    if len(rest) > 1:
        quote = ": put a command line in quotes" if kind == "command" else ""
        raise UsageError(f"unexpected word {visible(rest[1], 60)}{quote}")
    if "write" in parsed and kind != "path":
        raise UsageError("--write is for explain path")
    return cast(ExplainKind, kind), rest[0]


def _print(result: ExplainResult, write: bool) -> None:
    verdict = _VERDICTS.get(result.behavior, result.behavior)
    if (result.kind, result.behavior) == ("host", "ask"):
        verdict = "denied, unless a permission prompt allows it"
    action = {"path": "write " if write else "read ", "socket": "connect to "}.get(result.kind, "")
    where = "" if result.sandboxed is None else ", in the sandbox" if result.sandboxed else ", without the sandbox"
    verdict = coloured(verdict, {"allow": "green", "ask": "yellow"}.get(result.behavior, "red"))
    sys.stdout.write(f"{verdict}{where}: {action}{visible(result.subject, 2000)}\n")
    print_rows(reason_rows(result.reason, result.hint))
