"""The restrictions of a policy in words, for a model.

The text has a bounded size, names no credential path as something to open, and repeats nothing of a rule that could be
taken for an instruction: entries are neutralised and quoted. It proposes no command that the policy refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sandboxd.policy.commands.command_decisions import denied_by_rule, why_sandboxed
from sandboxd.policy.decision import PermissionMode
from sandboxd.policy.display import neutralise
from sandboxd.policy.model import Policy
from sandboxd_client.records import dataclass

MAX_ENTRIES = 20
MAX_ENTRY = 120
MAX_EXCEPTIONS = 10
FLAG: Final = "dangerously_disable_sandbox"
SYMPTOMS: Final = (
    (("Temporary failure in name resolution", "Name or service not known"), "the host may not be reached"),
    (("CONNECT tunnel failed, response 403", "Blocked by the sandbox"), "the host may not be reached"),
    (
        ("npm error code E403", "Could not find a version that satisfies the requirement"),
        "of npm and pip: the registry may not be reached",
    ),
    (("Permission denied",), "of connect (EACCES): the address or socket is closed; of a file: it may not be read"),
    (("Operation not permitted",), "of socket (EPERM): raw sockets are closed, as ping needs one"),
    (("Read-only file system",), "the path is in no writable place"),
    (("No such file or directory",), "below /tmp: the files there outside are not visible inside"),
)
"""Output of programs where the sandbox was in the way, with its meaning. Tests make each in a sandbox."""
_TMP: Final = {
    "overlay": "/tmp shows the files there outside; what commands write there stays in this session, unseen outside",
    "private": "/tmp is private to this session",
    "host": "/tmp is shared with programs outside",
}
EXAMPLES: Final = (
    ("npm test", "npm ci", "npm error code E403"),
    ("python3 -m pytest", "pip install -e .", "Could not find a version that satisfies the requirement"),
    ("make", "git fetch", "CONNECT tunnel failed, response 403"),
)
"""A command for inside, one for outside, and what it has printed inside."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts of a session; `exceptions` are commands that cannot work inside, `off` says why there is no sandbox."""

    cwd: str
    temporary: str
    exceptions: tuple[tuple[str, str], ...] = ()
    unavailable: str = ""
    off: str = ""
    mode: PermissionMode = PermissionMode.PROMPT


@dataclass(frozen=True, slots=True)
class Wording:
    """How a caller's tool is called: its flag for a run outside, and whether it has one (`strict`: it has none)."""

    flag: str = FLAG
    strict: bool = False
    examples: bool = True


_USUAL = Wording()


@dataclass(frozen=True, slots=True)
class Description:
    """A description as `text` for a model and as `data` for a program."""

    text: str
    data: dict[str, Any]


def describe(policy: Policy, around: Surroundings, wording: Wording = _USUAL) -> Description:
    """Describe the restrictions of a policy in a session."""
    closed = _why_never_outside(policy, around, wording)
    data = _data(policy, around, wording, closed)
    if around.off:
        return Description(f"Shell commands run without a sandbox: {_shown(around.off)}.\n", data)
    if around.mode is PermissionMode.NONE:
        return Description("No shell command may run: the permission mode of this session is none.\n", data)
    sections = (
        _introduction(around),
        _files(policy, around),
        _network(policy),
        _rules(policy),
        _outside(policy, around, wording, closed),
        _evidence(policy, around),
    )
    return Description("\n\n".join(filter(None, sections)) + "\n", data)


def _why_never_outside(policy: Policy, around: Surroundings, wording: Wording) -> str:
    """Return why no command can be run outside by request; empty where a user is asked."""
    if around.mode is PermissionMode.PLAN or not policy.commands.allow_unsandboxed:
        return why_sandboxed(policy.commands, around.mode)
    if policy.commands.deny_instead_of_asking:
        return "permissions.denyInsteadOfPrompting turns questions into denials"
    return "the tool has no flag for it" if wording.strict else ""


