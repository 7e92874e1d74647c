"""Hosts, requests and command lines, as the tests of other sandboxes have them."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from peers.tables import differences
from sandboxd.policy.build import build_policy
from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.commands.shell_syntax import read_line
from sandboxd.policy.decision import Behavior, Decision
from sandboxd.policy.hosts.host_decisions import decide_address, decide_host
from sandboxd.policy.hosts.host_patterns import HostPattern, HostPatternError, HostSyntaxError, parse_host
from sandboxd.policy.hosts.parent_proxies import choose_parent, read_environment
from sandboxd.policy.hosts.request_rules import HttpRequest, decide_request
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.proxy.dns.dns_answers import DnsAnswers
from sandboxd.proxy.dns.dns_message import Code, DnsQuestion, RecordType
from sandboxd.proxy.dns.synthetic_names import NameTable
from sandboxd.proxy.gate import Gate
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from support.proxies import Blocked, NoNames

SCOPE = PathScope("/home/u", "/home/u/p", {})


def policy_of(**settings: Any) -> Policy:
    return build_policy(merge([layer_from_values(settings, Source.USER)]), SCOPE)


def network_of(allowed: list[str], denied: list[str]) -> Policy:
    return policy_of(sandbox={"network": {"allowedDomains": allowed, "deniedDomains": denied}})


def accepts(kind: str, rule: str) -> str:
    try:
        HostPattern.parse(rule, public_suffix=kind == "deny")
    except HostPatternError as error:
        assert error.hint or not rule.strip("[]*:."), rule
        return "refused"
    return "accepted"


def decide(allowed: list[str], denied: list[str], host: str, port: int) -> str:
    decision = decide_host(network_of(allowed, denied).network, parse_host(host), port)
    return "allow" if decision.allowed else "deny"


def administered(
    only: bool, allowed: list[str], denied: list[str], users: list[str], users_denied: list[str], host: str
) -> str:
    mine = {"allowedDomains": allowed, "deniedDomains": denied, "allowManagedDomainsOnly": only}
    theirs = {"allowedDomains": users, "deniedDomains": users_denied}
    layers = ((mine, Source.MANAGED), (theirs, Source.USER))
    merged = merge([layer_from_values({"sandbox": {"network": network}}, source) for network, source in layers])
    decision = decide_host(build_policy(merged, SCOPE).network, parse_host(host), 443)
    return "allow" if decision.allowed else "deny"


def leads(allowed: list[str], address: str) -> str:
    network, host = network_of(allowed, []).network, parse_host("h.example.com")
    assert decide_host(network, host, 443).allowed
    return "allow" if decide_address(network, host, 443, ip_address(address)).allowed else "deny"


def spelling(text: str) -> str:
    try:
        return parse_host(text).name
    except HostSyntaxError:
        return "refused"


def proxied(no_proxy: str, host: str) -> str:
    proxies = read_environment({"HTTPS_PROXY": "http://proxy.test:1", "NO_PROXY": no_proxy})
    chosen = choose_parent(None, proxies, parse_host(host), 443, plain=False, host_addresses=())
    return "around" if chosen is None else "through"


def request_rule(text: str, action: str) -> dict[str, Any]:
    method, _, target = text.partition(" ")
    host, _, path = target.partition("/")
    rule: dict[str, Any] = {"host": host, "action": action, "paths": [f"/{path}"]}
    return rule if method == "*" else {**rule, "methods": [method]}


def requested(allowed: list[str], denied: list[str], request: str) -> str:
    rules = [*(request_rule(one, "allow") for one in allowed), *(request_rule(one, "deny") for one in denied)]
    hosts = [] if allowed else ["*"]
    network = policy_of(sandbox={"network": {"requests": rules, "allowedDomains": hosts}}).network
    method, _, target = request.partition(" ")
    name, _, path = target.partition("/")
    host = parse_host(name)
    if not decide_host(network, host, 80).allowed:
        return "deny"
    decision = decide_request(network, host, 80, HttpRequest(method, f"/{path}"))
    return "allow" if decision is None or decision.allowed else "deny"


def denies(rules: list[str], command: str) -> str:
    policy = policy_of(permissions={"deny": [f"Bash({rule})" for rule in rules]}, sandbox={"enabled": True})
    return decide_command(policy, command).behavior.value


def allows(rules: list[str], command: str) -> str:
    permissions = {"allow": [f"Bash({rule})" for rule in rules]}
    policy = policy_of(permissions=permissions, sandbox={"enabled": True, "autoAllowBashIfSandboxed": False})
    answer = decide_command(policy, command)
    assert answer.sandboxed and answer.behavior is not Behavior.DENY
    return answer.behavior.value


def look_up(allowed: list[str], kind: str, name: str) -> str:
    network = network_of(allowed, []).network
    names = NoNames()

    async def ask(*_: object) -> Decision:
        raise AssertionError("a look-up asks no question")

    answers = DnsAnswers(
        Gate(lambda: network, ask, names, can_ask=lambda: False), NameTable(first=256, last=258), Blocked().add
    )
    answer = answers.answer(DnsQuestion(tuple(part.encode() for part in name.split(".")), RecordType[kind], 1))
    assert not names.asked
    if answer.addresses:
        return "answered"
    return "refused" if answer.code in (Code.REFUSED, Code.NXDOMAIN) else "empty"


def words_of(line: str) -> list[str]:
    read = read_line(line)
    assert read.unreadable is None
    return [" ".join(word.text for word in command.words) for command in read.commands]


KINDS: dict[str, tuple[Callable[..., Any], int]] = {
    "rules": (accepts, 2), "decisions": (decide, 4), "addresses": (leads, 2), "spellings": (spelling, 1),
    "no_proxy": (proxied, 2), "requests": (requested, 3), "denied": (denies, 2), "allowed": (allows, 2),
    "words": (words_of, 1), "looked_up": (look_up, 3), "managed": (administered, 6),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_table_says(kind: str) -> None:
    decide_one, inputs = KINDS[kind]
    wrong = differences(kind, inputs, decide_one)
    assert not wrong, "\n".join(wrong)
