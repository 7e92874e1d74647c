"""`sandboxd import`: settings of other programs as settings of sandboxd."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sandboxd.cli.arguments import Help, Option, UsageError, visible
from sandboxd.cli.execution.learn import named_path
from sandboxd.cli.output import fail, note
from sandboxd.errors import SettingsError
from sandboxd.settings.foreign.converters import CONVERTERS, kind_of
from sandboxd.settings.foreign.imported import Left, SourcePlace
from sandboxd.settings.jsonc import parse_jsonc

_LARGEST = 4 * 1024 * 1024
HELP = Help(
    "import FILE",
    """Convert settings of sandbox-runtime (srt), Codex (config.toml), fence or Claude Code, and print them.

The result never allows what the file does not. What opens and cannot be kept is left out, and reported. If something
that closes cannot be kept, nothing is printed. Paths are compared as they are in this directory, so call it in the
project. Use the result with run --settings, or put it into your settings.""",
    (
        Option(
            "--from", "the program of the settings (default: by name and keys)", value="PROGRAM", only=tuple(CONVERTERS)
        ),
        Option("--to", "write this new file instead of printing, or a NAME for run --settings NAME", value="FILE"),
    ),
    ("import ~/.srt-settings.json", "import ~/.codex/config.toml --to codex"),
    words=("PATH",),
    negative="something that closes cannot be kept",
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    if len(parsed.words) != 1:
        raise UsageError("import needs one file", "usage: sandboxd import FILE")
    path = parsed.words[0]
    tree = _read(path)
    kind = parsed.get("from") or kind_of(tree, os.path.basename(path))
    if kind is None:
        raise UsageError(
            f"{visible(path)} has settings of no known program", f"name it with --from: {', '.join(CONVERTERS)}"
        )
    done = CONVERTERS[kind](tree, SourcePlace(os.path.expanduser("~"), os.getcwd()))
    report("left out", done.left)
    report("cannot be kept", done.refused)
    if done.refused:
        fail("nothing is imported: it would allow more than the file", "remove these entries from a copy of the file")
        return 1
    text = json.dumps(done.settings, indent=2, ensure_ascii=False) + "\n"
    if "to" not in parsed:
        sys.stdout.write(text)
        return 0
    target = named_path(parsed.get("to"), "--to")
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return fail(f"cannot write {visible(target)}: {error.strerror}", "name a file that does not exist yet")
    note(f"sandboxd: written: {target}; use it with: sandboxd run --settings {parsed.get('to')} -- COMMAND")
    return 0


def _read(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise UsageError(f"{visible(path)} is too large")
        tree: Any = tomllib.loads(data.decode()) if path.endswith(".toml") else parse_jsonc(data).root.value
    except OSError as error:
        raise UsageError(f"cannot read {visible(path)}: {error.strerror}") from None
    except (SettingsError, ValueError) as error:
        raise UsageError(f"{visible(path)} cannot be parsed: {visible(str(error))}") from None
    if not isinstance(tree, Mapping):
        raise UsageError(f"{visible(path)} is no object")
    return tree


def report(what: str, entries: Iterable[Left]) -> None:
    for one in entries:
        note(f"sandboxd: {what}: {visible(one.entry, 200)} ({one.why})")
