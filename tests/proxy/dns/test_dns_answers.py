"""What a command is told about a name, by a real gate that no resolver stands behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.synthetic_addresses import NETWORK_V4, NETWORK_V6
from sandboxd.policy.model import HostRule, NetworkPolicy
from sandboxd.proxy.dns.dns_answers import REPORTED_AGAIN_AFTER_S, DnsAnswers
from sandboxd.proxy.dns.dns_message import Code, DnsAnswer, DnsQuestion, RecordType, parse_message, render_query
from sandboxd.proxy.dns.synthetic_names import NameTable
from sandboxd.proxy.gate import Gate
from support.proxies import Blocked, NoNames, rules


class Lab:
    """`policy` may be replaced. `people` says whether there is a subscriber."""

    def __init__(self, *allowed: str, denied: Sequence[str] = (), people: bool = False, **how: object) -> None:
        self.policy = NetworkPolicy(allowed=rules(*allowed), denied=rules(*denied))
        self.people = people
        self.names = NoNames()
        self.blocked = Blocked()
        self.granted: tuple[HostRule, ...] = ()
        self.now = 0.0
        gate = Gate(
            lambda: self.policy, self._ask, self.names, grants=lambda: self.granted, can_ask=lambda: self.people
        )
        self.table = NameTable(clock=lambda: self.now, first=256, last=258)
        self.answers = DnsAnswers(
            gate,
            self.table,
            self.blocked.add,
            machine_name=lambda: "Desk.corp.test",
            clock=lambda: self.now,
            **how,  # type: ignore[arg-type]
        )

    async def _ask(self, host: Host, port: int, decision: Decision) -> Decision:
        raise AssertionError("a look-up asks no question")

    def look_up(self, name: str, kind: int = RecordType.A, class_: int = 1) -> DnsAnswer:
        labels = tuple(label.encode() for label in name.split(".") if label)
        answer = self.answers.answer(DnsQuestion(labels, kind, class_))
        assert self.names.asked == [], "no look-up leaves this machine"
        return answer


V4, V6 = NETWORK_V4[256], NETWORK_V6[256]


@pytest.mark.parametrize("name", ["ok.test", "OK.tEst.", "ok.test."])
def test_an_allowed_name_has_its_own_addresses(name: str) -> None:
    lab = Lab("ok.test")
    assert lab.look_up(name).addresses == (V4,)
    assert lab.look_up(name, RecordType.AAAA).addresses == (V6,)
    assert lab.look_up(name, RecordType.ANY, 255).addresses == (V4, V6)
    assert lab.table.name_of(V4) == lab.table.name_of(V6) == "ok.test"
    assert lab.blocked == []


@pytest.mark.parametrize(
    "kind",
    [
        RecordType.TXT,
        RecordType.SRV,
        RecordType.HTTPS,
        RecordType.SVCB,
        RecordType.NS,
        RecordType.SOA,
        RecordType.CNAME,
        RecordType.PTR,
        15,
        999,
    ],
)
def test_other_types_say_nothing_and_nothing_leaves(kind: int) -> None:
    lab = Lab("ok.test")
    assert lab.look_up("ok.test", kind) == DnsAnswer()
    assert lab.look_up("_xmpp-client._tcp.ok.test", kind) == DnsAnswer()
    assert len(lab.table) == 0, "no address was needed"
    assert lab.look_up("no.test", kind).code is Code.NXDOMAIN
    assert lab.look_up("_acme-challenge.no.test", kind).code is Code.NXDOMAIN
    assert [blocked.host for blocked in lab.blocked] == ["no.test"]


@pytest.mark.parametrize(
    ("allowed", "denied", "name", "code"),
    [
        (["ok.test"], [], "a.ok.test", Code.NXDOMAIN),
        (["*.ok.test"], [], "a.b.ok.test", Code.NOERROR),
        (["*.ok.test"], [], "ok.test", Code.NXDOMAIN),
        (["*"], ["no.test"], "no.test", Code.NXDOMAIN),
        (["*"], ["*"], "ok.test", Code.NXDOMAIN),
        # rules with a port open the name, those that deny one port do not close it
        (["ok.test:443"], [], "ok.test", Code.NOERROR),
        (["ok.test"], ["ok.test:25"], "ok.test", Code.NOERROR),
        (["ok.test:25"], ["ok.test:25"], "ok.test", Code.NXDOMAIN),
        (["ok.test:25", "*.test:80"], ["ok.test:25"], "ok.test", Code.NOERROR),
        (["ok.test:443"], ["ok.test"], "ok.test", Code.NXDOMAIN),
        (["single"], [], "single", Code.NOERROR),
        ([], [], "single", Code.NXDOMAIN),
        (["_srv.ok.test"], [], "_srv.ok.test", Code.NOERROR),
        (["ok.test"], [], "_srv.ok.test", Code.NXDOMAIN),
    ],
)
def test_the_rules_decide(allowed: list[str], denied: list[str], name: str, code: Code) -> None:
    lab = Lab(*allowed, denied=denied)
    answer = lab.look_up(name)
    assert answer.code is code
    assert bool(answer.addresses) is (code is Code.NOERROR)
    assert len(lab.blocked) == (code is not Code.NOERROR)


def test_a_name_that_can_become_a_question_has_an_address() -> None:
    lab = Lab(denied=["no.test"], people=True)
    assert lab.look_up("ask.test").addresses == (V4,)
    assert lab.look_up("no.test").code is Code.NXDOMAIN, "never asked about"
    lab.policy = replace(lab.policy, strict_allowlist=True)
    assert lab.look_up("ask2.test").code is Code.NXDOMAIN
    lab.policy = replace(lab.policy, strict_allowlist=False)
    lab.people = False
    assert lab.look_up("ask3.test").code is Code.NXDOMAIN, "there is nobody to ask"
    lab.granted = rules("ask4.test:443")
    assert lab.look_up("ask4.test").addresses, "a person has allowed it"


def test_a_refusal_says_which_rule_and_is_one_violation() -> None:
    lab = Lab(denied=["*.no.test"])
    answers = [lab.look_up("a.no.test", kind) for kind in (RecordType.A, RecordType.AAAA, RecordType.HTTPS)]
    assert {answer.code for answer in answers} == {Code.NXDOMAIN}
    assert "a.no.test is denied by a rule" in answers[0].explanation and "settings.json" in answers[0].explanation
    (blocked,) = lab.blocked
    assert (blocked.operation, blocked.host, blocked.port) == ("DNS", "a.no.test", 0)
    assert (blocked.decision.rule, blocked.decision.reason) == ("*.no.test", Reason.HOST_DENIED)
    assert blocked.decision.behavior is Behavior.DENY
    lab.now += REPORTED_AGAIN_AFTER_S
    lab.look_up("a.no.test")
    assert len(lab.blocked) == 2, "a later attempt is another one"


@pytest.mark.parametrize(
    "labels",
    [
        (b"no.test\0", b"ok", b"test"),
        (b"ok.test",),
        (b"a b", b"ok", b"test"),
        (b"\xc3\xbc", b"ok", b"test"),
        (b"*", b"ok", b"test"),
        (b"a:b", b"ok", b"test"),
        (b"[", b"]"),
        (b"ok", b"08"),
        (b"-a", b"test"),
    ],
)
def test_what_can_be_read_in_two_ways_does_not_exist(labels: tuple[bytes, ...]) -> None:
    lab = Lab("*")
    assert lab.answers.answer(DnsQuestion(labels, RecordType.A)).code is Code.NXDOMAIN
    assert [blocked.decision.reason for blocked in lab.blocked] == [Reason.HOST_INVALID]
    assert lab.blocked[0].host.isprintable() and lab.blocked[0].host.isascii()
    assert len(lab.table) == 0


@pytest.mark.parametrize("name", ["127.0.0.1", "10.1", "0x7f.1"])
def test_an_address_is_no_name(name: str) -> None:
    lab = Lab("*")
    assert lab.look_up(name).code is Code.NXDOMAIN


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.", "a.b.localhost", "desk.corp.test", "Desk.Corp.Test"])
def test_this_machine_is_loopback_whatever_the_rules(name: str) -> None:
    lab = Lab(denied=["*"])
    assert lab.look_up(name).addresses == (ip_address("127.0.0.1"),)
    assert lab.look_up(name, RecordType.AAAA).addresses == (ip_address("::1"),)
    assert lab.look_up(name, RecordType.TXT) == DnsAnswer(ttl=60)
    assert lab.blocked == []


def test_pointers_back_to_names() -> None:
    lab = Lab("ok.test")
    lab.look_up("ok.test")
    reverse_v6 = ".".join(reversed(V6.exploded.replace(":", ""))) + ".ip6.arpa"
    for name in (f"{V4.reverse_pointer}", reverse_v6, reverse_v6.upper()):
        assert lab.look_up(name, RecordType.PTR).pointer == (b"ok", b"test")
        assert lab.look_up(name, RecordType.A) == DnsAnswer()
    assert lab.look_up("1.0.0.127.in-addr.arpa", RecordType.PTR).pointer == (b"localhost",)
    for name in ("9.9.18.198.in-addr.arpa", "8.8.8.8.in-addr.arpa", "8.8.in-addr.arpa", "in-addr.arpa", "x.ip6.arpa",
                 "secret.8.8.8.8.in-addr.arpa", "1.2.3.ip6.arpa", "\xb2.0.0.127.in-addr.arpa"):  # fmt: skip
        assert lab.look_up(name, RecordType.PTR).code is Code.NXDOMAIN
    assert lab.blocked == [], "programs look everything up that connects to them"


def test_families_that_connections_cannot_have_are_not_promised() -> None:
    """Otherwise a program would try the address that cannot work first."""
    lab = Lab("ok.test", families=(4,))
    assert lab.look_up("ok.test", RecordType.AAAA) == DnsAnswer()
    assert lab.look_up("localhost", RecordType.AAAA) == DnsAnswer(ttl=60)
    assert lab.look_up("ok.test", RecordType.ANY).addresses == (V4,)


@pytest.mark.parametrize(
    ("kind", "class_"),
    [(RecordType.AXFR, 1), (RecordType.IXFR, 1), (RecordType.A, 3), (RecordType.TXT, 4), (RecordType.OPT, 1)],
)
def test_what_is_no_look_up_is_refused(kind: int, class_: int) -> None:
    assert Lab("*").look_up("ok.test", kind, class_) == DnsAnswer(Code.REFUSED)


def test_without_a_free_address_the_answer_is_an_error() -> None:
    lab = Lab("*")
    before = [lab.look_up(f"n{number}.test").addresses for number in range(3)]
    assert lab.look_up("n3.test").code is Code.SERVFAIL
    assert [lab.look_up(f"n{number}.test").addresses for number in range(3)] == before


LABELS = st.lists(
    st.binary(min_size=1, max_size=12)
    | st.sampled_from([b"ok", b"test", b"_tcp", b"in-addr", b"ip6", b"arpa", b"localhost"]),
    max_size=8,
).map(tuple)


@given(
    LABELS, st.sampled_from([*RecordType, 0, 15, 999]), st.sampled_from([1, 3, 255]), st.none() | st.integers(512, 4096)
)
def test_whatever_is_asked_there_is_an_answer(
    labels: tuple[bytes, ...], kind: int, class_: int, size: int | None
) -> None:
    lab = Lab("*.test", people=len(labels) % 2 == 0)
    data = lab.answers.respond(render_query(9, DnsQuestion(labels, kind, class_), udp_size=size))
    assert data is not None and len(data) <= (size or 512)
    reply = parse_message(data)
    assert reply.questions == (DnsQuestion(labels, kind, class_),)
    assert reply.code in (Code.NOERROR, Code.NXDOMAIN, Code.REFUSED)


def test_messages_in_and_out() -> None:
    lab = Lab("ok.test")
    data = lab.answers.respond(render_query(9, DnsQuestion((b"ok", b"test"), RecordType.A)))
    assert data is not None
    reply = parse_message(data)
    assert (reply.id, reply.code, reply.answers[0].data) == (9, Code.NOERROR, V4.packed)
    assert lab.answers.respond(b"") is None and lab.answers.respond(data) is None
    refused = lab.answers.respond(render_query(9, DnsQuestion((b"no", b"test"), RecordType.A), udp_size=1232))
    assert refused is not None and b"not on the list of allowed hosts" in refused
    broken = lab.answers.respond(render_query(9, DnsQuestion((b"ok", b"test"), RecordType.A)) + b"x")
    assert broken is not None and parse_message(broken).code == Code.FORMERR
