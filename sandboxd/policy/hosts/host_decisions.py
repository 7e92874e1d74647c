"""Decisions on hosts and ports, for proxies, DNS and `explain` alike.

`decide_host` decides on the request, in this order:

| | | |
| --- | --- | --- |
| 0 | it is local, and the daemon's user closed the port for every command (`closed_ports`) | deny |
| 1 | a rule denies it | deny |
| 2 | it is local: an address of the refused table, `localhost` or a name below it | deny, no question, unless |
|   | a rule or grant names this very address, or | goes on |
|   | it is `localhost`, 127.0.0.1 or ::1; `allowLocalPorts` or a rule naming one of these opens the port | goes on |
| 3 | a rule says to ask about it, and no grant allows it | ask |
| 4 | one of these, another rule or a grant of the session allows it | allow |
|   | a rule for requests allows some to it (`request_rules`) | allow |
| 5 | `strictAllowlist` | deny |
| 6 | otherwise | ask |

In row 4 a rule for every host, such as `*`, allows no address of a private network.

`decide_address` looks at where an allowed name leads. Both must allow. `decide_name` is for a name without a port, as
DNS has it: a name that is open on one port gets an answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

from sandboxd.policy.decision import ONLY_MANAGED, Behavior, Decision, Reason
from sandboxd.policy.hosts.addresses import (
    AddressRefusal,
    IPNetwork,
    parse_networks,
    private_network,
    readings,
    refuse_address,
)
from sandboxd.policy.hosts.host_patterns import Host, IPAddress
from sandboxd.policy.hosts.host_rules import EMPTY, HostRuleSet, compile_rules
from sandboxd.policy.hosts.request_rules import opening_rule
from sandboxd.policy.model import HostRule, NetworkPolicy, PortRange, RequestRule
from sandboxd.settings.origins import Origin

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def decide_host(
    network: NetworkPolicy,
    host: Host,
    port: int | None,
    grants: Sequence[HostRule] = (),
    host_addresses: Collection[IPAddress] = (),
    closed_ports: Collection[int] = (),
) -> Decision:
    """Decide on `host` and `port` as named; ASK where it may become a prompt.

    `grants` are the rules that users gave this session. `host_addresses` are those of this machine, `closed_ports` its
    ports that no rule opens. A port of None (`explain host H`) is decided by the rules for every port."""
    if port in closed_ports and (is_local_name(host) or _is_here(host.address, host_addresses)):
        return port_is_closed(host, port)
    denial = _match_denial(network, host, port)
    if denial is not None:
        return _denied(network, host, port, denial)
    allowed = compile_rules(network.allowed)
    granted = HostRuleSet(grants) if grants else EMPTY
    literal = allowed.match_literal(host, port) or granted.match_literal(host, port)
    local = _local_port(network, host, port)
    if host.address is not None and literal is None and local is None:
        refusal = refuse_address(host.address, _networks(network.denied_addresses), host_addresses)
        if refusal is not None:
            return _refused_literal(network, host, port, refusal)
    if is_local_name(host) and local is None:
        return Decision(
            Behavior.DENY,
            Reason.LOCAL_ADDRESS,
            _text(host, port, "names this machine, which is not reachable from the sandbox"),
            hint=_way_to_loopback(network, host, port),
        )
    rule, grant = allowed.match(host, port), granted.match(host, port)
    some = opening_rule(network, host, port) if network.requests else None
    private = None if host.address is None else _uncovered(network, host.address, (rule, grant, some))
    if private is not None:
        rule = grant = some = None
    question = compile_rules(network.asked).match(host, port) if network.asked and grant is None else None
    if question is not None and (rule is not None or local is not None):
        text = _text(host, port, "is allowed, and a rule says to ask first")
        return Decision(Behavior.ASK, Reason.RULE, text, *_place(question))
    if local is not None:
        text = _text(host, port, "is a port of this machine that is allowed")
        return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, text, str(local), local.origin)
    if rule is not None:
        return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, _text(host, port, "is allowed"), *_place(rule))
    if grant is not None:
        return Decision(Behavior.ALLOW, Reason.GRANTED, _text(host, port, "was allowed when asked"), *_place(grant))
    if some is not None:
        text = _text(host, port, "is allowed for some requests")
        return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, text, some.text, some.origin)
    behavior = Behavior.DENY if network.strict_allowlist else Behavior.ASK
    hint = _way_to_allow(network, f"add it with: sandboxd allow domain {host.uri}")
    what = f"is in a private network ({private}), which {_NOT_COVERED}" if private else _UNLISTED
    return Decision(behavior, Reason.HOST_NOT_LISTED, _text(host, port, what), hint=hint)


def decide_name(network: NetworkPolicy, host: Host, grants: Sequence[HostRule] = ()) -> Decision:
    """Decide on a name that is looked up: by the port that is decided most openly."""
    denied = compile_rules(network.denied)
    if denied.match(host, None) is None:
        for rules, reason in (
            (compile_rules(network.allowed), Reason.HOST_ALLOWED),
            (HostRuleSet(grants) if grants else EMPTY, Reason.GRANTED),
        ):
            for rule in rules.match_any_port(host):
                if rule.pattern.port is None or denied.match(host, rule.pattern.port) is None:
                    return Decision(Behavior.ALLOW, reason, f"{host.uri} is allowed", *_place(rule))
        for some in compile_rules(network.requests).match_any_port(host):
            opens = some.behavior is not Behavior.DENY
            if opens and (some.pattern.port is None or denied.match(host, some.pattern.port) is None):
                text = f"{host.uri} is allowed for some requests"
                return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, text, some.text, some.origin)
    return decide_host(network, host, None)


def decide_address(
    network: NetworkPolicy,
    host: Host,
    port: int,
    address: IPAddress,
    *,
    grants: Sequence[HostRule] = (),
    host_addresses: Collection[IPAddress] = (),
    closed_ports: Collection[int] = (),
    pinned: bool = False,
) -> Decision:
    """Decide on dialling `address` for `host`, which `decide_host` allowed.

    A rule that denies an address denies every name that leads there. A refused address is allowed when a rule or grant
    names it (for this port), or when the name was `pinned` on the command line of the daemon."""
    target = Host.of_address(address)
    if port in closed_ports and _is_here(address, host_addresses):
        return port_is_closed(host, port)
    if pinned:
        return _address_allowed(host, target)
    for reading in readings(address):
        denial = compile_rules(network.denied).match_literal(Host.of_address(reading), port)
        if denial is not None:
            text = f"{_text(host, port, 'leads to')} {target.name}, which a rule denies"
            return _by_rule(network, Host.of_address(reading), port, denial, text)
    granted = HostRuleSet(grants) if grants else EMPTY
    if compile_rules(network.allowed).match_literal(target, port) or granted.match_literal(target, port):
        return _address_allowed(host, target)
    if _local_port(network, target, port) is not None:
        return _address_allowed(host, target)
    refusal = refuse_address(address, _networks(network.denied_addresses), host_addresses)
    if refusal is None:
        some = opening_rule(network, host, port) if network.requests else None
        opening = (compile_rules(network.allowed).match(host, port), granted.match(host, port), some)
        private = _uncovered(network, address, opening)
        return _address_allowed(host, target) if private is None else _in_private(network, host, port, target, private)
    return Decision(
        Behavior.DENY,
        Reason.ADDRESS_DENIED if refusal.listed else Reason.LOCAL_ADDRESS,
        f"{_text(host, port, 'leads to')} {target.name}, which is refused: {refusal.text} ({refusal.network})",
        hint=_way_to_allow(
            network, f"if that is meant, allow the address as well: sandboxd allow domain {target.authority(port)}"
        ),
    )


def port_is_closed(host: Host, port: int | None) -> Decision:
    """Return the denial of a port that is closed for every command, whatever the rules say."""
    text = _text(host, port, "may lead to a page of sandboxd for people, which no command reaches")
    return Decision(
        Behavior.DENY, Reason.PORT_CLOSED, text, hint="answer its questions in a browser, or run: sandboxd prompts"
    )


def _is_here(address: IPAddress | None, host_addresses: Collection[IPAddress]) -> bool:
    return address is not None and refuse_address(address, (), host_addresses) is not None


_UNLISTED: Final = "is not on the list of allowed hosts"
_NOT_COVERED: Final = "rules for every host do not cover"


def _uncovered(
    network: NetworkPolicy, address: IPAddress, opening: Sequence[HostRule | RequestRule | None]
) -> IPNetwork | None:
    """Return the private network of an address that is allowed by rules for hosts of unrelated owners alone."""
    if network.private_networks or not any(opening):
        return None
    private = private_network(address)
    named = private is None or any(rule is not None and not rule.pattern.covers_strangers for rule in opening)
    return None if named else private


def _in_private(network: NetworkPolicy, host: Host, port: int, target: Host, private: IPNetwork) -> Decision:
    text = f"{_text(host, port, 'leads to')} {target.name} in a private network ({private}), which {_NOT_COVERED}"
    way = f"if that is meant, name it: sandboxd allow domain {host.authority(port)}"
    return Decision(Behavior.DENY, Reason.ADDRESS_DENIED, text, hint=_way_to_allow(network, way))


def is_local_name(host: Host) -> bool:
    """Return whether a name means this machine (RFC 6761, section 6.3)."""
    return host.name == "localhost" or host.name.endswith(".localhost")


def _local_port(network: NetworkPolicy, host: Host, port: int | None) -> PortRange | None:
    """Return the entry of `allowLocalPorts` that opens this port of the loopback."""
    if not network.allow_local_ports or host.name not in LOCAL_HOSTS:
        return None
    first, last = (port, port) if port is not None else (1, 65535)
    return next((ports for ports in network.allow_local_ports if ports.first <= first and last <= ports.last), None)


def _match_denial(network: NetworkPolicy, host: Host, port: int | None) -> HostRule | None:
    if not network.denied:
        return None
    denied = compile_rules(network.denied)
    rule = denied.match(host, port)
    if rule is None and host.address is not None:
        for reading in readings(host.address):
            rule = denied.match_literal(Host.of_address(reading), port)
            if rule is not None:
                break
    return rule


def _denied(network: NetworkPolicy, host: Host, port: int | None, rule: HostRule) -> Decision:
    return _by_rule(network, host, port, rule, _text(host, port, "is denied by a rule"))


def _by_rule(network: NetworkPolicy, host: Host, port: int | None, rule: HostRule, text: str) -> Decision:
    """Return a denial with the settings' reason, in the sentence and as the hint."""
    why = next((reason for pattern, reason in network.denied_reasons if pattern == rule.pattern), None) or next(
        (reason for pattern, reason in network.denied_reasons if pattern.matches(host, port)), ""
    )
    text = f"{text}: {why}" if why else text
    return Decision(Behavior.DENY, Reason.HOST_DENIED, text, *_place(rule), hint=why)


