"""Suggestions: the smallest settings that let refused accesses pass.

Never part of the answer, and listed with the reason instead: what a rule closes, what is protected, secret or the
daemon's own, and what a user refused. The rest becomes rules, as narrow as is readable:

- a file that exists is named itself; for one that was to be made, the directory it was to be made in, since only what
  exists can be opened;
- `GROUP` or more in one directory become that directory, unless it holds secrets or is a place that much else is in (a
  home directory, a top-level one): then the single paths stay;
- `GROUP` or more hosts of one domain become `*.domain`, unless unrelated owners share the domain."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sandboxd.paths import is_below
from sandboxd.policy.decision import Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.explain.hints import DENIALS
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, parse_authority, parse_host
from sandboxd.policy.hosts.public_suffixes import is_shared_suffix
from sandboxd.policy.hosts.shared_hosts import purpose_of
from sandboxd.policy.paths.protected_names import is_protected_name
from sandboxd.policy.paths.secret_places import SecretPlaces
from sandboxd.policy.sockets.control_sockets import control_socket
from sandboxd.policy.violation import Violation, ViolationKind
from sandboxd_client.records import dataclass, field

GROUP = 3
_SPECIAL = "*?[$"
_DEPTH = 2
"""Components that a directory needs to be opened as a whole."""
_OPEN_HOSTS = (Reason.HOST_NOT_LISTED, Reason.PROMPT_UNANSWERED)


@dataclass(frozen=True, slots=True)
class TargetState:
    """State of a path: existence, nearest directory, and path of the closing rule."""

    exists: bool
    nearest: str
    closed_at: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A target that no rule is suggested for."""

    target: str
    why: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """Settings to add, targets without a rule, and further steps for the user."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def learn(violations: Sequence[Violation], context: Mapping[str, TargetState], home: str) -> Lesson:
    """Suggest settings; `context` has an entry for each path of the violations."""
    learner = _Learner(context, home)
    for violation in violations:
        learner.take(violation)
    return learner.lesson()


class _Learner:
    def __init__(self, context: Mapping[str, TargetState], home: str) -> None:
        self._states = context
        self._home = home
        self._secrets = SecretPlaces(home)
        self._write: dict[str, None] = {}
        self._read: dict[str, None] = {}
        self._closed: set[str] = set()
        self._hosts: dict[tuple[Host, int | None], None] = {}
        self._sockets: dict[str, None] = {}
        self._left_out: dict[str, LeftOut] = {}
        self._notes: dict[str, None] = {}

    def take(self, violation: Violation) -> None:
        why = self._add(violation)
        if why:
            self._left_out.setdefault(violation.target, LeftOut(violation.target, why))

    def _add(self, violation: Violation) -> str:
        """Add a rule for a violation; return the reason where there is none, else ""."""
        if violation.inferred:
            return "it was only guessed from the output"
        try:
            reason: Reason | None = Reason(violation.outcome)
        except ValueError:
            reason = None
        if reason is not None and reason in DENIALS and (why := DENIALS[reason].left_out):
            return why
        match violation.kind:
            case ViolationKind.WRITE | ViolationKind.READ | ViolationKind.UNIX_SOCKET:
                if not violation.target.startswith("/") or _is_changed(violation.target):
                    return "its name cannot be written in a rule"
                if self._secrets.holds(violation.target):
                    return "it is a place of secrets"
                return self._add_path(violation, reason)
            case ViolationKind.NETWORK if reason in _OPEN_HOSTS:
                return self._add_host(violation.target)
            case _:
                return "no rule opens it"

    def _add_path(self, violation: Violation, reason: Reason | None) -> str:
        target = violation.target
        if violation.kind is ViolationKind.UNIX_SOCKET:
            if reason is not Reason.SOCKET_NOT_LISTED or control_socket(target) is not None:
                return DENIALS[Reason.SOCKET_CONTROL].left_out
            self._sockets[target] = None
            return ""
        context = self._states.get(target, TargetState(False, "/"))
        if violation.kind is ViolationKind.READ:
            if reason is not Reason.PATH_DENIED or violation.rule is None:
                return "no rule opens it"
            if context.closed_at in ("", target):
                return f"the rule {violation.rule} names exactly this path, and a deny wins"
            self._read[target] = None
            self._closed.add(context.closed_at)
            return ""
        if is_protected_name(target, self._home):
            return DENIALS[Reason.PATH_PROTECTED].left_out
        if reason is not Reason.PATH_NOT_WRITABLE:
            return f"the rule {violation.rule} closes it, and a deny wins" if violation.rule else "no rule opens it"
        self._write[target if context.exists else self._made_in(target, context)] = None
        return ""

    def _made_in(self, target: str, context: TargetState) -> str:
        """Return the path that has to be writable for `target` to be made."""
        path = context.nearest
        if not self._is_too_wide(path):
            return path
        for name in posixpath.relpath(target, path).split("/"):
            path = posixpath.join(path, name)
            if not self._is_too_wide(path):
                break
        self._note(f"{path} does not exist: make it first (mkdir, or touch for a file), as rules open existing paths")
        return path

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _add_host(self, target: str) -> str:
        with_port = target.rpartition("]")[2].count(":") == 1
        try:
            host, port = parse_authority(target) if with_port else (parse_host(target), None)
        except HostSyntaxError:
            return "its name cannot be written in a rule"
        if purpose := purpose_of(host):
            self._note(f"{host.name} {purpose}: check it before you allow it")
        self._hosts[host, port] = None
        return ""

    def lesson(self) -> Lesson:
        writes = _covered(self._grouped(self._write, self._is_too_wide))
        reads = _covered(self._grouped(self._read, lambda path: self._is_too_wide(path) or path in self._closed))
        sockets = _covered(self._grouped(self._sockets, self._is_too_wide_for_sockets))
        files = {"allowWrite": [self._rule(p) for p in writes], "allowRead": [self._rule(p) for p in reads]}
        network = {"allowedDomains": _grouped_hosts(self._hosts), "allowUnixSockets": [self._rule(p) for p in sockets]}
        sandbox = {
            name: {key: rules for key, rules in section.items() if rules}
            for name, section in (("filesystem", files), ("network", network))
            if any(section.values())
        }
        return Lesson({"sandbox": sandbox} if sandbox else {}, tuple(self._left_out.values()), tuple(self._notes))

    def _is_too_wide_for_sockets(self, directory: str) -> bool:
        return self._is_too_wide(directory) or control_socket(directory) is not None

    def _is_too_wide(self, directory: str) -> bool:
        parts = [part for part in directory.split("/") if part]
        above_home = is_below(self._home, directory)
        return len(parts) < _DEPTH or above_home or self._secrets.below(directory) or self._secrets.holds(directory)

    def _grouped(self, paths: Iterable[str], is_too_wide: Callable[[str], bool]) -> list[str]:
        together: dict[str, list[str]] = {}
        for path in paths:
            together.setdefault(posixpath.dirname(path), []).append(path)
        rules: dict[str, None] = {}
        for directory, members in together.items():
            whole = len(members) >= GROUP and not is_too_wide(directory)
            rules.update(dict.fromkeys([directory] if whole else members))
        return list(rules)

    def _rule(self, path: str) -> str:
        """Return a path as a rule: special characters in brackets, and home as `~`."""
        below_home = path.startswith(self._home + "/") and self._home != "/"
        text = path.removeprefix(self._home) if below_home else path
        text = "".join(f"[{c}]" if c in _SPECIAL else c for c in text)
        return f"~{text}" if below_home else text


def _covered(paths: list[str]) -> list[str]:
    """Return the sorted paths without those below another one."""
    return sorted(p for p in paths if not any(p != other and is_below(p, other) for other in paths))


def _grouped_hosts(hosts: Iterable[tuple[Host, int | None]]) -> list[str]:
    together: dict[tuple[str, int | None], list[str]] = {}
    for host, port in hosts:
        domain = "" if host.address is not None else host.name.partition(".")[2]
        authority = host.uri if port is None else host.authority(port)
        together.setdefault((domain, port), []).append(authority)
    rules: list[str] = []
    for (domain, port), members in together.items():
        owned = "." in domain and not is_shared_suffix(domain)
        whole = f"*.{domain}" if port is None else f"*.{domain}:{port}"
        rules += [whole] if owned and len(members) >= GROUP else members
    return sorted(rules)


def _is_changed(target: str) -> bool:
    """Return whether a target was changed for display, and is no longer the path."""
    return "\\" in target or target.endswith("…") or neutralise(target) != target
