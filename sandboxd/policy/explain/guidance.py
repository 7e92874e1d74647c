"""The restrictions of a policy in words, for a model.

The text has a bounded size, names no credential path as something to open, and repeats nothing of a rule that could be
taken for an instruction: entries are neutralised and quoted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxd.policy.display import neutralise
from sandboxd.policy.model import Policy

MAX_ENTRIES = 20
MAX_ENTRY = 120
MAX_EXCEPTIONS = 10


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts of a session; `exceptions` are commands that cannot work inside."""

    cwd: str
    temporary: str
    exceptions: tuple[tuple[str, str], ...] = ()
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """A description as `text` for a model and as `data` for a program."""

    text: str
    data: dict[str, Any]


def describe(policy: Policy, around: Surroundings) -> Description:
    """Describe the restrictions of a policy in a session."""
    sections = (
        _introduction(policy, around),
        _files(policy, around),
        _network(policy),
        _outside(policy, around),
        _evidence(policy),
    )
    return Description("\n\n".join(sections) + "\n", _data(policy, around))


def _introduction(policy: Policy, around: Surroundings) -> str:
    lines = ["Shell commands run inside an operating-system sandbox. Run them there by default, without asking first."]
    if not policy.enabled:
        lines = ["The sandbox is off in the settings; what follows holds for commands that are run through it anyway."]
    if around.unavailable:
        lines.append(f"At the moment no sandbox can be started on this machine: {_shown(around.unavailable)}.")
    return " ".join(lines)


def _files(policy: Policy, around: Surroundings) -> str:
    files = policy.files
    writable = [around.cwd, around.temporary, *(rule.path for rule in files.allow_write)]
    lines = [
        "Files:",
        f"- Writable: {_listed(writable)}. Everything else is read-only.",
        f"- Temporary files belong in $TMPDIR ({_shown(around.temporary)}); /tmp is private to this session.",
        "- Not writable although inside a writable directory: shell start-up files, git hooks and configuration, "
        "settings of editors and agents.",
    ]
    if files.deny_write:
        lines.append(f"- Not writable: {_listed(rule.path for rule in files.deny_write)}.")
    if files.deny_read:
        lines.append(f"- Not readable: {_listed(rule.path for rule in files.deny_read)}. Other files can be read.")
    else:
        lines.append("- Every file that the user can read can be read.")
    if files.allow_read:
        lines.append(f"- Readable inside such a place: {_listed(rule.path for rule in files.allow_read)}.")
    return "\n".join(lines)


def _network(policy: Policy) -> str:
    network = policy.network
    lines = ["Network:"]
    if network.allowed:
        lines.append(f"- Reachable: {_listed(rule.pattern.text for rule in network.allowed)}.")
    else:
        lines.append("- No host is reachable without permission.")
    if network.denied:
        lines.append(f"- Never reachable: {_listed(rule.pattern.text for rule in network.denied)}.")
    if network.strict_allowlist:
        lines.append("- Other hosts are refused.")
    else:
        lines.append("- For other hosts a person is asked while the connection waits; no answer means refused.")
    if network.allow_local_ports:
        ports = (f"{p.first}" if p.first == p.last else f"{p.first}-{p.last}" for p in network.allow_local_ports)
        lines.append(f"- Ports of the host's loopback: {_listed(ports)}.")
    sockets = _listed(rule.path for rule in network.allow_unix_sockets) if network.allow_unix_sockets else "none"
    if network.allow_all_unix_sockets:
        sockets = "all but those that act outside the sandbox (Docker, D-Bus, agents and the like)"
        if network.allow_unix_sockets:
            sockets += f"; these too: {_listed(rule.path for rule in network.allow_unix_sockets)}"
    lines.append(f"- Unix sockets of the host: {sockets}.")
    return "\n".join(lines)


