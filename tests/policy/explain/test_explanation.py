"""Explanations agree with enforcement, and have a hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.decision import Behavior, Reason
from sandboxd.policy.explain.explanation import explain_command, explain_host
from sandboxd.policy.hosts.host_decisions import decide_host
from sandboxd.policy.hosts.host_patterns import HostPattern, parse_host
from sandboxd.policy.model import CommandPolicy, CommandRule, HostRule, NetworkPolicy, Policy
from sandboxd.settings.origins import Origin, Source

ORIGIN = Origin(Source.USER, "sandbox.network.allowedDomains", "/u.json", 4, 7)


def network(allowed: tuple[str, ...] = (), denied: tuple[str, ...] = (), strict: bool = False) -> Policy:
    def rules(texts: tuple[str, ...]) -> tuple[HostRule, ...]:
        return tuple(HostRule(HostPattern.parse(text), ORIGIN) for text in texts)

    return Policy(enabled=True, network=NetworkPolicy(rules(allowed), rules(denied), strict_allowlist=strict))


def test_a_host_that_is_not_listed_says_how_to_add_it() -> None:
    decision = explain_host(network(), "evil.test")
    assert decision.behavior is Behavior.ASK and decision.reason is Reason.HOST_NOT_LISTED
    assert "sandboxd allow domain evil.test" in decision.hint


def test_a_rule_is_named_with_its_place() -> None:
    decision = explain_host(network(("*.ok.test",)), "a.OK.test.:443")
    assert decision.allowed
    assert decision.rule == "*.ok.test"
    assert str(decision.origin) == "/u.json:4 (sandbox.network.allowedDomains)"


@pytest.mark.parametrize(
    "text", ["", "a b", "http://", "ftp://a.test/", "a.test:x", "a.test:0", "[::1", "user@a.test", "a..b", "a\0.test"]
)
def test_what_is_no_host_is_refused_as_a_connection_would_be(text: str) -> None:
    decision = explain_host(network(("*",)), text)
    assert decision.behavior is Behavior.DENY and decision.reason is Reason.HOST_INVALID
    assert decision.text


@pytest.mark.parametrize("text", ["::1", "[::1]", "[::1]:80", "127.0.0.1:80", "localhost"])
def test_local_addresses(text: str) -> None:
    assert explain_host(network(), text).reason is Reason.LOCAL_ADDRESS


_hosts = st.sampled_from(["ok.test", "a.ok.test", "no.test", "b.no.test", "10.0.0.1", "x.example"])
_patterns = st.sampled_from(["ok.test", "*.ok.test", "no.test:80", "*.no.test", "10.0.0.1", "*", ".example"])


@given(
    st.lists(_patterns, max_size=3),
    st.lists(_patterns, max_size=2),
    st.booleans(),
    _hosts,
    st.sampled_from([None, 80, 443]),
)
def test_explaining_a_host_is_asking_the_gate(
    allowed: list[str], denied: list[str], strict: bool, host: str, port: int | None
) -> None:
    policy = network(tuple(allowed), tuple(denied), strict)
    explained = explain_host(policy, host if port is None else f"{host}:{port}")
    assert explained == decide_host(policy.network, parse_host(host), port)


def test_a_command_with_the_sandbox_on() -> None:
    policy = Policy(enabled=True, commands=CommandPolicy(excluded=(CommandRule("docker:*", ORIGIN),)))
    for text in ("docker ps && curl x", "docker ps", "ls", ""):
        assert explain_command(policy, text) == decide_command(policy, text)
    answer = explain_command(policy, "docker ps && curl x")
    assert answer.sandboxed and "'curl x' is not an excluded command" in answer.decision.text


def test_explain_says_that_the_sandbox_is_off() -> None:
    where = Origin(Source.USER, "sandbox.enabled", "/u.json", 2, 3)
    excluded = CommandPolicy(excluded=(CommandRule("docker:*", ORIGIN),))
    policy = Policy(enabled=False, enabled_origin=where, commands=excluded)
    answer = explain_command(policy, "docker ps && curl x")
    assert answer.sandboxed and "'curl x' is not an excluded command" in answer.decision.text
    assert "callers that ask first run it outside" in answer.decision.text
    assert "/u.json:2" in answer.decision.text
    assert not explain_command(policy, "docker ps").sandboxed
    other = replace(policy, enabled=True, enabled_platforms=("macos",))
    assert "enabledPlatforms" in explain_command(other, "ls").decision.text
