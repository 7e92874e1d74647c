"""Generator of the tables and types of the Node client, and a table of the front, from those of the Python client.

`./dev generate` writes them, `--check` compares them. The tables say what both clients must agree on: methods, the
variables that the daemon gets, places of programs, variables that load code, letters that look alike. The types are
those of `wire.messages`."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

from sandboxd.policy.explain import annotation  # noqa: E402
from sandboxd_client import programs  # noqa: E402
from sandboxd_client.running import commands, launching  # noqa: E402
from sandboxd_client.wire import framing, location  # noqa: E402
from sandboxd_client.wire.messages.hello import PROTOCOL  # noqa: E402
from sandboxd_client.wire.messages.methods import METHODS, NOTIFICATIONS  # noqa: E402

HEAD = "// Generated from the Python client by ./dev generate: change that one.\n"
_WORDS = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", object: "unknown"}


def tables() -> str:
    """Return the module of shared tables."""
    values: dict[str, Any] = {
        "PROTOCOL": PROTOCOL,
        "MAX_LINE": framing.MAX_LINE,
        "SOCKET_NAME": location.SOCKET_NAME,
        "METHODS": {name: {"repeatable": row.repeatable, "patient": row.patient} for name, row in METHODS.items()},
        "NOTIFICATIONS": list(NOTIFICATIONS),
        "VARIABLES_READ": commands.VARIABLES_READ,
        "SYSTEM_DIRECTORIES": programs.SYSTEM_DIRECTORIES,
        "SYSTEM_TREES": programs.SYSTEM_TREES,
        "HOME_TREES": programs.HOME_TREES,
        "CODE_PREFIXES": programs._CODE_PREFIXES,
        "CODE_NAMES": sorted(programs._CODE_NAMES),
        "BUS_NAMES": programs._BUS_NAMES,
        "CLEAN_NAMES": launching._CLEAN.pattern,
        "SUSPICIOUS": sorted(launching.SUSPICIOUS),
        "WRAPS_TRIED": launching.WRAPS_TRIED,
        "BRACKETS": annotation._BRACKETS,
        "ALIKE": annotation._ALIKE,
        "PAIRS": annotation._PAIRS,
        "BLOCK_NAME": annotation._NAME.pattern.replace(annotation._UNSEEN, " *"),
    }
    return HEAD + "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in values.items())


def header() -> str:
    """Return the variables that the daemon gets, as items of an array in C."""
    return HEAD + "// clang-format off\n" + "".join(f'"{name}",\n' for name in commands.VARIABLES_READ)


def declarations() -> str:
    """Return the declarations of tables and records."""
    found: dict[str, type] = {}
    rows = [
        f"  {json.dumps(name)}: {{ params: {_type(row.params, found)}; result: {_type(row.result, found)} }};\n"
        for name, row in METHODS.items()
    ]
    heard = [f"  {json.dumps(name)}: {_type(record, found)};\n" for name, record in NOTIFICATIONS.items()]
    done: dict[str, str] = {}
    while waiting := [name for name in found if name not in done]:
        for name in waiting:
            done[name] = _interface(name, found[name], found)
    return (
        HEAD
        + "".join(done[name] for name in sorted(done))
        + f"export interface Methods {{\n{''.join(rows)}}}\n"
        + f"export interface Notifications {{\n{''.join(heard)}}}\n"
    )


def _interface(name: str, record: type, found: dict[str, type]) -> str:
    hints = typing.get_type_hints(record)
    lines = []
    for field in dataclasses.fields(record):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        mark = "?" if optional and name.endswith(("Params", "OverridesRecord")) else ""
        lines.append(f"  {field.name}{mark}: {_type(hints[field.name], found)};\n")
    return f"export interface {name} {{\n{''.join(lines)}}}\n"


def _type(hint: Any, found: dict[str, type]) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is Literal:
        return " | ".join(json.dumps(word) for word in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(one, found) for one in arguments)
    if origin in (tuple, list):
        return f"Array<{_type(arguments[0], found)}>"
    if origin is not None:  # mappings
        return f"Record<string, {_type(arguments[1], found)}>"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " | ".join(json.dumps(one.value) for one in hint)
    if dataclasses.is_dataclass(hint):
        found[hint.__name__] = typing.cast(type, hint)
        return typing.cast(type, hint).__name__
    return "any"


def main() -> int:
    """Write the files, or name those that differ and return 1."""
    different = []
    node = ROOT / "node" / "lib"
    variables = ROOT.parent / "vendor" / "seccomp" / "variables.h"
    written = ((node / "tables.js", tables()), (node / "wire.d.ts", declarations()), (variables, header()))
    for target, text in written:
        if not target.exists() or target.read_text() != text:
            different.append(target.name)
            if "--check" not in sys.argv[1:]:
                target.write_text(text)
    if different and "--check" in sys.argv[1:]:
        print(f"not current: {' '.join(different)}\nhint: ./dev generate", file=sys.stderr)
        return 1
    print(" ".join(different) or "nothing differs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
