"""decide_host and decide_address: order, reasons and texts."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.build_network import local_ports
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_decisions import decide_address, decide_host, decide_name
from sandboxd.policy.hosts.host_patterns import Host, HostPattern, parse_host
from sandboxd.policy.hosts.host_rules import HostRuleSet, compile_rules
from sandboxd.policy.model import HostRule, NetworkPolicy, PortRange, RequestRule
from sandboxd.settings.origins import Origin, Source

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY
FILE = Origin(Source.USER, "sandbox.network.allowedDomains", "/etc/settings.json", 3, 7)


def rules(*texts: str) -> tuple[HostRule, ...]:
    return tuple(HostRule(HostPattern.parse(text, public_suffix=True), FILE) for text in texts)


def policy(*allowed: str, denied: tuple[str, ...] = (), strict: bool = False) -> NetworkPolicy:
    return NetworkPolicy(allowed=rules(*allowed), denied=rules(*denied), strict_allowlist=strict)


def decide(network: NetworkPolicy, host: str, port: int | None = 443) -> Decision:
    return decide_host(network, parse_host(host), port)


def test_an_empty_or_absent_list_allows_nothing() -> None:
    for network in (NetworkPolicy(), policy()):
        assert decide(network, "ok.test").behavior is ASK
        assert decide(replace(network, strict_allowlist=True), "ok.test").behavior is DENY
        assert decide(network, "127.0.0.1").behavior is DENY


@pytest.mark.parametrize(
    ("allowed", "denied", "host", "behavior", "reason"),
    [
        (["ok.test"], [], "ok.test", ALLOW, Reason.HOST_ALLOWED),
        (["ok.test"], [], "no.test", ASK, Reason.HOST_NOT_LISTED),
        (["docs.ok.test"], [], "ok.test", ASK, Reason.HOST_NOT_LISTED),
        (["ok.test"], ["ok.test"], "ok.test", DENY, Reason.HOST_DENIED),
        (["ok.test"], ["*"], "ok.test", DENY, Reason.HOST_DENIED),
        (["*"], ["*.no.test"], "a.no.test", DENY, Reason.HOST_DENIED),
        (["*"], ["*.no.test"], "no.test", ALLOW, Reason.HOST_ALLOWED),
        (["*"], [], "8.8.8.8", ALLOW, Reason.HOST_ALLOWED),
        ([], ["no.test"], "no.test", DENY, Reason.HOST_DENIED),
        # overlapping rules are no fault
        (["api.ok.test", ".ok.test", "*.ok.test", "ok.test"], [], "api.ok.test", ALLOW, Reason.HOST_ALLOWED),
        # addresses of this machine: only by their own rule, never a question
        (["*"], [], "127.0.0.1", DENY, Reason.LOCAL_ADDRESS),
        (["*"], [], "169.254.169.254", DENY, Reason.LOCAL_ADDRESS),
        (["*"], [], "[::1]", DENY, Reason.LOCAL_ADDRESS),
        ([], [], "127.0.0.1", DENY, Reason.LOCAL_ADDRESS),
        ([], [], "2130706433", DENY, Reason.LOCAL_ADDRESS),
        ([], [], "[::ffff:127.0.0.1]", DENY, Reason.LOCAL_ADDRESS),
        ([], [], "[64:ff9b::127.0.0.1]", DENY, Reason.LOCAL_ADDRESS),
        ([], [], "localhost", DENY, Reason.LOCAL_ADDRESS),
        ([], [], "a.localhost.", DENY, Reason.LOCAL_ADDRESS),
        (["127.0.0.1"], [], "127.0.0.1", ALLOW, Reason.HOST_ALLOWED),
        (["127.0.0.1"], [], "2130706433", ALLOW, Reason.HOST_ALLOWED),
        (["127.0.0.1"], [], "127.0.0.2", DENY, Reason.LOCAL_ADDRESS),
        (["127.0.0.1:443"], [], "127.0.0.1", ALLOW, Reason.HOST_ALLOWED),
        (["127.0.0.1:80"], [], "127.0.0.1", DENY, Reason.LOCAL_ADDRESS),
        (["127.0.0.1"], ["127.0.0.1"], "127.0.0.1", DENY, Reason.HOST_DENIED),
        # a denied address is denied in every form
        (["*"], ["8.8.8.8"], "[64:ff9b::8.8.8.8]", DENY, Reason.HOST_DENIED),
        # public and private addresses that are on no list are open questions like names
        ([], [], "8.8.8.8", ASK, Reason.HOST_NOT_LISTED),
        ([], [], "10.0.0.5", ASK, Reason.HOST_NOT_LISTED),
    ],
)
def test_decisions(allowed: list[str], denied: list[str], host: str, behavior: Behavior, reason: Reason) -> None:
    decision = decide(policy(*allowed, denied=tuple(denied)), host)
    assert (decision.behavior, decision.reason) == (behavior, reason)


PRIVATE = ("10.0.0.5", "172.16.0.1", "172.31.255.255", "192.168.1.1", "[fd12::1]", "[fc00::1]", "[::ffff:10.0.0.5]")


@pytest.mark.parametrize("host", PRIVATE)
def test_a_rule_for_every_host_means_the_internet(host: str) -> None:
    """A rule or grant that names the address, or the preset, is the way to a private network."""
    everything = policy("*")
    unlisted = decide(everything, host)
    assert (unlisted.behavior, unlisted.reason) == (ASK, Reason.HOST_NOT_LISTED) and "private network" in unlisted.text
    assert decide(replace(everything, strict_allowlist=True), host).behavior is DENY
    assert decide(policy("*", host), host).allowed
    assert decide_host(everything, parse_host(host), 443, rules(host)).allowed
    assert decide_host(everything, parse_host(host), 443, rules("*")).behavior is ASK
    assert decide(replace(everything, private_networks=True), host).allowed
    requests = (RequestRule(HostPattern.parse("*"), Behavior.ALLOW, FILE),)
    assert decide(NetworkPolicy(requests=requests), host).behavior is ASK
    assert decide(NetworkPolicy(requests=requests), "8.8.8.8").allowed


@pytest.mark.parametrize("rule", ["*", "*:443", "*.github.io", ".github.io"])
@pytest.mark.parametrize("address", [one.strip("[]") for one in PRIVATE])
def test_a_name_of_a_stranger_leads_to_no_private_network(rule: str, address: str) -> None:
    def leads(network: NetworkPolicy, grants: tuple[HostRule, ...] = ()) -> Decision:
        return decide_address(network, name, 443, ip_address(address), grants=grants)

    name, named = parse_host("a.github.io"), policy(rule, "a.github.io:443")
    refused = leads(policy(rule))
    assert (refused.behavior, refused.reason) == (DENY, Reason.ADDRESS_DENIED)
    assert refused.hint.endswith("sandboxd allow domain a.github.io:443")
    assert leads(named).allowed and leads(policy("*.a.github.io", ".a.github.io")).allowed
    assert leads(policy(rule), rules("a.github.io")).allowed
    assert not leads(policy(rule), rules("b.github.io")).allowed
    assert leads(replace(policy(rule), private_networks=True)).allowed
    assert leads(policy(rule, Host.of_address(ip_address(address)).uri)).allowed
    assert decide_address(policy(rule), name, 443, ip_address(address), pinned=True).allowed
    assert decide_address(policy(rule), name, 443, ip_address("8.8.8.8")).allowed


def test_names_of_a_company_lead_to_its_network() -> None:
    for rule in ("*.corp.test", "*.corp", "nas.corp"):
        assert decide_address(policy(rule, "*"), parse_host("nas.corp"), 80, ip_address("10.0.0.5")).allowed is (
            rule != "*.corp.test"
        )


def test_strict_lists_turn_questions_into_denials() -> None:
    assert decide(policy("ok.test", strict=True), "no.test").behavior is DENY
    assert decide(policy("ok.test", strict=True), "ok.test").behavior is ALLOW


def test_a_host_that_is_allowed_may_be_asked_about_first() -> None:
    network = replace(policy("*.ok.test", denied=("no.ok.test",)), asked=rules("*.ok.test:443", "x.test"))
    for host, port, behavior in (
        ("a.ok.test", 443, ASK), ("a.ok.test", 80, ALLOW), ("no.ok.test", 443, DENY), ("x.test", 443, ASK)
    ):  # fmt: skip
        assert decide(network, host, port).behavior is behavior, host
    assert decide(network, "a.ok.test").rule == "*.ok.test:443"
    granted = decide_host(network, parse_host("a.ok.test"), 443, rules("a.ok.test"))
    assert granted.behavior is ALLOW
    strict = replace(network, strict_allowlist=True)
    assert decide(strict, "a.ok.test").behavior is ASK and decide(strict, "x.test").behavior is DENY


def test_a_local_port_may_be_asked_about_first() -> None:
    network = replace(policy(), allow_local_ports=(PortRange(3000, 3000, FILE),), asked=rules("localhost:3000"))
    assert decide(network, "localhost", 3000).behavior is ASK
    assert decide(replace(network, asked=()), "localhost", 3000).behavior is ALLOW


def test_a_name_that_a_rule_denies_is_not_looked_up() -> None:
    """On every port that opens it; another open port is enough for an answer."""
    some = RequestRule(HostPattern.parse("ok.test:443"), ALLOW, FILE)
    for network in (policy("ok.test:443"), NetworkPolicy(requests=(some,))):
        assert decide_name(network, parse_host("ok.test")).behavior is ALLOW
        denied = replace(network, denied=rules("ok.test:443"))
        assert decide_name(denied, parse_host("ok.test")).behavior is not ALLOW
        assert decide_name(replace(denied, allowed=rules("ok.test:80")), parse_host("ok.test")).behavior is ALLOW


def test_ports() -> None:
    network = policy("ok.test:8443", denied=("*.no.test:25",))
    assert decide(network, "ok.test", 8443).behavior is ALLOW
    assert decide(network, "ok.test", 22).behavior is ASK
    assert decide(network, "ok.test", None).behavior is ASK
    assert decide(network, "a.no.test", 25).behavior is DENY
    assert decide(network, "a.no.test", 443).behavior is ASK


def test_a_decision_says_which_rule_and_where_it_stands() -> None:
    allowed = decide(policy("*.ok.test"), "a.ok.test")
    assert (allowed.rule, allowed.origin) == ("*.ok.test", FILE)
    denied = decide(policy(denied=("no.test",)), "no.test")
    assert (denied.rule, denied.origin) == ("no.test", FILE)
    open_question = decide(policy(), "no.test", 443)
    assert open_question.hint == "add it with: sandboxd allow domain no.test"
    assert "no.test:443" in open_question.text


def test_the_reason_of_a_denial_is_told() -> None:
    network = replace(
        policy("*", denied=("*.no.test", "no.test")),
        denied_reasons=((HostPattern.parse("*.no.test"), "leaks data, ask IT"),),
    )
    told = decide(network, "a.no.test")
    assert told.text.endswith("leaks data, ask IT") and told.hint == "leaks data, ask IT"
    assert "leaks" not in decide(network, "no.test").text
    network = replace(network, denied=rules("10.0.0.1"), denied_reasons=((HostPattern.parse("10.0.0.1"), "the vault"),))
    leads = decide_address(network, parse_host("ok.test"), 443, ip_address("10.0.0.1"))
    assert leads.text.endswith("which a rule denies: the vault") and leads.hint == "the vault"


def test_grants_come_after_denials() -> None:
    host = parse_host("ask.test")
    granted = decide_host(policy(), host, 443, rules("ask.test"))
    assert (granted.behavior, granted.reason, granted.rule) == (ALLOW, Reason.GRANTED, "ask.test")
    assert decide_host(policy(denied=("ask.test",)), host, 443, rules("ask.test")).behavior is DENY


def test_networks_listed_as_denied() -> None:
    network = replace(policy("*"), denied_addresses=("10.0.0.0/8",))
    assert decide(network, "10.0.0.5").reason is Reason.ADDRESS_DENIED
    assert decide(replace(network, allowed=rules("10.0.0.5")), "10.0.0.5").behavior is ALLOW


def test_an_address_of_this_machine_is_local() -> None:
    own = {ip_address("192.0.2.7")}
    assert decide_host(policy("*"), parse_host("192.0.2.7"), 80, (), own).reason is Reason.LOCAL_ADDRESS
    assert decide_host(policy("192.0.2.7"), parse_host("192.0.2.7"), 80, (), own).behavior is ALLOW


HERE = {ip_address("192.0.2.7")}
CLOSED = Reason.PORT_CLOSED


@pytest.mark.parametrize(
    ("host", "closed"),
    [
        *((name, True) for name in ("localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::")),
        *((name, True) for name in ("::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "192.0.2.7", "::ffff:192.0.2.7")),
        *((name, False) for name in ("ok.test", "10.0.0.5", "192.0.2.8")),
    ],
)
def test_no_rule_opens_a_closed_port_of_this_machine(host: str, closed: bool) -> None:
    text = f"[{host}]" if ":" in host else host
    network = replace(policy("*", text), allow_local_ports=(PortRange(1, 65535),))
    there = parse_host(text)
    for port, refused in ((8443, closed), (8444, False)):
        decision = decide_host(network, there, port, network.allowed, HERE, {8443})
        assert (decision.reason is CLOSED) is refused and decision.allowed is not (refused or host == "a.localhost")


@pytest.mark.parametrize("pinned", [False, True])
def test_no_name_leads_to_a_closed_port_of_this_machine(pinned: bool) -> None:
    network, name = policy("ok.test", "127.0.0.1", "192.0.2.7"), parse_host("ok.test")
    for text, port, refused in (("127.0.0.1", 8443, True), ("192.0.2.7", 8443, True), ("127.0.0.1", 80, False)):
        address = ip_address(text)
        decision = decide_address(network, name, port, address, host_addresses=HERE, closed_ports={8443}, pinned=pinned)
        assert (decision.reason is CLOSED) is refused and decision.allowed is not refused


# where a name leads


@pytest.mark.parametrize(
    ("allowed", "denied", "address", "reason"),
    [
        (["ok.test"], [], "8.8.8.8", None),
        (["ok.test"], [], "10.0.0.5", None),
        (["ok.test"], [], "127.0.0.1", Reason.LOCAL_ADDRESS),
        (["ok.test"], [], "::ffff:127.0.0.1", Reason.LOCAL_ADDRESS),
        (["ok.test"], [], "169.254.169.254", Reason.LOCAL_ADDRESS),
        (["ok.test"], [], "172.16.0.1", Reason.ADDRESS_DENIED),
        (["ok.test"], [], "192.0.2.7", Reason.LOCAL_ADDRESS),
        (["ok.test", "127.0.0.1"], [], "127.0.0.1", None),
        (["ok.test", "127.0.0.1:443"], [], "127.0.0.1", None),
        (["ok.test", "127.0.0.1:80"], [], "127.0.0.1", Reason.LOCAL_ADDRESS),
        (["ok.test", "172.16.0.1"], [], "172.16.0.1", None),
        (["*"], [], "127.0.0.1", Reason.LOCAL_ADDRESS),
        (["ok.test"], ["8.8.8.8"], "8.8.8.8", Reason.HOST_DENIED),
        (["ok.test"], ["8.8.8.8"], "::ffff:8.8.8.8", Reason.HOST_DENIED),
        (["ok.test"], ["8.8.8.8"], "64:ff9b::8.8.8.8", Reason.HOST_DENIED),
    ],
)
def test_where_a_name_leads(allowed: list[str], denied: list[str], address: str, reason: Reason | None) -> None:
    network = replace(policy(*allowed, denied=tuple(denied)), denied_addresses=("172.16.0.0/12",))
    of_host = {ip_address("192.0.2.7")}
    decision = decide_address(network, parse_host("ok.test"), 443, ip_address(address), host_addresses=of_host)
    assert (None if decision.allowed else decision.reason) == reason
    if reason is Reason.LOCAL_ADDRESS:
        assert "sandboxd allow domain" in decision.hint and ":443" in decision.hint


def test_a_pinned_name_is_exempt_from_the_address_check() -> None:
    host, address = parse_host("ok.test"), ip_address("127.0.0.1")
    assert decide_address(policy("ok.test"), host, 80, address, pinned=True).allowed
    assert not decide_address(policy("ok.test"), host, 80, address).allowed


# many rules


def test_the_most_specific_rule_answers() -> None:
    index = HostRuleSet(rules("*", "*.test", "*.ok.test", "*.ok.test:443", "a.ok.test", "a.ok.test:443"))

    def found(host: str, port: int | None) -> str:
        rule = index.match(parse_host(host), port)
        assert rule is not None
        return rule.pattern.text

    assert found("a.ok.test", 443) == "a.ok.test:443"
    assert found("a.ok.test", 80) == "a.ok.test"
    assert found("b.ok.test", 443) == "*.ok.test:443"
    assert found("b.ok.test", 80) == "*.ok.test"
    assert found("ok.test", 80) == "*.test"
    assert found("test", 80) == "*"


def test_a_list_is_compiled_once_and_never_confused_with_another() -> None:
    first, second = rules("a.test"), rules("b.test")
    assert compile_rules(first) is compile_rules(first)
    assert compile_rules(second) is not compile_rules(first)
    for number in range(3000):
        assert compile_rules(rules(f"{number}.test")).match(parse_host(f"{number}.test"), 1) is not None


_LABEL = st.sampled_from(["a", "b", "ok", "no", "test"])
_NAME = st.lists(_LABEL, min_size=1, max_size=4).map(".".join)
_RULE = st.builds(
    lambda front, name, port: front + name + port, st.sampled_from(["", "*.", "."]), _NAME, st.sampled_from(["", ":80"])
) | st.sampled_from(["*", "*:80", "127.0.0.1", "[::1]:80"])
_HOST = _NAME | st.sampled_from(["127.0.0.1", "8.8.8.8", "[::1]"])


@given(st.lists(_RULE, max_size=8), _HOST, st.sampled_from([80, 443, None]))
def test_the_index_agrees_with_trying_every_rule(texts: list[str], host_text: str, port: int | None) -> None:
    listed, host = rules(*texts), parse_host(host_text)
    found = HostRuleSet(listed).match(host, port)
    matching = [rule for rule in listed if rule.pattern.matches(host, port)]
    assert (found is not None) == bool(matching)
    assert found is None or found in matching


@pytest.mark.parametrize(
    ("host", "port", "behavior"),
    [
        ("localhost", 5432, ALLOW),
        ("127.0.0.1", 5432, ALLOW),
        ("[::1]", 8005, ALLOW),
        ("127.0.0.2", 5432, DENY),
        ("a.localhost", 5432, DENY),
        ("localhost", 5433, DENY),
        ("localhost", None, DENY),
        ("ok.test", 5432, ASK),
    ],
)
def test_local_ports_open_the_loopback_of_this_machine_only(host: str, port: int | None, behavior: Behavior) -> None:
    network = NetworkPolicy(allow_local_ports=(PortRange(5432, 5432), PortRange(8000, 8010)))
    decision = decide(network, host, port)
    assert decision.behavior is behavior
    assert (decision.rule in ("5432", "8000-8010")) is (behavior is ALLOW)
    denied = replace(network, denied=rules("localhost", "127.0.0.1", "[::1]"))
    assert not decide(denied, host, port).allowed or host == "ok.test"


def test_where_a_name_leads_to_on_a_local_port() -> None:
    network = NetworkPolicy(allow_local_ports=(PortRange(5432, 5432),))
    localhost = parse_host("localhost")
    assert decide_address(network, localhost, 5432, ip_address("127.0.0.1")).allowed
    assert not decide_address(network, localhost, 5433, ip_address("127.0.0.1")).allowed
    assert not decide_address(network, localhost, 5432, ip_address("127.0.0.2")).allowed


HINTED = re.compile(r"sandboxd allow domain (\S+)$")


def followed(network: NetworkPolicy, hint: str) -> NetworkPolicy:
    found = HINTED.search(hint)
    assert found is not None, hint
    added = rules(*shlex.split(found[1]))
    ports = tuple(filter(None, map(local_ports, added)))
    return replace(network, allowed=(*network.allowed, *added), allow_local_ports=ports)


@pytest.mark.parametrize(
    "host", ["no.test", "localhost", "127.0.0.1", "[::1]", "a.localhost", "169.254.169.254", "10.0.0.9", "[fe80::1]"]
)
def test_the_hint_of_a_host_opens_it(host: str) -> None:
    """And of an address that is refused nothing but its port, also where a listed name leads there."""
    network = policy("ok.test")
    refused = decide(network, host, 3000)
    opened = followed(network, refused.hint)
    again = "localhost" if "call it localhost" in refused.hint else host
    assert decide(opened, again, 3000).allowed, refused.hint
    assert refused.reason is Reason.HOST_NOT_LISTED or not decide(opened, again, 3001).allowed, refused.hint
    address = parse_host(host).address
    leads = None if address is None else decide_address(network, parse_host("ok.test"), 3000, address)
    if address is not None and leads is not None and not leads.allowed:
        opened = followed(network, leads.hint)
        assert decide_address(opened, parse_host("ok.test"), 3000, address).allowed, leads.hint
        assert not decide_address(opened, parse_host("ok.test"), 3001, address).allowed, leads.hint
