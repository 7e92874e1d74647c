"""Hints on violations: the row of the table that fits a symptom, as a command line.

`{path}`, `{host}` and `{rule}` are filled in, quoted for a shell. A target that had to be neutralised cannot be a word
of a command line, so the text goes without it."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from sandboxd.policy.decision import ONLY_MANAGED, Reason
from sandboxd.policy.explain.hint_table import HINTS, Symptom
from sandboxd.policy.paths.protected_names import is_protected_name
from sandboxd_client.records import dataclass

NO_SUCH_NAME = "nothing has this name, so no rule is proposed for it"
ONE_OFF = "its name is of this run only, so no rule is proposed for it: let the program write below $TMPDIR"
ONLY_CONTENT = "a rule opens what is in a path, not its name: remove or move it outside the sandbox"
_NAMES = re.compile(r"\{(path|allow)\}")
_ONE_OFF_NAME = re.compile(
    r"(?i)(.*[._-])?te?mp([._-].*|\d.*|[a-z0-9_]{8})?|.*\d{5,}.*"
    r"|(.*[._-])?(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}([._-].*)?"
)
_PLAIN_NAME = re.compile(r"[\w@%+=:,./~-]*")


@dataclass(frozen=True, slots=True)
class DenialText:
    """Texts for a reason: why learning suggests no rule, and the last hint."""

    left_out: str = ""
    hint: str = ""


_EXPLAIN = "see the rule that decides: sandboxd explain"
DENIALS: Final[Mapping[Reason, DenialText]] = {
    Reason.HOST_DENIED: DenialText("a rule denies the host", "remove the rule {rule}: a deny beats every allow"),
    Reason.HOST_NOT_LISTED: DenialText(hint=f"{_EXPLAIN} host {{host}}"),
    Reason.HOST_INVALID: DenialText("it is no valid host", "write the host as a name or an address"),
    Reason.PORT_CLOSED: DenialText(
        "a page of sandboxd for people listens there", "answer its questions in a browser, or run: sandboxd prompts"
    ),
    Reason.LOCAL_ADDRESS: DenialText("it is an address of this machine or its network", f"{_EXPLAIN} host {{host}}"),
    Reason.ADDRESS_DENIED: DenialText("a rule denies the address", f"{_EXPLAIN} host {{host}}"),
    Reason.SERVER_NAME: DenialText("a tunnel to another host asked for it", f"{_EXPLAIN} host {{host}}"),
    Reason.SERVER_UNTRUSTED: DenialText("its certificate is not valid", "have the server's certificate corrected"),
    Reason.REQUEST_DENIED: DenialText("a rule for requests denies it", "sandboxd explain host {host}"),
    Reason.REQUEST_UNCLEAR: DenialText("servers may read its path in several ways", "send a plain path"),
    Reason.REQUEST_UNSEEN: DenialText("its requests cannot be seen", "sandboxd explain host {host}"),
    Reason.CREDENTIAL_MISPLACED: DenialText(
        "a request has the placeholder of a credential", "sandboxd settings show sandbox.credentials.inject"
    ),
    Reason.UPLOAD_LIMIT: DenialText(
        "a limit for uploads is reached", "sandboxd settings show sandbox.network.maxUpload"
    ),
    Reason.NAME_LIMIT: DenialText("a limit for names is reached", "sandboxd settings show sandbox.network.maxNewNames"),
    Reason.PROMPT_DENIED: DenialText("a user said no to it", "ask the user before another try: the answer was no"),
    Reason.PROMPT_UNANSWERED: DenialText(hint="answer the prompt while the command waits"),
    Reason.PATH_NOT_WRITABLE: DenialText(hint=f"{_EXPLAIN} path --write {{path}}"),
    Reason.PATH_DENIED: DenialText(hint="remove the rule {rule}, which denies exactly this path"),
    Reason.PATH_PROTECTED: DenialText("it is protected, because a program outside the sandbox obeys it"),
    Reason.PLAN_MODE: DenialText("the session plans, so it writes temporary files only", "write below $TMPDIR"),
    Reason.PATH_KEPT: DenialText("it can be written, but not moved or removed", f"{_EXPLAIN} path {{path}}"),
    Reason.SOCKET_NOT_LISTED: DenialText(hint=f"{_EXPLAIN} socket {{path}}"),
    Reason.SOCKET_CONTROL: DenialText("its server acts outside the sandbox", f"{_EXPLAIN} socket {{path}}"),
    Reason.SOCKET_OWN: DenialText("it belongs to sandboxd"),
    Reason.SOCKET_REDIRECTED: DenialText("a listed path leads there by a link that the command can change"),
    Reason.SOCKET_BROUGHT: DenialText("its place is open, and it came there after the command had started"),
}
"""Texts for every reason of a violation. A new reason needs one, and a row of `HINTS` or a hint here."""


def hint_for(symptom: Symptom) -> str:
    """Return the hint: particular rows, the decision's own hint, general rows."""
    decision = symptom.decision
    not_writable = decision is not None and decision.reason is Reason.PATH_NOT_WRITABLE
    if decision is not None and not_writable and is_protected_name(symptom.target, symptom.home):
        # a rule that opens it would lift the protection as well
        symptom = replace(symptom, decision=replace(decision, reason=Reason.PATH_PROTECTED))
    if decision is not None and decision.hint == ONLY_MANAGED:
        return decision.hint
    if decision is not None and decision.reason is Reason.PATH_KEPT:
        return decision.hint  # no rule is in the way
    for row in HINTS:
        found = row.match(symptom)
        if found is not None and "--read" in row.text and _is_named(symptom):
            break  # no rule opens what another one names
        if found is not None:
            invented = not symptom.exists and _NAMES.search(row.text) and has_odd_characters(symptom.target)
            return NO_SUCH_NAME if invented else _filled(row.text, found, symptom)
    if decision is None or decision.hint:
        return "" if decision is None else decision.hint
    return _filled(DENIALS[decision.reason].hint, None, symptom) if decision.reason in DENIALS else ""


