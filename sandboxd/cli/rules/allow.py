"""`sandboxd allow` and `deny`: one rule on a path, host, socket or preset, in settings."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, Option, UsageError, suggestion, visible
from sandboxd.cli.daemon_client import client
from sandboxd.cli.output import note, warn
from sandboxd.cli.rules.local_settings import (
    IN_SESSION,
    PROJECT,
    YES,
    announce,
    confirmed,
    is_pattern,
    make_changes,
    one_place,
    rule_path,
)
from sandboxd.cli.rules.settings_files import check_preset
from sandboxd_client import Change, Client, SandboxdError
from sandboxd_client.wire.messages.policy import ExplainKind, ExplainResult

_CWD = Option("--cwd", "resolve a relative path in this directory", value="DIR")
_REMOVE = Option("--remove", "remove the rule")
_READ = Option("--read", "allow reading inside a denied directory, not writing")
_ENDING = "A rule for the network holds at once, one for files from the next command on."

_PUBLIC = "; a registry that takes uploads from every account, so a command can send there what it reads"
TOOLS = ("pip", "npm", "cargo", "go", "maven", "apt", "git")
# (verb, kind): the lists it is added to
_LISTS = {
    ("allow", "path"): ("sandbox.filesystem.allowWrite",),
    ("allow", "domain"): ("sandbox.network.allowedDomains",),
    ("allow", "socket"): ("sandbox.network.allowUnixSockets",),
    ("allow", "preset"): ("sandbox.presets",),
    ("allow", "tool"): ("sandbox.network.allowedDomains",),
    ("deny", "path"): ("sandbox.filesystem.denyRead", "sandbox.filesystem.denyWrite"),
    ("deny", "domain"): ("sandbox.network.deniedDomains",),
    ("deny", "preset"): ("sandbox.presets",),
}
HELP = Help(
    "allow (path P | domain H | socket P | preset NAME | tool NAME)",
    "Let commands write a path, reach a host, use a Unix socket, or what a preset opens, by a rule in your local "
    "settings.\n\n"
    f"tool {'|'.join(TOOLS)}: the hosts that the tool's own configuration on this machine names; files of a\n"
    f"project are not read.\n\n{_ENDING}",
    (_READ, _REMOVE, PROJECT, IN_SESSION, _CWD, YES, JSON, NO_AUTOSTART),
    ("allow domain registry.example.org", "allow path ~/.cache/build", "allow preset caches", "allow tool pip"),
    words=tuple(kind for verb, kind in _LISTS if verb == "allow"),
)
DENY_HELP = Help(
    "deny (path P | domain H | preset NAME)",
    f"Close a path, a host, or what a preset closes, by a rule in your local settings.\n\n{_ENDING}",
    (_REMOVE, PROJECT, IN_SESSION, _CWD, JSON, NO_AUTOSTART),
    ("deny path ~/.netrc", "deny domain ads.example.com"),
    words=tuple(kind for verb, kind in _LISTS if verb == "deny"),
)
_OPPOSITE = {"allow": "deny", "deny": "allow"}


def main(arguments: Sequence[str]) -> int:
    return change_rule("allow", arguments, HELP)


def deny(arguments: Sequence[str]) -> int:
    return change_rule("deny", arguments, DENY_HELP)


def change_rule(verb: str, arguments: Sequence[str], help: Help) -> int:
    """Add a rule, or remove it with `--remove`.

    The opposite rule of the same words is removed from local settings. Rules of other files stay; a stronger one is
    reported."""
    parsed = help.read(arguments)
    kind, *rest = [*parsed.words, *(parsed.command or ())] or [""]
    if kind not in help.words:
        message = f"cannot {verb} {visible(kind)}" if kind else f"{verb} needs a kind"
        raise UsageError(message, suggestion(kind, help.words))
    if len(rest) != 1:
        problem = f"unexpected word {visible(rest[1], 60)}" if rest else f"{verb} {kind} needs a {kind}"
        raise UsageError(problem, f"usage: sandboxd {help.usage}")
    if "read" in parsed and kind != "path":
        raise UsageError("--read is for allow path")
    one_place(parsed)
    if kind == "preset":
        check_preset(verb, rest[0])
    texts = [rest[0] if kind in ("domain", "preset") else rule_path(rest[0], parsed.get("cwd"))]
    if kind == "tool":
        texts, kind = _hosts_of(rest[0], parsed.get("cwd")), "domain"
    text = ", ".join(texts)
    keys = ("sandbox.filesystem.allowRead",) if "read" in parsed else _LISTS[verb, kind]
    with client(parsed) as box:
        cwd, session = parsed.get("cwd"), parsed.get("session")
        if "remove" in parsed:
            result = make_changes(box, parsed, [Change("remove", key, one) for key in keys for one in texts])
            missing = f"{result.file} has no such rule"
            return announce(parsed, result, f"{text} is in no {verb} rule there any more", missing)
        changes = [Change("add", key, one) for key in keys for one in texts]
        file = (
            os.path.realpath(os.path.join(cwd or ".", ".claude/settings.local.json")) if "project" in parsed else None
        )
        lists = () if kind == "preset" else _LISTS.get((_OPPOSITE[verb], kind), ())
        opposite = [(key, one) for key in lists for one in texts if _stands_there(box, key, one, cwd, file, session)]
        changes += [Change("remove", key, one) for key, one in opposite]
        result = confirmed(parsed, lambda yes: make_changes(box, parsed, changes, confirm=yes))
        status = announce(parsed, result, f"{_done(verb, kind, 'read' in parsed)}: {text}")
        for key, _ in opposite:
            warn(f"the opposite rule was removed from {key}")
        for one in texts:
            _check(box, verb, kind, one, cwd, session, write="read" not in parsed)
    return status


def _hosts_of(tool: str, cwd: str | None) -> list[str]:
    """Show the hosts of a tool, and return their rules. Raises UsageError, SandboxdError."""
    if tool not in TOOLS:
        raise UsageError(f"no tool {visible(tool, 60)} is known", suggestion(tool, TOOLS))
    from sandboxd.cli.rules.tool_hosts import tool_hosts

    found = tool_hosts(tool, os.path.abspath(cwd or "."))
    for one in found:
        note(f"  {one.rule}  ({one.where}{_PUBLIC if one.is_default else ''})")
    return [one.rule for one in found]


def _done(verb: str, kind: str, read: bool) -> str:
    if verb == "deny":
        return "denied"
    return "allowed" if kind != "path" else "readable" if read else "writable"


def _stands_there(box: Client, key: str, text: str, cwd: str | None, file: str | None, session: str | None) -> bool:
    """Return whether an entry is in local settings, in `file`, or in those of a session."""
    (found,) = box.settings_get(key, cwd=cwd, session_id=session).values
    source = "local" if session is None else "cli"
    placed = zip(found.value, found.origins, strict=False)  # an empty list has the origin of its default
    return any(
        value == text and (origin.source == source if file is None else origin.file == file) for value, origin in placed
    )


def _check(box: Client, verb: str, kind: str, text: str, cwd: str | None, session: str | None, *, write: bool) -> None:
    """Warn when the changed rule is not in force."""
    if kind == "preset" or is_pattern(text) or (kind == "path" and text.startswith("$")):
        return
    if kind == "path" and verb == "allow" and not os.path.lexists(os.path.expanduser(text)):
        warn(f"{visible(text)} does not exist yet: the rule holds for commands that start after it was made")
        return
    try:
        explained: ExplainKind = "host" if kind == "domain" else "socket" if kind == "socket" else "path"
        target, write = (
            text.removeprefix(".") if kind == "domain" else text,
            kind == "path" and write and verb == "allow",
        )
        decision = box.policy_explain(explained, target, write=write, cwd=cwd, session_id=session)
    except SandboxdError as error:
        warn(error.message)
        return
    if (decision.behavior == "allow") is not (verb == "allow"):
        warn(f"{'still not allowed' if verb == 'allow' else 'still not denied'}: {_reason(decision)}")


def _reason(decision: ExplainResult) -> str:
    rule = "" if decision.reason.rule is None else f", by the rule {decision.reason.rule}"
    place = "" if decision.reason.origin is None else f" in {decision.reason.origin}"
    return f"{decision.reason.text}{rule}{place}"
