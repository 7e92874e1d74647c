"""The gate: order of its steps, what is asked, what is resolved, and that changes in between count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostPattern, IPAddress, parse_host
from sandboxd.policy.hosts.parent_proxies import parse_parent
from sandboxd.policy.hosts.request_rules import HttpRequest
from sandboxd.policy.model import HostRule, NetworkPolicy, RequestRule
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.gate import Gate
from sandboxd.settings.origins import BUILT_IN

YES = Decision(Behavior.ALLOW, Reason.GRANTED, "a person said yes")
NO = Decision(Behavior.DENY, Reason.PROMPT_DENIED, "a person said no")
LOCAL = parse_host("127.0.0.1")
OK, ASKED, NO_TEST = parse_host("ok.test"), parse_host("ask.test"), parse_host("no.test")


def rules(*texts: str) -> tuple[HostRule, ...]:
    return tuple(HostRule(HostPattern.parse(text), BUILT_IN) for text in texts)


class Names:
    """A resolver that counts, and answers in turn when there are several answers for a name."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = {name.replace("_", "."): list(texts) for name, texts in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Sequence[IPAddress]:
        self.asked.append(host)
        found = self.answers.get(host)
        if found is None:
            raise DialError("dns_failed", f"{host} does not resolve")
        return [ip_address(text) for text in found]


class Person:
    def __init__(self, answer: Decision) -> None:
        self.answer = answer
        self.questions: list[tuple[str, int]] = []

    async def __call__(self, host: Host, port: int, decision: Decision) -> Decision:
        assert decision.behavior is Behavior.ASK
        self.questions.append((host.name, port))
        await asyncio.sleep(0)
        return self.answer


POLICY = NetworkPolicy(allowed=rules("ok.test", "127.0.0.1:80"), denied=rules("no.test"))


async def test_what_is_listed_is_never_asked_about() -> None:
    person, names = Person(YES), Names(ok_test=["8.8.8.8"])
    gate = Gate(lambda: POLICY, person, names)
    assert (await gate.admit(OK, 443)).addresses == (ip_address("8.8.8.8"),)
    for host in (NO_TEST, LOCAL, parse_host("localhost"), parse_host("169.254.169.254")):
        assert not (await gate.admit(host, 443)).decision.allowed
        assert not gate.may_ask(host, 443)
    assert person.questions == [] and names.asked == ["ok.test"]
    assert gate.may_ask(ASKED, 443)


@pytest.mark.parametrize(
    ("answer", "allowed", "reason"),
    [
        (YES, True, Reason.GRANTED),
        (NO, False, Reason.PROMPT_DENIED),
        (replace(NO, reason=Reason.PROMPT_UNANSWERED), False, Reason.PROMPT_UNANSWERED),
        (replace(YES, behavior=Behavior.ASK), False, Reason.PROMPT_UNANSWERED),
    ],
)
async def test_only_a_plain_yes_opens(answer: Decision, allowed: bool, reason: Reason) -> None:
    person, names = Person(answer), Names(ask_test=["8.8.8.8"])
    admission = await Gate(lambda: POLICY, person, names).admit(ASKED, 443)
    assert (admission.decision.allowed, admission.decision.reason) == (allowed, reason)
    assert person.questions == [("ask.test", 443)]
    assert names.asked == (["ask.test"] if allowed else []), "nothing is resolved before the answer"


async def test_nobody_to_ask_means_no() -> None:
    decision = await Gate(lambda: POLICY, None, Names()).decide(ASKED, 443)
    assert (decision.behavior, decision.reason) == (Behavior.DENY, Reason.HOST_NOT_LISTED)
    assert decision.hint == "add it with: sandboxd allow domain ask.test"


async def test_a_question_that_fails_is_no_yes() -> None:
    async def broken(host: Host, port: int, decision: Decision) -> Decision:
        raise RuntimeError("the prompt went away")

    with pytest.raises(RuntimeError):
        await Gate(lambda: POLICY, broken, Names(ask_test=["8.8.8.8"])).admit(ASKED, 443)