def _is_named(symptom: Symptom) -> bool:
    """Return whether the rule that denies a path names it, and not a directory above."""
    rule = "" if symptom.decision is None else (symptom.decision.rule or "").rstrip("/")
    rule = symptom.home + rule[1:] if rule.startswith("~/") else rule
    if set("*?[") & set(rule):
        return fnmatchcase(posixpath.basename(symptom.target), posixpath.basename(rule))
    return symptom.target == rule or (
        not rule.startswith(("/", "$")) and symptom.target.endswith(f"/{rule.removeprefix('./')}")
    )


def has_odd_characters(target: str) -> bool:
    """Return whether a name could read as more than a name, by its characters."""
    return not _PLAIN_NAME.fullmatch(target)


def _filled(text: str, found: re.Match[str] | None, symptom: Symptom) -> str:
    part = found is not None and found.groupdict().get("path") is not None
    path = symptom.target[: found.end("path")] if found is not None and part else symptom.target
    allow = ""
    if "{allow}" in text:
        if path == symptom.target and symptom.operation in _REMOVALS:
            return ONLY_CONTENT
        if path == symptom.target and _is_one_off(path, symptom.home):
            return ONE_OFF
        makes = next((first for first, names in _MAKES.items() if symptom.operation in names), "")
        makes = makes if path == symptom.target else "mkdir -p {path} && "
        allow = f"{makes}sandboxd allow path {{path}}"
    authority = symptom.target if symptom.target.startswith("/") else symptom.target.partition("/")[0]
    host = authority.rpartition(":")[0] or authority
    rule = symptom.decision.rule if symptom.decision is not None and symptom.decision.rule is not None else ""
    if symptom.decision is not None and symptom.decision.origin is not None:
        rule = f"{rule} in {symptom.decision.origin}".strip()
    return (
        text.replace("{allow}", allow)
        .replace("{rule}", rule or "that decides")
        .replace("{host}", _word(host, symptom.home))
        .replace("{path}", _word(path, symptom.home))
        .replace("{port}", (found.groupdict().get("port") if found else None) or "PORT")
        .replace("{name}", _word(posixpath.basename(path), symptom.home))
    )


_REMOVALS = frozenset("rename renameat renameat2 unlink unlinkat rmdir file-write-unlink".split())
_MAKES = {
    "mkdir -p {path} && ": frozenset(("mkdir", "mkdirat")),
    "touch {path} && ": frozenset("open openat openat2 creat mknod mknodat file-write-create".split()),
}
"""The commands that make a path first, since rules open what exists; they harm no path that is there."""


def _is_one_off(path: str, home: str) -> bool:
    """Return whether a name reads as that of a temporary file: of it no rule is of use twice."""
    below = home not in ("", "/") and path.startswith(home + "/")
    names = path[len(home) :].split("/") if below else [posixpath.basename(path)]
    return any(_ONE_OFF_NAME.fullmatch(name) for name in names if name)


def _word(text: str, home: str) -> str:
    """Return one word of a command line, with `~` for the home directory."""
    if "\\" in text or text.endswith("…"):
        return "PATH"  # neutralised or cut: no longer the name
    if home and home != "/" and text.startswith(home + "/"):
        rest = posixpath.relpath(text, home)
        return f"~/{shlex.quote(rest)}"
    return shlex.quote(text)
