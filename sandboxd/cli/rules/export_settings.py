"""`sandboxd export`: the policy in force as settings of another program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxd.cli.arguments import CWD, NO_AUTOSTART, SESSION, Help, Option, UsageError, no_words
from sandboxd.cli.daemon_client import client, print_json
from sandboxd.cli.rules.import_settings import report
from sandboxd.settings.foreign.imported import Left

HELP = Help(
    "export --srt",
    "Print the policy in force as settings of sandbox-runtime. What they cannot express is reported.",
    (Option("--srt", "the form of sandbox-runtime"), CWD, SESSION, NO_AUTOSTART),
    ("export --srt",),
    negative="something that closes is not in the result",
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    if "srt" not in parsed:
        raise UsageError("export needs a form", "usage: sandboxd export --srt")
    with client(parsed) as box:
        cwd = os.path.abspath(parsed.get("cwd") or ".")
        policy = box.policy_effective(session_id=parsed.get("session"), cwd=cwd).policy
    settings, opens, closes = srt_settings(policy)
    report("left out", opens)
    report("not in the result, which allows more", closes)
    print_json(settings)
    return 1 if closes else 0


_HOSTS = (("allowed", "allowedDomains"), ("denied", "deniedDomains"))
_PATHS = (
    ("deny_read", "denyRead"),
    ("allow_read", "allowRead"),
    ("allow_write", "allowWrite"),
    ("deny_write", "denyWrite"),
)


def srt_settings(policy: Mapping[str, Any]) -> tuple[dict[str, Any], list[Left], list[Left]]:
    """Return settings of sandbox-runtime, what of the policy opens and is left out, and what closes and is lost."""
    network, files, commands = policy["network"], policy["files"], policy["commands"]
    out: dict[str, Any] = {
        "network": {name: [text for rule in network[key] for text in _patterns(rule)] for key, name in _HOSTS},
        "filesystem": {
            name: [rule["path"] for rule in files[key] if not (rule["glob"] and name.startswith("allow"))]
            for key, name in _PATHS
        },
    }
    out["filesystem"]["allowWrite"].insert(0, ".")
    out["filesystem"]["allowGitConfig"] = files["allow_git_config"]
    out["network"].update(
        strictAllowlist=network["strict_allowlist"],
        deniedResolvedAddresses=list(network["denied_addresses"]),
        allowMachLookup=list(network["allow_mach_lookup"]),
    )
    opens = [Left(f"excluded: {rule['pattern']}", "it runs outside the sandbox") for rule in commands["excluded"]]
    opens += [
        Left(rule["text"], "patterns that open have no form there")
        for name in ("allow_write", "allow_read")
        for rule in files[name]
        if rule["glob"]
    ]
    opens += [
        Left(f"port {port['first']}", "ports of this machine have no form there")
        for port in network["allow_local_ports"]
    ]
    opens += [
        Left(f"socket {rule['path']}", "Linux has no form for it there") for rule in network["allow_unix_sockets"]
    ]
    closes = [Left(f"Bash({rule['pattern']})", "rules for commands have no form there") for rule in commands["deny"]]
    closes += [Left(f"ask {rule['pattern']}", "a host to ask about has no form there") for rule in network["asked"]]
    variables = [{"name": name, "mode": "deny"} for name in policy["environment_remove"] if name.isidentifier()]
    out["credentials"] = {"envVars": variables}
    lost = [name for name in policy["environment_remove"] if not name.isidentifier()]
    closes += [Left(f"variable {name}", "patterns of variables have no form there") for name in lost]
    closes += [Left("network.requests", "rules for requests have no form there")] if network.get("requests") else []
    closes += [Left(f"limit {name}", "limits have no form there") for name, value in policy["limits"].items() if value]
    return out, opens, closes


def _patterns(rule: Mapping[str, Any]) -> list[str]:
    """Return the patterns there: a name with all below it takes two."""
    text = str(rule["pattern"])
    return [text[1:], f"*{text}"] if text.startswith(".") else [text]
