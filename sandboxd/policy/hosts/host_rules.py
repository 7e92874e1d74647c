"""Index of host rules: the time of one look-up does not grow with the list.

10,000 rules are matched by as many dictionary look-ups as the host has labels. The most specific rule answers: the host
itself before a wildcard, a longer suffix before a shorter one, a rule with a port before one without, and among equals
the first in the list. Pure, apart from a cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.model import CredentialRule, HostRule, RequestRule, UploadRule

R = TypeVar("R", HostRule, RequestRule, CredentialRule, UploadRule)


class HostRuleSet(Generic[R]):
    """An immutable index of rules with host patterns."""

    __slots__ = ("_any", "_below", "_exact")

    def __init__(self, rules: Iterable[R]) -> None:
        self._exact: dict[str, list[R]] = {}
        self._below: dict[str, list[R]] = {}
        self._any: list[R] = []
        for rule in rules:
            pattern = rule.pattern
            if pattern.host is None:
                self._any.append(rule)
                continue
            if pattern.apex:
                self._exact.setdefault(pattern.host.name, []).append(rule)
            if pattern.below:
                self._below.setdefault(pattern.host.name, []).append(rule)
        for buckets in (self._exact, self._below, {"": self._any}):
            for bucket in buckets.values():
                bucket.sort(key=lambda rule: rule.pattern.port is None)

    def match(self, host: Host, port: int | None) -> R | None:
        """Return the rule for `host`; a port of None matches rules without a port."""
        for bucket in self._buckets(host):
            for rule in bucket:
                if rule.pattern.port is None or rule.pattern.port == port:
                    return rule
        return None

    def match_any_port(self, host: Host) -> Iterator[R]:
        """Yield every rule that covers `host` on some port, the most specific first."""
        for bucket in self._buckets(host):
            yield from bucket

    def match_literal(self, host: Host, port: int | None) -> R | None:
        """Return the rule that names this very address."""
        if host.address is None:
            return None
        for rule in self._exact.get(host.name, ()):
            if rule.pattern.port is None or rule.pattern.port == port:
                return rule
        return None

    def _buckets(self, host: Host) -> Iterator[Sequence[R]]:
        name = host.name
        if name in self._exact:
            yield self._exact[name]
        if host.address is None and self._below:
            dot = name.find(".")
            while dot >= 0:
                name = name[dot + 1 :]
                if name in self._below:
                    yield self._below[name]
                dot = name.find(".")
        if self._any:
            yield self._any


EMPTY: Final = HostRuleSet[HostRule](())

_MOST_LISTS: Final = 128
_MOST_RULES: Final = 200_000
_compiled: OrderedDict[int, tuple[Sequence[Any], HostRuleSet[Any]]] = OrderedDict()


def compile_rules(rules: tuple[R, ...]) -> HostRuleSet[R]:
    """Return the index of `rules`, cached by the identity of the tuple.

    Hashing 10,000 rules for each decision would cost more. Limits on lists and rules evict old policies."""
    found = _compiled.get(id(rules))
    if found is not None and found[0] is rules:
        _compiled.move_to_end(id(rules))
        return found[1]
    index = HostRuleSet(rules)
    _compiled[id(rules)] = (rules, index)
    _compiled.move_to_end(id(rules))
    _forget_oldest()
    return index


def _forget_oldest() -> None:
    total = sum(len(rules) for rules, _ in _compiled.values())
    while len(_compiled) > 1 and (len(_compiled) > _MOST_LISTS or total > _MOST_RULES):
        _, (rules, _) = _compiled.popitem(last=False)
        total -= len(rules)