async def test_a_yes_does_not_outlive_a_new_denial() -> None:
    policy = POLICY

    async def slow_yes(host: Host, port: int, decision: Decision) -> Decision:
        nonlocal policy
        policy = replace(policy, denied=rules("ask.test"))
        return YES

    assert (await Gate(lambda: policy, slow_yes, Names()).decide(ASKED, 443)).reason is Reason.HOST_DENIED


async def test_strict_lists_ask_nobody() -> None:
    person = Person(YES)
    gate = Gate(lambda: replace(POLICY, strict_allowlist=True), person, Names())
    assert not (await gate.decide(ASKED, 443)).allowed and person.questions == []


@pytest.mark.parametrize(
    ("answers", "dialled", "reason"),
    [
        (["8.8.8.8", "2606:4700::1"], ["8.8.8.8", "2606:4700::1"], None),
        (["127.0.0.1"], [], Reason.LOCAL_ADDRESS),
        (["169.254.169.254"], [], Reason.LOCAL_ADDRESS),
        (["::ffff:127.0.0.1"], [], Reason.LOCAL_ADDRESS),
        (["10.0.0.5"], [], Reason.ADDRESS_DENIED),
        (["127.0.0.1", "8.8.8.8", "::1"], ["8.8.8.8"], None),
        (["192.0.2.7"], [], Reason.LOCAL_ADDRESS),
    ],
)
async def test_all_answers_are_checked(answers: list[str], dialled: list[str], reason: Reason | None) -> None:
    policy = replace(POLICY, denied_addresses=("10.0.0.0/8",))
    gate = Gate(
        lambda: policy, None, Names(ok_test=answers), host_addresses=lambda: frozenset([ip_address("192.0.2.7")])
    )
    admission = await gate.admit(OK, 443)
    assert [str(address) for address in admission.addresses] == dialled
    assert (None if admission.decision.allowed else admission.decision.reason) == reason


async def test_a_rule_for_every_host_reaches_no_private_network() -> None:
    everything = replace(POLICY, allowed=rules("*"))
    names = Names(ok_test=["10.0.0.5", "8.8.8.8"], ask_test=["192.168.1.1"])
    for policy, name, dialled in (
        (everything, OK, ["8.8.8.8"]),
        (everything, ASKED, []),
        (replace(everything, allowed=rules("*", "ask.test")), ASKED, ["192.168.1.1"]),
        (replace(everything, private_networks=True), ASKED, ["192.168.1.1"]),
    ):
        gate = Gate(lambda policy=policy: policy, None, names)  # type: ignore[misc]
        admission = await gate.admit(name, 443)
        assert [str(address) for address in admission.addresses] == dialled
        assert admission.decision.allowed is bool(dialled)


async def test_a_listed_address_opens_the_name_on_that_port_only() -> None:
    gate = Gate(lambda: POLICY, None, Names(ok_test=["127.0.0.1"]))
    assert (await gate.admit(OK, 80)).decision.allowed
    assert (await gate.admit(OK, 81)).decision.reason is Reason.LOCAL_ADDRESS


@pytest.mark.parametrize(("port", "reason"), [(80, Reason.PORT_CLOSED), (443, None)])
async def test_a_closed_port_is_none_of_a_parent_proxy(port: int, reason: Reason | None) -> None:
    """Such a proxy may run on this machine, or lead back to it."""
    parent = parse_parent("http://10.0.0.9:3128", "test")
    gate = Gate(lambda: replace(POLICY, parent_proxy=parent), None, Names(), closed_ports=lambda: {80})
    admission = await gate.admit(OK, port)
    assert (None if admission.decision.allowed else admission.decision.reason) == reason


