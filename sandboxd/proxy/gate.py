"""The gate: the decision on each connection that leaves a sandbox.

For host H and port P, as the program named them and `policy.hosts.host_patterns` parsed them (one canonical form;
ambiguous names never get this far):

1. A rule denies H:P, a rule or grant allows it, or it is open (`policy.hosts.host_decisions.decide_host`). A deny
   wins. An empty or absent list allows nothing.
2. An open decision becomes a prompt when a subscriber is present. Only a yes allows. An explicit deny, an address of
   this machine and `localhost` never lead to a prompt. No name is resolved before the answer, because a look-up already
   carries data out.
3. A name is resolved once, off the event loop. Every answer is checked (`decide_address`) and refused ones are left
   out. Without a remaining answer the connection is denied. A name that goes to a parent proxy is not resolved here
   (`policy.hosts.parent_proxies`): only that proxy sees its addresses.
4. Only the checked addresses are dialled. No second look-up happens, so a changed answer has no effect.
5. Each step reads the policy anew, and so does a last check of the established connection. `still_allowed` repeats the
   check for open connections; those denied by then are cut.

The gate does not look into TLS and does not follow data at an allowed host. The host resolver's search domains apply to
short names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_decisions import decide_address, decide_host, decide_name, port_is_closed
from sandboxd.policy.hosts.host_patterns import Host, IPAddress
from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies, ParentProxy, choose_parent
from sandboxd.policy.hosts.request_rules import HttpRequest, decide_request, ends_tls, rules_for, why_unseen
from sandboxd.policy.model import HostRule, NetworkPolicy
from sandboxd.proxy.dial import DialError, Resolver
from sandboxd.proxy.session_bounds import SessionBounds
from sandboxd_client.records import dataclass

Ask = Callable[[Host, int, Decision], Awaitable[Decision]]
"""Prompts the user with host, port and the ASK decision with its hint.

