"""`sandboxd credential`: give the daemon the values of credentials, and list them without values."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, Help, Parsed, UsageError, visible
from sandboxd.cli.daemon_client import client, print_json
from sandboxd_client import Client, SandboxdError

SYNTAX = "credential set NAME | remove NAME | list"
SUMMARY = """Give the daemon the value of env:NAME in sandbox.credentials.inject. It keeps it in memory until it ends.

set reads the value from the terminal without showing it, or from a pipe. list shows sources, hosts and variables."""
HELP = Help(
    SYNTAX,
    SUMMARY,
    (JSON,),
    ("credential set GH_TOKEN", "credential list"),
    words=("set", "remove", "list"),
    negative="no such value",
)
_LONGEST = 1 << 16


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    words = [*parsed.words, *(parsed.command or ())]
    action = words[0] if words else "list"
    if action not in ("set", "remove", "list") or len(words) != (1 if action == "list" and words else 2 * bool(words)):
        raise UsageError(f"cannot read {visible(' '.join(words), 60)}", f"usage: sandboxd {SYNTAX}")
    with client(parsed) as box:
        if action == "list":
            return _list(parsed, box)
        if action == "set":
            return _set(box, words[1])
        removed = box.credential_remove(words[1]).removed
        sys.stdout.write(f"{words[1]}: {'removed' if removed else 'the daemon has no such value'}\n")
        return 0 if removed else 1


def _set(box: Client, name: str) -> int:
    value = getpass.getpass(f"value of {name}: ") if sys.stdin.isatty() else sys.stdin.read(_LONGEST)
    value = value.strip("\r\n")
    if not value:
        raise SandboxdError("credential_unusable", "there is no value", f"sandboxd credential set {name}")
    done = box.credential_set(name, value)
    sys.stdout.write(f"{name}: set\n")
    if not done.used:
        sys.stderr.write(f"sandboxd: no entry of sandbox.credentials.inject is from env:{name}\n")
    return 0


def _list(parsed: Parsed, box: Client) -> int:
    found = box.credential_list()
    if "json" in parsed:
        print_json(found)
        return 0
    for one in found.credentials:
        variables = f"; placeholder in {', '.join(one.variables)}" if one.variables else ""
        sys.stdout.write(f"{one.source}: {one.state}\n    {one.place}, for {one.host}{variables}\n")
    if not found.credentials:
        sys.stdout.write("no credentials: see sandbox.credentials.inject\n")
    return 0
