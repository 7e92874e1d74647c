"""`sandboxd describe`: the restrictions in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import CWD, JSON, NO_AUTOSTART, SESSION, Help, Option, Parsed, no_words
from sandboxd.cli.daemon_client import client, print_json

OPTIONS = (
    Option("--exception", "name a command that cannot work inside, and why", value="NAME[=WHY]", many=True),
    Option("--flag-name", "the name of the flag by which the model's tool runs a command outside", value="NAME"),
    Option("--style", "strict: the tool has no such flag", value="STYLE", only=("open", "strict")),
    Option("--no-examples", "leave the examples of calls out"),
    CWD,
    SESSION,
    JSON,
    NO_AUTOSTART,
)

HELP = Help(
    "describe [--json]",
    "Print the restrictions in words, for the prompt of a model.",
    OPTIONS,
    ("describe --exception docker='it needs its daemon'", "describe --flag-name dangerouslyDisableSandbox"),
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    with client(parsed) as box:
        result = box.policy_describe(
            cwd=parsed.get("cwd"),
            session_id=parsed.get("session"),
            exceptions=_exceptions(parsed),
            flag_name=parsed.get("flag_name"),
            style=parsed.get("style"),
            examples=False if "no_examples" in parsed else None,
        )
    if "json" in parsed:
        print_json(result)
    else:
        sys.stdout.write(result.text.rstrip("\n") + "\n")
    return 0


def _exceptions(parsed: Parsed) -> dict[str, str] | None:
    parts = (text.partition("=") for text in parsed.many("exception"))
    return {name.strip(): why.strip() for name, _, why in parts} or None
