"""Decisions on single HTTP requests, and the parser of their rules.

Rules of `sandbox.network.requests` cover hosts. A host that none covers is decided by its name alone. For a covered
host, in this order:

| | | |
| --- | --- | --- |
| 1 | the request can be read in two ways that rules tell apart | deny |
| 2 | a rule denies it | deny |
| 3 | a rule says to ask about it, and no answer allows it | ask |
| 4 | a rule allows it | allow |
| 5 | no rule for the host allows or asks: its rules only deny | allow, where the host itself is allowed |
| 6 | otherwise | deny |

Servers read paths differently: some decode `%2f` before they split, some ignore case. So a path counts as allowed only
if every reading of it is, and as denied if one is. A path with dot segments, control characters or two layers of
encoding is refused for every host with rules for paths. Query strings take no part, and are in no message.

Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.host_rules import compile_rules
from sandboxd.policy.model import CredentialRule, NetworkPolicy, RequestRule
from sandboxd_client.records import dataclass

MAX_PATH: Final = 2048
"""Longest path that patterns are matched with, in bytes."""
MOST_STARS: Final = 8
"""Most `*` and `**` of one pattern."""
_READ: Final = frozenset({"GET", "HEAD", "OPTIONS"})
METHOD_GROUPS: Final = {
    "read": ((_READ, ""),),
    "git-fetch": ((_READ, ""), (frozenset({"POST"}), "/git-upload-pack")),
}
"""Groups of methods, each with the end that a path must have. A push posts to `/git-receive-pack`."""
OVERRIDES: Final = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
"""Headers by which some servers take another method than that of the request line."""
ECHOED: Final = frozenset({"TRACE", "TRACK"})
"""Methods whose answer repeats the request."""
REROUTES: Final = frozenset({b"x-original-url", b"x-rewrite-url", b"x-original-uri"})
"""Headers by which some servers take another path."""

_METHOD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNCLEAR: Final = re.compile(rb"[\x00-\x20\x7f\\\\%]")
_DOTS: Final = re.compile(r"(?:^|/)\.{1,2}(?:[;/]|$)")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as far as rules see it.

    `path` has no query. Headers override the method (`overridden`) or the path (`rerouted`). `hides`: it asks for
    another protocol than WebSocket, in which further requests could not be seen."""

    method: str
    path: str
    overridden: bool = False
    hides: bool = False
    rerouted: bool = False

    @classmethod
    def of(cls, method: str, target: bytes, names: Sequence[bytes] = (), upgrades: Sequence[bytes] = ()) -> HttpRequest:
        """Make it of a target, a path with or without a query, names of headers, and values of Upgrade."""
        path = target.partition(b"?")[0].decode("latin-1")
        known = {name.lower().replace(b"_", b"-") for name in names}  # many servers read both alike
        hides = any(value.strip().lower() != b"websocket" for value in upgrades)
        return cls(method, path, not known.isdisjoint(OVERRIDES), hides, not known.isdisjoint(REROUTES))


