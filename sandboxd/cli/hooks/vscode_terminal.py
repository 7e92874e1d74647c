"""`sandboxd hook … vscode-terminal`: a profile of the terminal of Visual Studio Code."""

from __future__ import annotations

import os
import sys

from sandboxd.cli.hooks.hook_event import own_program
from sandboxd.cli.hooks.installing import refuse_opened, write_file
from sandboxd.cli.output import fail
from sandboxd.errors import SettingsError
from sandboxd.settings.jsonc import parse_jsonc
from sandboxd.settings.jsonc_edit import remove_key, set_value

_MAC = sys.platform == "darwin"
USER_SETTINGS = "Library/Application Support/Code/User/settings.json" if _MAC else ".config/Code/User/settings.json"
_KEY = (f"terminal.integrated.profiles.{'osx' if _MAC else 'linux'}", "sandboxd")


def change(action: str, project: str | None) -> int:
    """Add, remove or show the profile; comments and other keys of the file stay."""
    home = os.path.expanduser("~")
    path = os.path.join(home, USER_SETTINGS) if project is None else os.path.join(project, ".vscode/settings.json")
    program, *words = own_program()
    try:
        text = _text(path)
        there = parse_jsonc(text or "{}").find(*_KEY) is not None
        if action == "status":
            sys.stdout.write(f"vscode-terminal: {path}: {'installed' if there else 'not installed'}\n")
            return 0 if there else 1
        if action == "uninstall":
            if there:
                write_file(path, remove_key(text, _KEY))
            sys.stdout.write(f"removed from {path}\n" if there else f"nothing to change: {path} has no such profile\n")
            return 0
        if status := refuse_opened((program,)):
            return status
        write_file(path, set_value(text, _KEY, {"path": program, "args": [*words, "session", "shell"]}))
    except SettingsError as error:
        return fail(f"{path} is not changed: {error.message}", "correct the file, and run this command again")
    except OSError as error:
        return fail(f"cannot write {path}: {error.strerror}", f"make {os.path.dirname(path)} writable for you")
    sys.stdout.write(
        f"Visual Studio Code has the terminal profile sandboxd\n    in {path}\n"
        f'to make it the default, set "{_KEY[0].replace("profiles", "defaultProfile")}": "sandboxd" there\n'
    )
    return 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise SettingsError("settings_not_utf8", "it is not UTF-8") from None