def _is_refused(policy: Policy, command: str) -> bool:
    return denied_by_rule(policy, command) is not None


def _introduction(around: Surroundings) -> str:
    lines = ["Shell commands run inside an operating-system sandbox. Run them there by default, without asking first."]
    if around.unavailable:
        lines.append(f"At the moment no sandbox can be started on this machine: {_shown(around.unavailable)}.")
    return " ".join(lines)


def _files(policy: Policy, around: Surroundings) -> str:
    files = policy.files
    planning = around.mode is PermissionMode.PLAN
    lines = [
        "Files:",
        f"- Writable: {_listed(_writable(policy, around))}. Everything else is read-only.",
        f"- Temporary files belong in $TMPDIR ({_shown(around.temporary)}); {_TMP[files.tmp]}.",
        "- Not writable although inside a writable directory: shell start-up files, git hooks and configuration, "
        "settings of editors and agents.",
    ]
    if files.deny_write and not planning:
        lines.append(f"- Not writable: {_listed(rule.path for rule in files.deny_write)}.")
    if files.deny_read:
        lines.append(f"- Not readable: {_listed(rule.path for rule in files.deny_read)}. Other files can be read.")
    else:
        lines.append("- Every file that the user can read can be read.")
    if files.allow_read:
        lines.append(f"- Readable inside such a place: {_listed(rule.path for rule in files.allow_read)}.")
    return "\n".join(lines)


def _writable(policy: Policy, around: Surroundings) -> list[str]:
    if around.mode is PermissionMode.PLAN:
        return [around.temporary]
    return [around.cwd, around.temporary, *(rule.path for rule in policy.files.allow_write)]


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
    if network.credentials:
        hosts = _listed(dict.fromkeys(rule.pattern.text for rule in network.credentials))
        lines.append(
            f"- The proxy logs in at: {hosts}. Tokens in variables and files are placeholders: use them unchanged."
        )
    if network.uploads or network.max_new_names:
        lines.append("- What a session may send or look up is limited; the message of a refusal names the limit.")
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


def _rules(policy: Policy) -> str:
    commands, lines = policy.commands, []
    if commands.deny:
        listed = _listed(f"Bash({rule.pattern})" for rule in commands.deny)
        lines.append(f"- Forbidden, in any form and place: {listed}. Do not run them.")
    if commands.ask:
        listed = _listed(f"Bash({rule.pattern})" for rule in commands.ask)
        lines.append(f"- The tool asks the user before: {listed}. Run them as usual.")
    if not commands.auto_allow:
        lines.append("- The tool asks the user before each other command that no rule allows.")
    if lines and commands.deny_instead_of_asking:
        lines.append("- Questions are turned into denials: what needs one does not run.")
    return "\n".join(("Commands:", *lines)) if lines else ""


def _outside(policy: Policy, around: Surroundings, wording: Wording, closed: str) -> str:
    lines, commands = ["Outside the sandbox:"], policy.commands
    excluded = [rule.pattern for rule in commands.excluded if not _is_refused(policy, rule.pattern.replace(":*", " x"))]
    if excluded and around.mode is not PermissionMode.PLAN:
        lines.append(
            f"- These run outside by themselves: {_listed(excluded)}. A line counts only when every command in it is "
            "listed and it has no redirection or substitution."
        )
    known = [(name, why) for name, why in around.exceptions if not _is_refused(policy, name)]
    exceptions = ", ".join(
        f"{_shown(name)} ({_shown(why)})" if why else _shown(name) for name, why in known[:MAX_EXCEPTIONS]
    )
    without = f" {wording.flag} has no effect: the command runs inside."
    if closed:
        lines += [
            f"- No command can be run outside on request: {closed}.{'' if wording.strict else without}",
            "- When something needs more, say which rule is in the way. Only the user can change it.",
        ]
        lines += [f"- Cannot work inside, so not at all: {exceptions}."] if exceptions else []
        return "\n".join(lines)
    lines += [
        f"- One command can be run outside with {wording.flag}: true. Never in advance: only with evidence that the "
        "sandbox caused the failure, or when the user asked for it.",
        "- With evidence, run that command outside at once, in the same turn. The tool asks the user by itself, so do "
        "not ask; say in one sentence which restriction was met.",
        "- One override says nothing about the next command, which starts inside again.",
    ]
    if exceptions:
        lines.append(f"- Cannot work inside, run outside at once: {exceptions}.")
    usable = (row for row in EXAMPLES if not any(_is_refused(policy, command) for command in row[:2]))
    if wording.examples and (row := next(usable, None)) is not None:
        inside, outside, printed = row
        call = json.dumps({"command": outside, wording.flag: True})
        lines.append(f"- Inside: {json.dumps({'command': inside})}")
        lines.append(f"- Outside, after the output {json.dumps(printed)}: {call}")
    return "\n".join(lines)


