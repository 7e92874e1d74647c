"""Limits of what the commands of one session carry out: bytes (`maxUpload`) and names looked up (`maxNewNames`).

Every byte to a server outside goes through a `Meter`, in tunnels before it leaves the pipe. So no more than the limit
is sent, whatever the protocol. A look-up carries a name out, so only names that were looked up before are free."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.host_rules import compile_rules
from sandboxd.policy.hosts.public_suffixes import registrable_domain
from sandboxd.policy.model import NetworkPolicy, UploadRule
from sandboxd.quantities import size_text
from sandboxd_client.records import dataclass

DOMAINS: Final = 8
"""Names of a whole session, as a multiple of those below one domain."""
UNLIMITED: Final = sys.maxsize
_SHOW: Final = "see the limit and its file: sandboxd settings show sandbox.network"


@dataclass(frozen=True, slots=True)
class BoundsRecord:
    """The counts of a session in the hand-over document; by pattern of a rule, and by registrable domain."""

    total: int = 0
    sent: tuple[tuple[str, int], ...] = ()
    granted: tuple[tuple[str, int], ...] = ()
    names: tuple[str, ...] = ()


class SessionBounds:
    """The counts of one session. A yes to a question about a limit adds the same amount again."""

    def __init__(self) -> None:
        self.total = 0
        """Bytes sent to servers outside."""
        self._sent: dict[str, int] = {}
        self._granted: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}

    @property
    def record(self) -> BoundsRecord:
        names = tuple(name for names in self._names.values() for name in names)
        return BoundsRecord(self.total, tuple(self._sent.items()), tuple(self._granted.items()), names)

    def resume(self, record: BoundsRecord) -> None:
        self.total, self._sent, self._granted = record.total, dict(record.sent), dict(record.granted)
        for name in record.names:
            self._names.setdefault(registrable_domain(name), set()).add(name)

    @property
    def names(self) -> int:
        """Return the number of names that were looked up."""
        return sum(map(len, self._names.values()))

    # bytes

    def left(self, rules: tuple[UploadRule, ...]) -> int:
        """Return the bytes that may be sent under these rules."""
        most = UNLIMITED
        for rule in rules:
            text = rule.pattern.text
            most = min(most, rule.most + self._granted.get(text, 0) - self._sent.get(text, 0))
        return most

    def count(self, rules: tuple[UploadRule, ...], size: int) -> None:
        """Count bytes that were sent."""
        self.total += size
        for rule in rules:
            self._sent[rule.pattern.text] = self._sent.get(rule.pattern.text, 0) + size

    def exhaust(self, rules: tuple[UploadRule, ...]) -> None:
        """Count the rest of the lowest limit as sent."""
        rule = min(rules, key=lambda one: self.left((one,)))
        self._sent[rule.pattern.text] = rule.most + self._granted.get(rule.pattern.text, 0)

    # names

    def count_name(self, network: NetworkPolicy, host: Host) -> None:
        """Count a name that is about to be looked up."""
        if network.max_new_names is not None and host.address is None:
            self._names.setdefault(registrable_domain(host.name), set()).add(host.name)

    def _lacks_names(self, network: NetworkPolicy, host: Host) -> str:
        """Return the domain, or `*`, of which a new name is one too many."""
        if network.max_new_names is None or host.address is not None:
            return ""
        domain = registrable_domain(host.name)
        known = self._names.get(domain, set())
        if host.name in known:
            return ""
        if len(known) >= network.max_new_names + self._granted.get(f"names {domain}", 0):
            return domain
        everything = network.max_new_names * DOMAINS + self._granted.get("names *", 0)
        return "*" if self.names >= everything else ""

    # decisions

    def limited(self, network: NetworkPolicy, host: Host, port: int, *, is_looked_up: bool) -> Decision | None:
        """Return the decision for an allowed host that a limit concerns: ASK, or DENY without questions."""
        behavior = Behavior.DENY if network.strict_allowlist else Behavior.ASK
        rules = upload_rules(network, host, port)
        if rules and self.left(rules) <= 0:
            return self.spent(rules, host, port, behavior)
        domain = self._lacks_names(network, host) if is_looked_up else ""
        if not domain:
            return None
        whole = "the session" if domain == "*" else domain
        text = f"{host.name} is a new name, and the limit of new names of {whole} is reached"
        return Decision(behavior, Reason.NAME_LIMIT, text, domain, hint=f"{_SHOW}.maxNewNames")

    def spent(
        self, rules: tuple[UploadRule, ...], host: Host, port: int, behavior: Behavior = Behavior.DENY
    ) -> Decision:
        """Return the decision for a limit of bytes that is reached."""
        rule = min(rules, key=lambda one: self.left((one,)))
        limit = size_text(rule.most + self._granted.get(rule.pattern.text, 0))
        text = f"{host.authority(port)} gets no more data: the limit of {limit} for {rule.pattern.text} is reached"
        hint = f"{_SHOW}.maxUpload"
        return Decision(behavior, Reason.UPLOAD_LIMIT, text, rule.pattern.text, rule.origin, hint)

    def extend(self, network: NetworkPolicy, host: Host, port: int) -> None:
        """Add the limits again that a connection has reached: a user said yes."""
        for rule in upload_rules(network, host, port):
            if self.left((rule,)) <= 0:
                self._granted[rule.pattern.text] = self._granted.get(rule.pattern.text, 0) + rule.most
        while domain := self._lacks_names(network, host):
            key = f"names {domain}"
            self._granted[key] = self._granted.get(key, 0) + (network.max_new_names or 0)


class Meter:
    """The counter of one connection. `spent` is called once, with the decision, when the limit is reached."""

    __slots__ = ("_bounds", "_host", "_is_told", "_port", "_rules", "_spent")

    def __init__(self, bounds: SessionBounds, host: Host, port: int, spent: Callable[[Decision], None]) -> None:
        self._bounds = bounds
        self._host, self._port = host, port
        self._rules: tuple[UploadRule, ...] = ()
        self._spent = spent
        self._is_told = False

    def follow(self, network: NetworkPolicy) -> None:
        """Take the limits of a new policy."""
        self._rules = upload_rules(network, self._host, self._port)

    @property
    def left(self) -> int:
        return self._bounds.left(self._rules) if self._rules else UNLIMITED

    def count(self, size: int) -> None:
        self._bounds.count(self._rules, size)

    def refuse(self) -> Decision:
        """Tell of the limit, and return the decision. What is left of it is too little, so it counts as reached."""
        self._bounds.exhaust(self._rules)
        decision = self._bounds.spent(self._rules, self._host, self._port)
        if not self._is_told:
            self._is_told = True
            self._spent(decision)
        return decision


def upload_rules(network: NetworkPolicy, host: Host, port: int) -> tuple[UploadRule, ...]:
    """Return the limits of bytes that concern a host at a port."""
    if not network.uploads:
        return ()
    found = compile_rules(network.uploads).match_any_port(host)
    return tuple(rule for rule in found if rule.pattern.port in (None, port))
