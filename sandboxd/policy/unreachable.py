"""Allow rules without effect, because a deny rule covers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.model import HostRule
from sandboxd.settings.problems import Problem, warning


def unreachable_rules(allowed: Sequence[HostRule], denied: Sequence[HostRule]) -> list[Problem]:
    """Return a warning for each allow rule that one deny rule covers."""
    # The widest first: one `*` covers every rule.
    stars = sorted(
        (rule for rule in denied if rule.pattern.host is None), key=lambda rule: rule.pattern.port is not None
    )
    by_name: dict[str, list[HostRule]] = {}
    for rule in denied:
        if rule.pattern.host is not None:
            by_name.setdefault(rule.pattern.host.name, []).append(rule)
    problems = []
    for rule in allowed:
        candidates = chain(stars, _candidates(rule.pattern, by_name))
        cover = next((deny for deny in candidates if covers(deny.pattern, rule.pattern)), None)
        if cover is not None:
            problems.append(
                warning(
                    "host_rule_unreachable",
                    f"{rule.pattern.text!r} is allowed and can never be reached: {cover.pattern.text!r} denies it "
                    f"({cover.origin}), and a deny wins",
                    rule.origin,
                    hint="to allow the listed hosts only, remove the deny and set sandbox.network.strictAllowlist",
                )
            )
    return problems


def covers(deny: HostPattern, allow: HostPattern) -> bool:
    """Return whether `deny` matches everything that `allow` matches."""
    if deny.port is not None and deny.port != allow.port:
        return False
    if deny.host is None:
        return True
    if allow.host is None:
        return False
    same = deny.host.name == allow.host.name
    above = deny.below and allow.host.address is None and allow.host.name.endswith("." + deny.host.name)
    if allow.below:
        return above or (same and deny.below and (deny.apex or not allow.apex))
    return above or (same and deny.apex)


def _candidates(pattern: HostPattern, by_name: dict[str, list[HostRule]]) -> Iterator[HostRule]:
    """Yield the rules about the same name, or about one above it."""
    name = pattern.host.name if pattern.host is not None else ""
    while name:
        yield from by_name.get(name, ())
        name = name.partition(".")[2]