class RequestRuleError(ValueError):
    """A rule that cannot be used; `hint` says how to write it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse_operations(methods: Sequence[str]) -> tuple[tuple[frozenset[str], str], ...]:
    """Return the operations of a list of methods and groups. Raises RequestRuleError."""
    operations: list[tuple[frozenset[str], str]] = []
    plain: set[str] = set()
    for name in methods:
        if name in METHOD_GROUPS:
            operations += METHOD_GROUPS[name]
        elif _METHOD.fullmatch(name) and name == name.upper():
            plain.add(name)
        else:
            groups = " or ".join(METHOD_GROUPS)
            raise RequestRuleError(f"{name!r} is no method", f"write it in capitals (GET), or name a group: {groups}")
    if plain:
        operations.append((frozenset(plain), ""))
    return tuple(operations)


def check_path_pattern(pattern: str) -> None:
    """Raise RequestRuleError for a pattern that no request could match, or that costs too much."""
    if not pattern.startswith("/") or "?" in pattern or "#" in pattern:
        raise RequestRuleError(f"{pattern!r} is no path", "begin with a slash, without a query: /repos/**")
    if "%" in pattern or "\\" in pattern or _DOTS.search(pattern):
        raise RequestRuleError(f"{pattern!r} is not a plain path", "write the characters themselves, without . and ..")
    if len(re.findall(r"\*+", pattern)) > MOST_STARS or "***" in pattern:
        raise RequestRuleError(f"{pattern!r} has too many stars", f"write at most {MOST_STARS}")


def rules_for(network: NetworkPolicy, host: Host, port: int | None) -> tuple[RequestRule, ...]:
    """Return the rules that cover a host at a port; for None, those for every port."""
    if not network.requests:
        return ()
    found = compile_rules(network.requests).match_any_port(host)
    return tuple(rule for rule in found if rule.pattern.port in (None, port))


def opening_rule(network: NetworkPolicy, host: Host, port: int | None) -> RequestRule | None:
    """Return a rule that allows some requests to a host, or asks about them."""
    rules = rules_for(network, host, port)
    return next((rule for rule in rules if rule.behavior is not Behavior.DENY), None)


def ends_tls(network: NetworkPolicy, host: Host, port: int) -> bool:
    """Return whether TLS for a host ends in the proxy (`network.tls`)."""
    if not network.tls_terminate or compile_rules(network.tls_terminate).match(host, port) is None:
        return False
    return compile_rules(network.tls_exclude).match(host, port) is None


def why_unseen(network: NetworkPolicy, host: Host, port: int) -> Decision | None:
    """Return the denial of a TLS connection of which rules for requests would see nothing."""
    if ends_tls(network, host, port) or not rules_for(network, host, port):
        return None
    text = f"{host.authority(port)} has rules for requests, which TLS hides"
    hint = f"sandboxd settings add sandbox.network.tls.terminate {host.uri}"
    return Decision(Behavior.DENY, Reason.REQUEST_UNSEEN, text, hint=hint)


def decide_request(network: NetworkPolicy, host: Host, port: int, request: HttpRequest) -> Decision | None:
    """Decide on a request to an allowed host; None where no rule covers the host."""
    rules = rules_for(network, host, port)
    if not rules:
        return None
    about = f"{request.method} {host.authority(port)}{_shown(request.path)}"
    if request.hides:
        return _refusal(Reason.REQUEST_UNSEEN, f"{about} asks for a protocol in which requests cannot be seen")
    if request.overridden and any(rule.operations for rule in rules):
        return _refusal(Reason.REQUEST_UNCLEAR, f"{about} has a header that overrides its method")
    if request.rerouted and any(rule.paths for rule in rules):
        return _refusal(Reason.REQUEST_UNCLEAR, f"{about} has a header that overrides its path")
    readings: Sequence[str] = ("/",)
    if any(rule.paths or any(end for _, end in rule.operations) for rule in rules):
        unclear = why_unclear(request.path)
        if unclear:
            return _refusal(Reason.REQUEST_UNCLEAR, f"{about} {unclear}")
        readings = readings_of(request.path)
    denying = [rule for rule in rules if rule.behavior is Behavior.DENY]
    found = next((rule for rule in denying if any(_matches(rule, request.method, path) for path in readings)), None)
    if found is not None:
        return _refusal(Reason.REQUEST_DENIED, f"{about} is denied by a rule", found)
    asking = [rule for rule in rules if rule.behavior is Behavior.ASK]
    question = next((rule for rule in asking if any(_matches(rule, request.method, path) for path in readings)), None)
    if question is not None:
        text = f"{about} is allowed, and a rule says to ask first"
        return Decision(Behavior.ASK, Reason.RULE, text, question.text, question.origin, question.reason)
    allowing = [rule for rule in rules if rule.behavior is Behavior.ALLOW]
    for rule in allowing:
        if all(_matches(rule, request.method, path) for path in readings):
            return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, f"{about} is allowed", rule.text, rule.origin)
    if not allowing and not asking:
        return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, f"{about} is denied by no rule")
    return _refusal(Reason.REQUEST_DENIED, f"{about} is allowed by no rule for this host")


def _refusal(reason: Reason, text: str, rule: RequestRule | None = None) -> Decision:
    why = "" if rule is None else rule.reason
    return Decision(
        Behavior.DENY,
        reason,
        f"{text}: {why}" if why else text,
        None if rule is None else rule.text,
        None if rule is None else rule.origin,
        hint=why or _HINTS[reason],
    )


_HINTS: Final = {
    Reason.REQUEST_DENIED: "see the rules for requests: sandboxd settings show sandbox.network.requests",
    Reason.REQUEST_UNSEEN: "use HTTP/1.1 without an upgrade, or WebSocket",
    Reason.REQUEST_UNCLEAR: "send a plain path, without dot segments, double encoding and overriding headers",
}


def why_unclear(path: str) -> str:
    """Return why a path has no single reading; empty if it has one, or readings that can be compared."""
    if not path.startswith("/"):
        return "" if path == "*" else "has no path"
    if len(path) > MAX_PATH:
        return f"has a path of more than {MAX_PATH} bytes"
    if _ESCAPE.search(path):
        return "has a path with a broken escape"
    if _UNCLEAR.search(unquote_to_bytes(path)):
        return "has a path with control characters, backslashes or two layers of encoding"
    if any(_DOTS.search(reading) for reading in readings_of(path)):
        return "has a path with dot segments"
    return ""


def readings_of(path: str) -> tuple[str, ...]:
    """Return the paths that servers may understand: with `%2f` kept, and decoded, and with slashes merged."""
    decoded = unquote_to_bytes(path).decode("utf-8", "replace")
    kept = unquote_to_bytes(re.sub("%2[fF]", "%252f", path)).decode("utf-8", "replace")
    merged = (re.sub("/{2,}", "/", one) for one in (decoded, kept))
    return tuple(dict.fromkeys((decoded, kept, *merged)))


def credentials_for(network: NetworkPolicy, host: Host, port: int, request: HttpRequest) -> tuple[CredentialRule, ...]:
    """Return the credentials that a request to a host may get: only where every reading of its path is listed."""
    if not network.credentials or request.hides or request.method.upper() in ECHOED:
        return ()
    found = []
    for rule in compile_rules(network.credentials).match_any_port(host):
        suits = rule.pattern.port in (None, port) and not (request.overridden and rule.operations)
        suits = suits and not (request.rerouted and rule.paths)
        if suits and (rule.paths or any(end for _, end in rule.operations)):
            readings = () if why_unclear(request.path) else readings_of(request.path)
            suits = bool(readings) and all(_matches(rule, request.method, path) for path in readings)
        elif suits:
            suits = _matches(rule, request.method, "/")
        if suits:
            found.append(rule)
    return tuple(found)


def _matches(rule: RequestRule | CredentialRule, method: str, path: str) -> bool:
    closes = isinstance(rule, RequestRule) and rule.behavior is not Behavior.ALLOW
    compared = method.upper() if closes else method
    suits = not rule.operations or any(compared in methods and path.endswith(end) for methods, end in rule.operations)
    return suits and (not rule.paths or any(_pattern(one, closes).matches(path) for one in rule.paths))


class _Pattern:
    """A pattern of a path as an automaton, whose states are the bits of a number.

    A regular expression would try each way to divide a path among the stars: with four of them minutes, for patterns
    that projects bring and paths that commands choose."""

    __slots__ = ("_any_case", "_end", "_letters", "_loops", "_within")

    def __init__(self, pattern: str, any_case: bool) -> None:
        self._any_case = any_case
        self._letters: dict[str, int] = {}
        self._loops = self._within = 0
        """States that any character keeps, and those that any but a slash does."""
        place = 0
        for part in re.findall(r"\*+|[^*]", pattern.casefold() if any_case else pattern):
            if part == "**":
                self._loops |= 1 << place
            elif part == "*":
                self._within |= 1 << place
            else:
                self._letters[part] = self._letters.get(part, 0) | 1 << place
                place += 1
        self._end = 1 << place

    def matches(self, path: str) -> bool:
        states = 1
        for letter in path.casefold() if self._any_case else path:
            kept = states & (self._loops if letter == "/" else self._loops | self._within)
            states = (states & self._letters.get(letter, 0)) << 1 | kept
            if not states:
                return False
        return bool(states & self._end)


@lru_cache(maxsize=4096)
def _pattern(pattern: str, any_case: bool) -> _Pattern:
    return _Pattern(pattern, any_case)


def _shown(path: str) -> str:
    return path if len(path) <= 120 else path[:120] + "..."