Returns ALLOW (reason GRANTED, with the rule when the grant outlives the connection) or DENY (PROMPT_DENIED,
PROMPT_UNANSWERED). Cancelled when the waiting connection goes away.
"""

AskRequest = Callable[[Host, int, HttpRequest, Decision], Awaitable[Decision]]
"""Prompts the user about one request, as `Ask` does about a connection."""

LIMITS: Final = frozenset({Reason.UPLOAD_LIMIT, Reason.NAME_LIMIT})
"""Reasons of questions about a limit (`session_bounds`)."""
LOOKUPS_AT_ONCE: Final = 8
"""Per gate, so that one command cannot take all threads of the resolver."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A decision, with the addresses that may be dialled and the parent proxy.

    Without addresses the parent proxy is given the name."""

    decision: Decision
    addresses: tuple[IPAddress, ...] = ()
    parent: ParentProxy | None = None


class Gate:
    """The decisions for one command's connections.

    `network` returns the current policy. `ask` prompts the user, None without prompts. `pinned` are the names of
    `--resolve`, exempt from the address check. `host_addresses` returns the addresses of this machine's interfaces,
    `grants` the rules that the user granted to the session. `proxies` come from the daemon's environment. `can_ask`
    returns whether a prompt has a subscriber now. `closed_ports` returns ports of this machine that no rule opens.
    `measured` receives the seconds that each decision took. `advised` adds the advice that fits the command to a
    denial."""

    def __init__(
        self,
        network: Callable[[], NetworkPolicy],
        ask: Ask | None,
        resolver: Resolver,
        pinned: Collection[str] = (),
        *,
        host_addresses: Callable[[], frozenset[IPAddress]] = frozenset,
        closed_ports: Callable[[], Collection[int]] = frozenset,
        grants: Callable[[], Sequence[HostRule]] = tuple,
        proxies: EnvironmentProxies = NO_PROXIES,
        can_ask: Callable[[], bool] = lambda: True,
        measured: Callable[[float], None] = lambda seconds: None,
        advised: Callable[[Decision], Decision] = lambda decision: decision,
        ask_request: AskRequest | None = None,
        bounds: SessionBounds | None = None,
    ) -> None:
        self._network = network
        self._ask = ask
        self._resolver = resolver
        self._pinned = frozenset(pinned)
        self._host_addresses = host_addresses
        self._closed_ports = closed_ports
        self._grants = grants
        self._proxies = proxies
        self._can_ask = can_ask
        self._measured = measured
        self.advised = advised
        self._ask_request = ask_request
        self.bounds = bounds or SessionBounds()
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def decide(self, host: Host, port: int) -> Decision:
        """Decide steps 1 and 2: ALLOW or DENY, never ASK."""
        begun = time.perf_counter()
        decision = self._decide_now(host, port)
        self._measured(time.perf_counter() - begun)
        if decision.behavior is not Behavior.ASK:
            return decision
        if self._ask is None:
            return _closed(decision)
        answer = await self._ask(host, port, decision)
        if answer.allowed and decision.reason in LIMITS:
            self.bounds.extend(self._network(), host, port)
        again = self._decide_now(host, port)
        if again.behavior is not Behavior.ASK:
            return again  # a rule, or a grant that the answer made
        if answer.behavior is Behavior.ALLOW:
            return answer
        if answer.behavior is Behavior.DENY:
            return answer
        return Decision(Behavior.DENY, Reason.PROMPT_UNANSWERED, decision.text, hint=decision.hint)

    def may_ask(self, host: Host, port: int) -> bool:
        """Return whether `decide` would prompt now, which may take minutes."""
        return self._ask is not None and self._decide_now(host, port).behavior is Behavior.ASK

    def network(self) -> NetworkPolicy:
        """Return the policy of now."""
        return self._network()

    @property
    def decides_requests(self) -> bool:
        """Return whether there are rules for requests."""
        return bool(self._network().requests)

    def covers_requests(self, host: Host, port: int) -> bool:
        """Return whether rules for requests cover the host, so that each request is decided."""
        return bool(rules_for(self._network(), host, port))

    def ends_tls(self, host: Host, port: int) -> bool:
        """Return whether TLS for a host ends in the proxy."""
        return ends_tls(self._network(), host, port)

    def sees_requests(self, host: Host, port: int) -> bool:
        """Return whether the requests of a tunnel to a host are looked at."""
        return self.covers_requests(host, port) or self.ends_tls(host, port)

    def why_unseen(self, host: Host, port: int) -> Decision | None:
        """Return the denial of a TLS connection of which rules for requests would see nothing."""
        return why_unseen(self._network(), host, port)

    async def decide_request(self, host: Host, port: int, request: HttpRequest) -> Decision | None:
        """Decide on one request to an allowed host: ALLOW or DENY; None where no rule covers the host."""
        decision = decide_request(self._network(), host, port, request)
        if decision is None or decision.behavior is not Behavior.ASK:
            return decision
        answer = (
            _closed(decision) if self._ask_request is None else await self._ask_request(host, port, request, decision)
        )
        again = decide_request(self._network(), host, port, request)
        return again if again is None or again.behavior is not Behavior.ASK else answer

    def decide_name(self, host: Host) -> Decision:
        """Decide whether a looked-up name may be connected to on any port.

        ASK when a connection would prompt. This look-up itself neither prompts nor resolves."""
        decision = decide_name(self._network(), host, self._grants())
        if decision.behavior is Behavior.ASK and (self._ask is None or not self._can_ask()):
            return _closed(decision)
        return decision

    async def admit(self, host: Host, port: int, *, plain: bool = False) -> Admission:
        """Decide steps 1 to 3. Raises DialError when an allowed name does not resolve.

        `plain` is for a request of a plain `http://` URL."""
        decision = await self.decide(host, port)
        if not decision.allowed:
            return Admission(decision)
        parent = self.parent(host, port, plain=plain)
        if host.address is not None:
            return Admission(decision, (host.address,), parent)
        if host.name not in self._pinned:
            self.bounds.count_name(self._network(), host)
        if parent is not None and (parent.takes_names or parent.host is None):
            if port in self._closed_ports():  # it may dial this machine, under any name
                return Admission(port_is_closed(host, port))
            return Admission(decision, (), parent)
        async with self._lookups:
            answers = await self._resolver.resolve(host.name)
        if not answers:
            raise DialError("dns_failed", f"cannot resolve {host}: the answer holds no address")
        return replace(self._check(host, port, decision, answers), parent=parent)

    def parent(self, host: Host, port: int, *, plain: bool = False) -> ParentProxy | None:
        """Return the parent proxy for an allowed connection, if any."""
        if host.name in self._pinned:
            return None
        of_host = self._host_addresses() if host.address is not None else ()
        return choose_parent(
            self._network().parent_proxy, self._proxies, host, port, plain=plain, host_addresses=of_host
        )

    def allows_listed(self, host: Host, port: int) -> bool:
        """Return whether a rule or grant allows it now, without a prompt."""
        return self._decide_now(host, port).allowed

    def is_local_port(self, port: int) -> bool:
        """Return whether `allowLocalPorts` lists the port."""
        return any(ports.first <= port <= ports.last for ports in self._network().allow_local_ports)

    @property
    def server_names(self) -> str:
        """Return `checkServerName`: off, log or enforce."""
        return self._network().check_server_name

    @property
    def managed_domains_only(self) -> bool:
        """Return whether only managed settings can allow a host."""
        return self._network().managed_domains_only

    def still_allowed(self, host: Host, port: int, opened_by: Decision, address: IPAddress | None) -> Decision:
        """Decide step 5 for an open connection: ALLOW, or the DENY that ends it.

        A grant for one connection holds until a rule denies it. `address` is None where only a parent proxy knows it.
        """
        decision = self._decide_now(host, port)
        if decision.behavior is Behavior.ASK:
            if opened_by.reason is Reason.GRANTED and opened_by.rule is None:
                decision = opened_by
            else:
                text = f"{host.authority(port)} is no longer allowed"
                return Decision(Behavior.DENY, decision.reason, text, hint=decision.hint)
        if not decision.allowed or host.address is not None or address is None:
            return decision
        checked = self._check(host, port, decision, (address,))
        return checked.decision

    def _decide_now(self, host: Host, port: int) -> Decision:
        of_host = self._host_addresses() if host.address is not None else ()
        network = self._network()
        decision = decide_host(network, host, port, self._grants(), of_host, self._closed_ports())
        if not decision.allowed or not (network.uploads or network.max_new_names):
            return decision
        is_looked_up = host.name not in self._pinned
        return self.bounds.limited(network, host, port, is_looked_up=is_looked_up) or decision

    def _check(self, host: Host, port: int, decision: Decision, answers: Sequence[IPAddress]) -> Admission:
        network, grants, of_host = self._network(), self._grants(), self._host_addresses()
        closed, pinned = self._closed_ports(), host.name in self._pinned
        refused: Decision | None = None
        addresses: list[IPAddress] = []
        for address in answers:
            verdict = decide_address(
                network, host, port, address,
                grants=grants, host_addresses=of_host, closed_ports=closed, pinned=pinned,
            )  # fmt: skip
            if verdict.allowed:
                addresses.append(address)
            else:
                refused = refused or verdict
        if refused is not None and not addresses:
            return Admission(refused)
        return Admission(decision, tuple(addresses))


def _closed(decision: Decision) -> Decision:
    """Return the DENY for an open decision without a prompt."""
    return Decision(Behavior.DENY, decision.reason, decision.text, decision.rule, decision.origin, decision.hint)