@pytest.mark.parametrize(("port", "allowed"), [(80, False), (81, True)])
async def test_no_name_or_address_leads_to_a_closed_port(port: int, allowed: bool) -> None:
    """An address of this machine is listed, and so are a name that leads there and one that is pinned."""
    network = replace(POLICY, allowed=rules("ok.test", "pinned.test", "192.0.2.7"))
    gate = Gate(
        lambda: network, None, Names(ok_test=["192.0.2.7"], pinned_test=["192.0.2.7"]), ["pinned.test"],
        host_addresses=lambda: frozenset([ip_address("192.0.2.7")]), closed_ports=lambda: {80},
    )  # fmt: skip
    for name in ("ok.test", "pinned.test", "192.0.2.7"):
        admission = await gate.admit(parse_host(name), port)
        assert admission.decision.allowed is allowed and bool(admission.addresses) is allowed, name
        assert allowed or admission.decision.reason is Reason.PORT_CLOSED


@pytest.mark.parametrize(("later", "allowed"), [(Behavior.ASK, True), (Behavior.DENY, False)])
async def test_a_yes_to_a_request_does_not_outlive_a_new_denial(later: Behavior, allowed: bool) -> None:
    asking = RequestRule(HostPattern.parse("ok.test"), Behavior.ASK, BUILT_IN)
    request, network = HttpRequest.of("GET", b"/"), replace(POLICY, requests=(asking,))

    async def answer(host: Host, port: int, request: HttpRequest, decision: Decision) -> Decision:
        nonlocal network
        network = replace(network, requests=(replace(asking, behavior=later),))
        return YES

    gate = Gate(lambda: network, None, Names(), ask_request=answer)
    decision = await gate.decide_request(OK, 443, request)
    assert decision is not None and decision.allowed is allowed


async def test_a_pinned_name_may_lead_anywhere() -> None:
    gate = Gate(lambda: POLICY, None, Names(ok_test=["127.0.0.1"]), ["ok.test"])
    assert (await gate.admit(OK, 443)).addresses == (ip_address("127.0.0.1"),)
    assert not (await gate.admit(NO_TEST, 443)).decision.allowed, "pinning allows nothing"


async def test_a_name_that_does_not_resolve_is_not_a_denial() -> None:
    with pytest.raises(DialError) as caught:
        await Gate(lambda: POLICY, None, Names()).admit(OK, 443)
    assert caught.value.slug == "dns_failed"
    with pytest.raises(DialError):
        await Gate(lambda: POLICY, None, Names(ok_test=[])).admit(OK, 443)


async def test_look_ups_at_once_are_bounded() -> None:
    running = highest = 0

    class Slow:
        async def resolve(self, host: str) -> Sequence[IPAddress]:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(0)
            running -= 1
            return [ip_address("8.8.8.8")]

    gate = Gate(lambda: POLICY, None, Slow())
    await asyncio.gather(*(gate.admit(OK, port) for port in range(1, 60)))
    assert highest == 8


# connections that are open


async def test_a_connection_stays_while_it_would_be_opened_again() -> None:
    policy, grants, address = POLICY, rules("ask.test"), ip_address("8.8.8.8")
    gate = Gate(lambda: policy, None, Names(), grants=lambda: grants)
    by_rule = await gate.decide(OK, 443)
    by_grant = await gate.decide(ASKED, 443)
    once = YES
    assert gate.still_allowed(OK, 443, by_rule, address).allowed
    assert gate.still_allowed(ASKED, 443, by_grant, address).allowed
    grants = ()
    assert not gate.still_allowed(ASKED, 443, by_grant, address).allowed, "a revoked grant ends it"
    assert gate.still_allowed(ASKED, 443, once, address).allowed, "asked for this connection: it stays"
    policy = replace(POLICY, denied=rules("ask.test"))
    assert not gate.still_allowed(ASKED, 443, once, address).allowed
    policy = replace(POLICY, allowed=())
    gone = gate.still_allowed(OK, 443, by_rule, address)
    assert (gone.behavior, gone.reason) == (Behavior.DENY, Reason.HOST_NOT_LISTED)
    policy = replace(POLICY, denied=rules("8.8.8.8"))
    assert gate.still_allowed(OK, 443, by_rule, address).reason is Reason.HOST_DENIED, "the address counts as well"
