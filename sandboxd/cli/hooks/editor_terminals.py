"""`sandboxd hook … vscode-terminal` and `zed-terminal`: terminals of editors that start `session shell`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from sandboxd.cli.hooks.hook_event import own_program
from sandboxd.cli.hooks.installing import refuse_opened, write_file
from sandboxd.cli.output import fail
from sandboxd.errors import SettingsError
from sandboxd.settings.jsonc import parse_jsonc
from sandboxd.settings.jsonc_edit import remove_key, set_value
from sandboxd_client.records import dataclass

_MAC = sys.platform == "darwin"
_SYSTEM = "osx" if _MAC else "linux"
_WORDS = ["session", "shell"]


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal of an editor: its settings below the home directory and of a project, the key, and what to say."""

    user: str
    project: str
    key: tuple[str, ...]
    value: Callable[[str, list[str]], dict[str, Any]]
    said: str


TERMINALS = {
    "vscode-terminal": Terminal(
        "Library/Application Support/Code/User/settings.json" if _MAC else ".config/Code/User/settings.json",
        ".vscode/settings.json",
        (f"terminal.integrated.profiles.{_SYSTEM}", "sandboxd"),
        lambda program, words: {"path": program, "args": words},
        "Visual Studio Code has the terminal profile sandboxd\n    in {path}\n"
        f'to make it the default, set "terminal.integrated.defaultProfile.{_SYSTEM}": "sandboxd" there\n',
    ),
    "zed-terminal": Terminal(
        ".config/zed/settings.json",
        ".zed/settings.json",
        ("terminal", "shell"),
        lambda program, words: {"with_arguments": {"program": program, "args": words}},
        "each terminal of Zed has a session\n    in {path}\n",
    ),
}


def change(name: str, action: str, project: str | None) -> int:
    """Add, remove or show the terminal; comments and other keys of the file stay."""
    terminal = TERMINALS[name]
    base, file = (os.path.expanduser("~"), terminal.user) if project is None else (project, terminal.project)
    path = os.path.join(base, file)
    program, *words = own_program()
    try:
        text = _text(path)
        found = parse_jsonc(text or "{}").find(*terminal.key)
        there = found is not None and all(word in str(found.value) for word in _WORDS)
        if action == "status":
            sys.stdout.write(f"{name}: {path}: {'installed' if there else 'not installed'}\n")
            return 0 if there else 1
        if action == "uninstall":
            if there:
                write_file(path, remove_key(text, terminal.key))
            sys.stdout.write(f"removed from {path}\n" if there else f"nothing to change: {path} has no such terminal\n")
            return 0
        if status := refuse_opened((program,)):
            return status
        if found is not None and not there:
            where = ".".join(terminal.key)
            return fail(f"{path} is not changed: it has its own {where}", f"remove {where}, and run this command again")
        write_file(path, set_value(text, terminal.key, terminal.value(program, [*words, *_WORDS])))
    except SettingsError as error:
        return fail(f"{path} is not changed: {error.message}", "correct the file, and run this command again")
    except OSError as error:
        return fail(f"cannot write {path}: {error.strerror}", f"make {os.path.dirname(path)} writable for you")
    sys.stdout.write(terminal.said.format(path=path))
    return 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise SettingsError("settings_not_utf8", "it is not UTF-8") from None
