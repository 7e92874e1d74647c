"""Answers to the name look-ups of a command.

No query leaves this machine. A name that may be connected to gets a synthetic address. The gate resolves the name when
a connection to it is allowed.

| asked for | answer |
| --- | --- |
| A, AAAA of a name that may be connected to, or may be prompted for | its synthetic address (`synthetic_names.py`) |
| other types of such a name (HTTPS, SVCB, SRV, TXT, MX, …) | no data |
| a name that is denied or ambiguous | NXDOMAIN, and a violation |
| `localhost`, names below it, this machine's own name | loopback |
| PTR of a synthetic address, of loopback | the name; `localhost` |
| everything else below `in-addr.arpa` and `ip6.arpa` | NXDOMAIN |
| zone transfers, other classes than IN | REFUSED |
| no free address | SERVFAIL |

A denied name gets NXDOMAIN and not REFUSED. Resolvers take REFUSED for a server fault: glibc reports a temporary
failure, and musl waits until its timeout. The reason is in an extended error (RFC 8914)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_decisions import is_local_name
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, IPAddress, parse_wire_host, quote
from sandboxd.proxy.dns.dns_message import (
    ANY_CLASS,
    IN,
    Code,
    DnsAnswer,
    DnsQuestion,
    DnsSyntaxError,
    Labels,
    RecordType,
    parse_query,
    render_answer,
)
from sandboxd.proxy.dns.synthetic_names import NameTable, NoFreeAddress
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.outbound import Report, blocked

TTL_S: Final = 60
LOOPBACK: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
REPORTED_AGAIN_AFTER_S: Final = 5.0
"""Look-ups of both families, and retries, are one violation."""
MOST_REMEMBERED: Final = 1024
LONGEST_EXPLANATION: Final = 300

_NO_DATA: Final = DnsAnswer()
_NO_NAME: Final = DnsAnswer(Code.NXDOMAIN)
_VERSIONS: Final[dict[int, frozenset[int]]] = {
    RecordType.A: frozenset({4}),
    RecordType.AAAA: frozenset({6}),
    RecordType.ANY: frozenset({4, 6}),
}
"""Record types that ask for addresses, with their IP versions."""

log = logging.getLogger(__name__)


class DnsAnswers:
    """The name service of one command.

    `machine_name` returns the machine's name inside. `families` are the IP versions of connections inside. `report`
    receives refusals."""

    def __init__(
        self,
        gate: Gate,
        names: NameTable,
        report: Report,
        *,
        machine_name: Callable[[], str] = str,
        families: Collection[int] = (4, 6),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gate = gate
        self._names = names
        self._report = report
        self._machine_name = machine_name
        self._families = frozenset(families)
        self._clock = clock
        self._reported: dict[str, float] = {}
        self._is_full = False

    def respond(self, data: bytes, *, stream: bool = False) -> bytes | None:
        """Return the answer to a raw message; None when none must be sent."""
        try:
            query = parse_query(data)
        except DnsSyntaxError:
            return None
        answer = _NO_DATA if query.fault or query.question is None else self.answer(query.question)
        return render_answer(query, answer, stream=stream)

    def answer(self, question: DnsQuestion) -> DnsAnswer:
        if question.class_ not in (IN, ANY_CLASS) or question.kind in (
            RecordType.AXFR,
            RecordType.IXFR,
            RecordType.OPT,
        ):
            return DnsAnswer(Code.REFUSED)
        if not question.labels:
            return _NO_DATA
        lower = tuple(label.lower() for label in question.labels)
        if lower[-2:] in ((b"in-addr", b"arpa"), (b"ip6", b"arpa")):
            return self._pointer(lower, question.kind)
        try:
            host = _host(lower)
        except HostSyntaxError as error:
            name = quote(b".".join(lower))[1:-1]
            return self._refuse(name, Decision(Behavior.DENY, Reason.HOST_INVALID, error.message, hint=error.hint))
        if host.address is not None:
            return _NO_NAME
        if is_local_name(host) or host.name == self._machine_name().lower().rstrip("."):
            return self._addresses(question.kind, LOOPBACK)
        return self._name(host, question.kind)

    def _name(self, host: Host, kind: int) -> DnsAnswer:
        if kind not in _VERSIONS:
            host = _owner(host)
        decision = self._gate.decide_name(host)
        if decision.behavior is Behavior.DENY:
            return self._refuse(host.name, decision)
        if not self._families & _VERSIONS.get(kind, frozenset()):
            return _NO_DATA
        try:
            return self._addresses(kind, self._names.addresses_of(host.name))
        except NoFreeAddress as error:
            if not self._is_full:
                self._is_full = True
                log.warning("%s", error.message)
            return DnsAnswer(Code.SERVFAIL, explanation=error.message)

    def _addresses(self, kind: int, addresses: tuple[IPAddress, ...]) -> DnsAnswer:
        wanted = self._families & _VERSIONS.get(kind, frozenset())
        found = tuple(address for address in addresses if address.version in wanted)
        return DnsAnswer(addresses=found, ttl=TTL_S)

    def _pointer(self, labels: Labels, kind: int) -> DnsAnswer:
        address = _address(labels)
        if address is None:
            return _NO_NAME
        name = "localhost" if address.is_loopback else self._names.name_of(address)
        if name is None:
            return _NO_NAME
        if kind not in (RecordType.PTR, RecordType.ANY):
            return _NO_DATA
        return DnsAnswer(pointer=tuple(name.encode("ascii").split(b".")), ttl=TTL_S)

    def _refuse(self, name: str, decision: Decision) -> DnsAnswer:
        now = self._clock()
        if now - self._reported.get(name, float("-inf")) >= REPORTED_AGAIN_AFTER_S:
            if len(self._reported) >= MOST_REMEMBERED:
                self._reported.clear()
            self._reported[name] = now
            self._report(blocked("DNS", name, 0, decision))
        why = decision.text if decision.origin is None else f"{decision.text} (in {decision.origin})"
        return DnsAnswer(Code.NXDOMAIN, explanation=quote(f"sandboxd: {why}", LONGEST_EXPLANATION)[1:-1])


def _host(labels: Labels) -> Host:
    """Return the host of a queried name. Raises HostSyntaxError."""
    text = b".".join(labels)
    if any(b"." in label for label in labels):
        raise HostSyntaxError("dot inside a label of a host name", text)
    if b":" in text or b"[" in text:
        raise HostSyntaxError("character that is not allowed in a host name", text)
    return parse_wire_host(text)


def _owner(host: Host) -> Host:
    """Return `ok.test` for `_xmpp-client._tcp.ok.test` (RFC 2782, RFC 8552)."""
    labels = host.name.split(".")
    while len(labels) > 1 and labels[0].startswith("_"):
        del labels[0]
    return Host(".".join(labels))


def _address(labels: Labels) -> IPAddress | None:
    """Return the address of a reverse name (RFC 1035, 3.5; RFC 3596, 2.5)."""
    parts = [label.decode("latin-1") for label in reversed(labels[:-2])]
    try:
        if labels[-2] == b"in-addr":
            return IPv4Address(".".join(parts))
        if len(parts) != 32 or any(len(part) != 1 for part in parts):
            return None
        text = "".join(parts)
        return IPv6Address(":".join(text[at : at + 4] for at in range(0, 32, 4)))
    except ValueError:
        return None