def _outside(policy: Policy, around: Surroundings) -> str:
    lines = ["Outside the sandbox:"]
    commands = policy.commands
    if commands.excluded:
        lines.append(
            f"- These run outside by themselves: {_listed(rule.pattern for rule in commands.excluded)}. A line counts "
            "only when every command in it is listed and it has no redirection or substitution."
        )
    exceptions = [f"{_shown(name)} ({_shown(why)})" if why else _shown(name) for name, why in around.exceptions]
    if commands.allow_unsandboxed:
        lines += [
            "- One command can be run outside with dangerously_disable_sandbox. A person is always asked, so use it "
            "when there is evidence that the sandbox caused the failure, or when the user asked for it, never in "
            "advance.",
            "- Then say which restriction was met, and retry that command alone. The next command starts inside again.",
        ]
        if exceptions:
            lines.append(f"- Cannot work inside, ask at once: {', '.join(exceptions[:MAX_EXCEPTIONS])}.")
    else:
        lines += [
            "- No command can be run outside: policy forbids it, and dangerously_disable_sandbox is refused.",
            "- When something needs more, say which rule is in the way. Only the user can change it.",
        ]
        if exceptions:
            lines.append(f"- Cannot work inside, so not at all: {', '.join(exceptions[:MAX_EXCEPTIONS])}.")
    return "\n".join(lines)


def _evidence(policy: Policy) -> str:
    opening = "a path or host for good with `sandboxd allow path …` or `sandboxd allow domain …`"
    if policy.network.managed_domains_only:
        opening = "a path for good with `sandboxd allow path …`, and no host: only managed settings allow hosts"
    remedy = (
        f"The user can open {opening}; suggest the narrowest one. Never suggest opening credentials, key directories, "
        "shell start-up files or whole home directories."
    )
    return "\n".join(
        (
            "Evidence that the sandbox was in the way:",
            "- a <sandbox_violations> block after the output; it names the path or host and the rule",
            '- "Operation not permitted", "Permission denied" or "Read-only file system" for a path that is not '
            "writable or not readable as listed above",
            '- "403" from the proxy, "CONNECT tunnel failed", or a response with the header X-Sandboxd-Decision',
            "No evidence: a missing file, a wrong argument, a failing test, 502 or 504, a time-out.",
            "Do not try to get around it: no other proxy, resolver, copy of the program or place for the same file.",
            remedy,
        )
    )


def _data(policy: Policy, around: Surroundings) -> dict[str, Any]:
    files, network, commands = policy.files, policy.network, policy.commands
    return {
        "writable": [around.cwd, around.temporary, *(rule.path for rule in files.allow_write)],
        "not_writable": [rule.path for rule in files.deny_write],
        "not_readable": [rule.path for rule in files.deny_read],
        "readable_again": [rule.path for rule in files.allow_read],
        "temporary": around.temporary,
        "hosts": [rule.pattern.text for rule in network.allowed],
        "denied_hosts": [rule.pattern.text for rule in network.denied],
        "unlisted_hosts": "deny" if network.strict_allowlist else "ask",
        "unix_sockets": "all" if network.allow_all_unix_sockets else [r.path for r in network.allow_unix_sockets],
        "local_ports": [[ports.first, ports.last] for ports in network.allow_local_ports],
        "excluded_commands": [rule.pattern for rule in commands.excluded],
        "outside_on_request": "ask" if commands.allow_unsandboxed else "deny",
        "sandboxed_commands": "allow" if commands.auto_allow else "ask",
        "needs_approval": [f"Bash({rule.pattern})" for rule in commands.ask],
        "forbidden": [f"Bash({rule.pattern})" for rule in commands.deny],
        "exceptions": [name for name, _ in around.exceptions],
        "unavailable": around.unavailable,
    }


def _listed(entries: Iterable[str]) -> str:
    unique: Sequence[str] = list(dict.fromkeys(entries))
    shown = ", ".join(_shown(entry) for entry in unique[:MAX_ENTRIES])
    more = len(unique) - MAX_ENTRIES
    return f"{shown} and {more} more" if more > 0 else shown


def _shown(text: str) -> str:
    return neutralise(" ".join(text.split()), MAX_ENTRY)