def _way_to_allow(network: NetworkPolicy, command: str) -> str:
    return ONLY_MANAGED if network.managed_domains_only else command


def _way_to_loopback(network: NetworkPolicy, host: Host, port: int | None) -> str:
    way = _way_to_allow(network, f"sandboxd allow domain localhost:{'PORT' if port is None else port}")
    return f"if this machine is meant{'' if host.name in LOCAL_HOSTS else ', call it localhost'}: {way}"


def _refused_literal(network: NetworkPolicy, host: Host, port: int | None, refusal: AddressRefusal) -> Decision:
    target = host.uri if port is None else host.authority(port)
    return Decision(
        Behavior.DENY,
        Reason.ADDRESS_DENIED if refusal.listed else Reason.LOCAL_ADDRESS,
        f"{_text(host, port, 'is refused')}: {refusal.text} ({refusal.network})",
        hint=_way_to_loopback(network, host, port)
        if host.name in LOCAL_HOSTS
        else _way_to_allow(network, f"if that is meant, allow exactly this address: sandboxd allow domain {target}"),
    )


def _address_allowed(host: Host, target: Host) -> Decision:
    return Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, f"{host.uri} leads to {target.name}, which is allowed")


def _place(rule: HostRule) -> tuple[str, Origin]:
    return rule.pattern.text, rule.origin


def _text(host: Host, port: int | None, what: str) -> str:
    return f"{host.uri if port is None else host.authority(port)} {what}"


@lru_cache(maxsize=64)
def _networks(texts: tuple[str, ...]) -> tuple[IPNetwork, ...]:
    return parse_networks(texts)
