"""What must be true of every profile that is generated, whatever the policy: read from the compiled rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandboxd.backends.macos.seatbelt.path_patterns import LONGEST
from support.sbpl import Endpoint, Profile, Request, Rule, Semantics, compile_profile, file
from support.sbpl_operations import contains
from support.sbpl_public import PUBLIC_FILTERS, PUBLIC_OPERATIONS
from support.sbpl_reader import Datum, Form, Symbol, Text, read_profile

RULE_FILES = Path(__file__).resolve().parents[2] / "sandboxd" / "backends" / "macos" / "seatbelt" / "sbpl"

NEVER = (
    "default", "file*", "file-mount", "file-mount-update", "file-unmount", "file-chroot", "job-creation",
    "mach-bootstrap", "mach-priv-host-port", "mach*", "mach-priv*", "network*", "process*", "ipc*", "iokit*", "system*",
    "sysctl*", "system-privilege", "system-set-time", "system-reboot", "system-kext-load", "nvram-set", "nvram*",
    "load-unsigned-code", "dynamic-code-generation", "hid-control", "authorization-right-obtain",
    "user-preference-write", "file-issue-extension", "generic-issue-extension", "mach-task*", "device*",
)  # fmt: skip
"""Operations that no profile allows, however narrowly."""

APPLE_EVENTS = ("appleevent-send", "lsopen")
ONLY_WITH_A_FILTER = (
    "network-outbound", "network-bind", "network-inbound", "mach-lookup", "mach-register", "mach-priv-task-port",
    "file-write*", "file-write-data", "file-write-create", "file-ioctl", "signal", "process-info*", "iokit-open",
    "sysctl-read", "sysctl-write", "system-socket", "user-preference-read", "ipc-posix-shm", "ipc-posix-shm*",
)  # fmt: skip


def lint(text: str, parameters: Mapping[str, str], *, apple_events: bool = False) -> list[str]:
    """Everything that is wrong, as sentences; an empty list when nothing is."""
    profile = compile_profile(text, parameters)
    return [
        *_beginning(text, profile),
        *_rights(profile, apple_events),
        *_words(profile),
        *_network(profile),
        *_order(profile),
        *_closed_stays_closed(profile),
        *_literals(text),
        *_values(parameters),
        *(f"line {rule.line}: a refusal without a tag" for rule in profile.rules if _is_untagged(rule, parameters)),
    ]


def _beginning(text: str, profile: Profile) -> Iterator[str]:
    if read_profile(text)[0] != [Symbol("version"), 1]:
        yield "does not begin with (version 1)"
    if not text.isascii():
        yield "has letters outside ASCII"
    first = profile.rules[0]
    if (first.action, first.operations, first.filter) != ("deny", ("default",), None):
        yield "the first rule is not (deny default)"


def _rights(profile: Profile, apple_events: bool) -> Iterator[str]:
    never = NEVER if apple_events else (*NEVER, *APPLE_EVENTS)
    for rule in profile.rules:
        if rule.action != "allow":
            continue
        for operation in rule.operations:
            if operation in never:
                yield f"line {rule.line}: allows {operation}"
            if operation in ONLY_WITH_A_FILTER and rule.filter is None:
                yield f"line {rule.line}: allows {operation} without a filter"


def _words(profile: Profile) -> Iterator[str]:
    """Nothing that only a description names: a word that a compiler does not know makes the whole profile fail."""
    for rule in profile.rules:
        unknown = [word for word in rule.operations if word not in PUBLIC_OPERATIONS]
        unknown += [one.name for one in rule.filters() if one.name not in PUBLIC_FILTERS]
        yield from (f"line {rule.line}: {word} is used by no public profile" for word in unknown)


def _network(profile: Profile) -> Iterator[str]:
    for rule in profile.rules:
        outbound = any(contains(operation, "network-outbound") for operation in rule.operations)
        if outbound and any(one.name == "local" for one in rule.filters()):
            yield f"line {rule.line}: an outbound rule with a local filter, which matches every connection"
    for host in ("203.0.113.7", "2001:db8::7"):
        if profile.allows(Request("network-outbound", remote=Endpoint(host, 443), local=Endpoint("0.0.0.0", 0))):
            yield f"a connection to {host} is allowed"
    if profile.allows(Request("network-outbound", path="/private/var/run/mDNSResponder")):
        yield "names can be looked up past the proxies"


def _order(profile: Profile) -> Iterator[str]:
    """A rule about an operation is asked before rules about what contains it, whatever their order, so that a refusal
    of a wide operation has no effect on a narrow one that was allowed (see support.sbpl)."""
    for number, rule in enumerate(profile.rules):
        for later in profile.rules[number + 1 :]:
            if rule.action == later.action or "default" in (*rule.operations, *later.operations):
                continue
            for narrow in rule.operations:
                for wide in later.operations:
                    if narrow != wide and contains(wide, narrow):
                        yield f"lines {rule.line}, {later.line}: {later.action} {wide} after {rule.action} {narrow}"


_TRIED = {"file-read*": "file-read-data", "file-write*": "file-write-data"}


def _closed_stays_closed(profile: Profile) -> Iterator[str]:
    """Denies after allows: whatever a refusal names literally is refused in the end."""
    for rule in profile.rules:
        if rule.action != "deny" or rule.filter is None or any(one.name == "require-not" for one in rule.filters()):
            continue
        for operation in rule.operations:
            tried = _TRIED.get(operation, operation)
            for one in rule.filters():
                if one.name in ("literal", "subpath") and not tried.endswith("*"):
                    path = str(one.arguments[0])
                    request = file(tried, path) if tried.startswith("file-") else Request(tried, path=path)
                    if profile.decide_by(Semantics.LAST_MATCH, request).allowed and path != "/":
                        yield f"line {rule.line}: {operation} of {path} is refused and allowed again"


def _literals(text: str) -> Iterator[str]:
    """Every string in the text is the name of a parameter or stands in a rule file."""
    known = {"localhost:"}
    for name in sorted(RULE_FILES.glob("*.sbpl")):
        known.update(literal.value for literal in _texts(read_profile(name.read_text())))
    for literal in _texts(read_profile(text)):
        if literal.value not in known and not re.fullmatch(r"[PRNL][0-9]+", literal.value):
            yield f"line {literal.line}: text of a policy in the profile: {literal.value!r}"


def _texts(data: list[Datum]) -> Iterator[Text]:
    for datum in data:
        if isinstance(datum, Text):
            yield datum
        elif isinstance(datum, Form):
            yield from _texts(list(datum))


def _values(parameters: Mapping[str, str]) -> Iterator[str]:
    for name, value in parameters.items():
        if name.startswith("R"):
            if len(value.encode("utf-8", "surrogateescape")) > LONGEST + len("/private"):
                yield f"{name}: an expression of {len(value)} characters"
            if not value.startswith("^") or not value.endswith(("$", "$)", "/")):
                yield f"{name}: an expression that is not anchored: {value!r}"
            if re.search(r"(?<!\\)\.", re.sub(r"\\\\|\[[^]]*\]", "", value)):
                yield f"{name}: a dot that stands for anything: {value!r}"
        if name.startswith("P") and (not value.startswith("/") or (value.endswith("/") and value != "/")):
            yield f"{name}: not a path as the kernel has it: {value!r}"


def _is_untagged(rule: Rule, parameters: Mapping[str, str]) -> bool:
    return rule.action == "deny" and rule.message != parameters.get("TAG")
