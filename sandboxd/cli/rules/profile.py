"""`sandboxd profile`: what whole agents need, for `run --profile`.

A profile is a data file in `sandboxd/profiles`, and what `sandbox.profiles` of the settings adds to that name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sandboxd import PACKAGE
from sandboxd.cli.arguments import CWD, JSON, NO_AUTOSTART, Help, UsageError, suggestion, visible
from sandboxd.cli.daemon_client import client, print_json
from sandboxd_client.errors import SandboxdError
from sandboxd_client.records import dataclass

KEY = "sandbox.profiles"
_ACTIONS = ("list", "show", "lint")
HELP = Help(
    "profile (list | show NAME | lint)",
    """Show what whole agents need inside the sandbox, and why. Used by run --profile NAME.

  list        the profiles
  show NAME   its rules
  lint        check all of them, also those of the settings""",
    (CWD, JSON, NO_AUTOSTART),
    ("profile list", "profile show claude-code"),
    words=_ACTIONS,
    negative="a profile is wrong",
)
_LISTS = {
    "host": "network.allowedDomains",
    "write": "filesystem.allowWrite",
    "read": "filesystem.allowRead",
    "closed": "filesystem.denyWrite",
    "hidden": "filesystem.denyRead",
    "socket": "network.allowUnixSockets",
    "remove": "environment.remove",
}
"""Kinds of rules, and the list below `sandbox` that each goes to."""
_OTHER = ("set", "extends")
FROM_SETTINGS = "your settings"


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """A rule of a profile, such as `host:ok.test`, and its reason."""

    kind: str
    value: str
    why: str


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    action, *rest = parsed.words or [""]
    if action not in _ACTIONS:
        message = f"unknown profile command {visible(action)}" if action else "profile needs a command"
        raise UsageError(message, suggestion(action, _ACTIONS))
    if len(rest) != (1 if action == "show" else 0):
        raise UsageError("profile show needs a name" if action == "show" else f"profile {action} takes no name")
    with client(parsed) as box:
        own = own_profiles(box.settings_get(KEY, cwd=os.path.abspath(parsed.get("cwd") or ".")).values[0].value)
    if action == "lint":
        return _lint(own)
    if action == "show":
        rules = rules_of(rest[0], own)
        if "json" in parsed:
            print_json({"name": rest[0], "rules": [[f"{one.kind}:{one.value}", one.why] for one in rules]})
        for one in () if "json" in parsed else rules:
            sys.stdout.write(f"{one.kind:<7} {visible(one.value, 200):<40} {visible(one.why, 200)}\n")
        return 0
    for name in sorted({*built_in(), *own}):
        title = _file(name)["title"] if name in built_in() else FROM_SETTINGS
        added = f", with {len(own[name])} rules of {FROM_SETTINGS}" if name in own and name in built_in() else ""
        sys.stdout.write(f"{visible(name, 100):<14} {title}{added}\n")
    return 0


def _lint(own: Mapping[str, Sequence[str]]) -> int:
    wrong = 0
    for name in sorted({*built_in(), *own}):
        try:
            rules_of(name, own)
        except SandboxdError as error:
            wrong += 1
            sys.stdout.write(f"{visible(name, 100)}: {error.message}\n")
    sys.stdout.write("" if wrong else "every profile is correct\n")
    return 1 if wrong else 0


def own_profiles(value: Any) -> dict[str, list[str]]:
    """Return the rules of each profile in the settings, from entries (NAME, RULES)."""
    own: dict[str, list[str]] = {}
    for name, rules in value.items() if isinstance(value, Mapping) else value or ():
        own.setdefault(name, []).extend(rules)
    return own


def built_in() -> tuple[str, ...]:
    """Return the names of the profiles that are data files."""
    names = os.listdir(os.path.join(PACKAGE, "profiles"))
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def _file(name: str) -> dict[str, Any]:
    with open(os.path.join(PACKAGE, "profiles", f"{name}.json"), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


def rules_of(name: str, own: Mapping[str, Sequence[str]], seen: tuple[str, ...] = ()) -> list[ProfileRule]:
    """Return the rules of a profile, with those that it extends first. Raises SandboxdError."""
    known = built_in()
    if name not in known and name not in own:
        hint = suggestion(name, (*known, *own)) or "see: sandboxd profile list"
        raise SandboxdError("profile_unknown", f"there is no profile {visible(name, 100)}", hint)
    if name in seen:
        raise SandboxdError("profile_invalid", f"the profile {visible(name, 100)} extends itself")
    lines: Iterable[Sequence[str]] = _file(name)["rules"] if name in known else ()
    rules = []
    for text, why in (*lines, *((text, FROM_SETTINGS) for text in own.get(name, ()))):
        kind, _, value = text.partition(":")
        if (kind not in _LISTS and kind not in _OTHER) or not value or (kind == "set" and value.find("=") < 1):
            kinds = ", ".join((*_LISTS, *_OTHER))
            message = f"{visible(text, 100)} is no rule of a profile"
            raise SandboxdError("profile_invalid", message, f"write KIND:VALUE, with one of {kinds}; set:NAME=VALUE")
        if kind == "extends":
            rules += rules_of(value, own, (*seen, name))
        else:
            rules.append(ProfileRule(kind, value, why))
    return list(dict.fromkeys(rules))


def settings_for(rules: Iterable[ProfileRule]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return settings of one command, and the variables to set."""
    sections: dict[str, dict[str, list[str]]] = {}
    variables = {}
    for rule in rules:
        if rule.kind == "set":
            name, _, value = rule.value.partition("=")
            variables[name] = value
            continue
        section, _, key = _LISTS[rule.kind].partition(".")
        sections.setdefault(section, {}).setdefault(key, []).append(rule.value)
    return {"sandbox": sections}, variables


def make_directories(rules: Iterable[ProfileRule]) -> None:
    """Make the directories of state that are missing: inside, they could not be made."""
    for rule in rules:
        if rule.kind == "write" and rule.value.endswith("/"):
            path = os.path.expanduser(rule.value)
            if os.path.isabs(path):
                os.makedirs(path, 0o700, exist_ok=True)
