"""Decides what a Seatbelt profile would do, without a Mac.

`compile_profile` reads and runs the text as `sandbox-exec` does; `Profile.decide` answers for one request. Which rule
wins is said by three descriptions of the system, and they differ:

- `LAST_MATCH`: the last rule in the text that matches, whatever its operation's name;
- `OPERATION_FIRST`: an operation has its own list of rules. The last match there wins; only when there is none the list
  of the containing operation is asked (`file-read-data`, then `file-read*`, then `file*`, then `default`). So a later
  `(deny file-read* …)` does nothing against an earlier `(allow file-read-data …)`. Measured by several people;
- `FILTERED_FIRST`: as that, and a rule without a filter is what an operation does when no rule with a filter matches,
  wherever it stands. So a later `(deny mach-lookup)` does nothing against an earlier `(allow mach-lookup (…))`.

A profile must mean the same under all. `decide` asks all and raises `Ambiguous` when they differ.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from support.sbpl_filters import Endpoint, Filter, Request
from support.sbpl_operations import OPERATIONS, containing
from support.sbpl_reader import SbplError
from support.sbpl_scheme import Interpreter, Modifier, Rule

__all__ = [
    "Ambiguous", "Endpoint", "Filter", "Modifier", "Profile", "Request", "Rule", "SbplError", "Semantics", "Verdict",
    "compile_profile", "connect", "file", "mach", "named",
]  # fmt: skip


class Semantics(enum.Enum):
    LAST_MATCH = "last match"
    OPERATION_FIRST = "operation first"
    FILTERED_FIRST = "filtered first"


class Ambiguous(AssertionError):
    """The descriptions of the system give different answers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rule` is None when no rule matched."""

    allowed: bool
    rule: Rule | None

    @property
    def message(self) -> str | None:
        return None if self.rule is None else self.rule.message


class Profile:
    def __init__(self, rules: list[Rule], used: set[str]) -> None:
        self.rules = tuple(rules)
        self.used_parameters = frozenset(used)
        self._about: dict[str, list[tuple[int, Rule]]] = {}
        for number, rule in enumerate(rules):
            for operation in rule.operations:
                self._about.setdefault(operation, []).append((number, rule))

    def decide(self, request: Request) -> Verdict:
        """Raises Ambiguous."""
        found = {semantics: self.decide_by(semantics, request) for semantics in Semantics}
        if len({verdict.allowed for verdict in found.values()}) > 1:
            raise Ambiguous(f"{request}:\n" + "\n".join(f"  {how.value}: {what}" for how, what in found.items()))
        return found[Semantics.LAST_MATCH]

    def decide_by(self, semantics: Semantics, request: Request) -> Verdict:
        if request.operation not in OPERATIONS or request.operation.endswith("*"):
            raise ValueError(f"not an operation that happens: {request.operation}")
        found: tuple[int, Rule] | None = None
        for operation in containing(request.operation):
            about = self._about.get(operation, [])
            if semantics is Semantics.FILTERED_FIRST:
                about = sorted(about, key=lambda one: one[1].filter is not None)
            for number, rule in reversed(about):
                if semantics is Semantics.LAST_MATCH and found is not None and number < found[0]:
                    break
                if rule.filter is None or rule.filter.matches(request):
                    found = (number, rule)
                    break
            if found is not None and semantics is not Semantics.LAST_MATCH:
                break
        if found is None:
            return Verdict(True, None)
        return Verdict(found[1].action == "allow", found[1])

    def allows(self, request: Request) -> bool:
        return self.decide(request).allowed


def compile_profile(
    text: str, parameters: Mapping[str, str] | None = None, imports: Mapping[str, str] | None = None
) -> Profile:
    """`imports` are texts by file name. Raises SbplError."""
    interpreter = Interpreter(dict(parameters or {}), dict(imports or {}))
    interpreter.run(text)
    if interpreter.version is None:
        raise SbplError("no version")
    return Profile(interpreter.rules, interpreter.used)


def file(operation: str, path: str, vnode: str = "REGULAR-FILE", **values: object) -> Request:
    return Request(operation, path=path, values={"vnode-type": vnode, **values})


def connect(host: str, port: int, protocol: str = "tcp") -> Request:
    """An outgoing connection of a socket that was not bound."""
    return Request("network-outbound", remote=Endpoint(host, port, protocol), local=Endpoint("0.0.0.0", 0, protocol))


def mach(name: str, operation: str = "mach-lookup") -> Request:
    return Request(operation, values={"global-name": name})


def named(operation: str, filter_name: str, value: object) -> Request:
    """A request with one attribute, by the name of the filter that looks at it."""
    return Request(operation, values={filter_name: value})
