"""Allow rules that a deny rule covers: checked against the matcher itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.hosts.host_patterns import HostPattern, parse_host
from sandboxd.policy.model import HostRule
from sandboxd.policy.unreachable import covers, unreachable_rules
from sandboxd.settings.origins import BUILT_IN

PATTERNS = [
    "*",
    "*:80",
    "ok.test",
    "ok.test:80",
    "*.ok.test",
    ".ok.test",
    "a.ok.test",
    "*.a.ok.test",
    ".a.ok.test:80",
    "10.0.0.1",
]
HOSTS = ["ok.test", "a.ok.test", "b.a.ok.test", "c.b.a.ok.test", "no.test", "10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize("deny", PATTERNS)
@pytest.mark.parametrize("allow", PATTERNS)
def test_covers_agrees_with_matches(deny: str, allow: str) -> None:
    one, two = HostPattern.parse(deny), HostPattern.parse(allow)
    matched = [(host, port) for host in HOSTS for port in (80, 443) if two.matches(parse_host(host), port)]
    assert covers(one, two) == all(one.matches(parse_host(host), port) for host, port in matched)


@given(st.lists(st.sampled_from(PATTERNS), max_size=4), st.lists(st.sampled_from(PATTERNS), max_size=4))
def test_each_covered_rule_is_reported_once(allowed: list[str], denied: list[str]) -> None:
    def rules(texts: list[str]) -> list[HostRule]:
        return [HostRule(HostPattern.parse(text), BUILT_IN) for text in texts]

    expected = sum(any(covers(HostPattern.parse(d), HostPattern.parse(a)) for d in denied) for a in allowed)
    assert len(unreachable_rules(rules(allowed), rules(denied))) == expected


def test_ten_thousand_rules_are_no_square() -> None:
    allowed = [HostRule(HostPattern.parse(f"h{n}.ok.test"), BUILT_IN) for n in range(10_000)]
    denied = [HostRule(HostPattern.parse(f"h{n}.no.test"), BUILT_IN) for n in range(10_000)]
    assert unreachable_rules(allowed, denied) == []