def _evidence(policy: Policy, around: Surroundings) -> str:
    lines = [
        "Evidence that the sandbox was in the way:",
        "- a <sandbox_violations> block after the output; it names the path or host and the rule",
    ]
    for printed, meaning in SYMPTOMS:
        if printed[0] != "No such file or directory" or policy.files.tmp == "private":
            lines.append(f"- {' or '.join(json.dumps(text) for text in printed)}: {meaning}")
    lines += [
        "No evidence: a missing file elsewhere, a wrong argument, a failing test, 502 or 504, a time-out.",
        "Reports can be noisy: many programs try a path or host and do without it. A violation is the cause only where "
        "the command failed, and at that.",
    ]
    if policy.ignore_violations:
        lines.append(
            "Not reported, since the settings ignore them, and still refused: "
            f"{_listed(f'{key}: {text}' for key, texts in policy.ignore_violations for text in texts)}."
        )
    lines.append(
        "Do not try to get around the sandbox: no other proxy, resolver, copy of the program or place for the same "
        "file."
    )
    if around.mode is not PermissionMode.PLAN and not _is_refused(policy, "sandboxd allow path x"):
        opening = "a path or host for good with `sandboxd allow path …` or `sandboxd allow domain …`"
        if policy.network.managed_domains_only:
            opening = "a path for good with `sandboxd allow path …`, and no host: only managed settings allow hosts"
        lines.append(
            f"The user can open {opening}; suggest the narrowest one. Never suggest opening credentials, key "
            "directories, shell start-up files or whole home directories."
        )
    return "\n".join(lines)


def _data(policy: Policy, around: Surroundings, wording: Wording, closed: str) -> dict[str, Any]:
    files, network, commands = policy.files, policy.network, policy.commands
    return {
        "writable": _writable(policy, around),
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
        "outside_on_request": "deny" if closed else "ask",
        "flag": wording.flag,
        "sandboxed_commands": "allow" if commands.auto_allow else "ask",
        "needs_approval": [f"Bash({rule.pattern})" for rule in commands.ask],
        "forbidden": [f"Bash({rule.pattern})" for rule in commands.deny],
        "exceptions": [name for name, _ in around.exceptions],
        "ignored_violations": {key: list(texts) for key, texts in policy.ignore_violations},
        "symptoms": [text for printed, _ in SYMPTOMS for text in printed],
        "off": around.off,
        "unavailable": around.unavailable,
    }


def _listed(entries: Iterable[str]) -> str:
    unique: Sequence[str] = list(dict.fromkeys(entries))
    shown = ", ".join(_shown(entry) for entry in unique[:MAX_ENTRIES])
    more = len(unique) - MAX_ENTRIES
    return f"{shown} and {more} more" if more > 0 else shown


def _shown(text: str) -> str:
    return neutralise(" ".join(text.split()), MAX_ENTRY)
