"""`sandboxd run --profile`: the rules of a profile as settings of one command."""

from __future__ import annotations

import os

from sandboxd.cli.arguments import UsageError
from sandboxd.cli.rules.profile import KEY, make_directories, own_profiles, rules_of, settings_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandboxd_client.transport.connection import Connection


def add_profile(connection: Connection, params: dict[str, Any], name: str) -> None:
    """Add the settings of a profile to a wrap, and its variables to the environment. Raises SandboxdError."""
    found = connection.call("settings.get", {"key": KEY, "cwd": params["cwd"]})["values"]
    rules = rules_of(name, own_profiles(found[0]["value"]))
    make_directories(rules)
    settings, variables = settings_for(rules)
    overrides = params.setdefault("overrides", {})
    given = overrides.get("settings", {})
    if not isinstance(given, dict):
        raise UsageError(
            "--profile and a file of --settings cannot be used together",
            'put the rules into your settings: "sandbox": {"profiles": {"NAME": ["host:ok.test"]}}',
        )
    overrides["settings"] = _joined(given, settings)
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Join two objects: sections by their keys, lists one after the other."""
    joined = dict(one)
    for key, value in other.items():
        before = joined.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            joined[key] = _joined(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            joined[key] = before + value
        else:
            joined.setdefault(key, value)
    return joined
