"""What the filter means.

A connection leaves the sandbox only through this gate. For host H and port P, as the program named them and as
`policy.hosts.host_patterns` read them (one canonical form; what is ambiguous never gets here):

1. H:P is denied by a rule, or is allowed by a rule or a grant, or is open (`policy.hosts.host_decisions.decide_host`).
A deny    wins. An empty or absent list allows nothing.
2. What is open becomes a question, if somebody can be asked; every other outcome of a question than a plain yes is a
   deny. An explicit deny, an address of this machine and `localhost` are never asked about. Nothing is resolved before
   the answer: a look-up would already carry data out.
3. A name is resolved once, off the event loop. Every answer is checked (`decide_address`); the ones that are refused
   are left out. When none is left the connection is denied. A name that goes to a parent proxy is not resolved here at
   all (`policy.hosts.parent_proxies`): what it leads to is seen by that proxy only.
4. Only the checked addresses are dialled. Nothing resolves the name again, so an answer that changes between check and
   connect changes nothing.
5. The policy is read anew for each of these steps and once more after the connection stands, so a change made in the
   meantime counts. `still_allowed` asks the same of connections that are open; who is denied by then is cut.

What it does not do: look into TLS, follow what an allowed host does with the data, or keep the search domains of this
machine's resolver from being tried for short names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_decisions import decide_address, decide_host, decide_name
from sandboxd.policy.hosts.host_patterns import Host, IPAddress
from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies, ParentProxy, choose_parent
from sandboxd.policy.model import HostRule, NetworkPolicy
from sandboxd.proxy.dial import DialError, Resolver

Ask = Callable[[Host, int, Decision], Awaitable[Decision]]
"""Puts the open question to people: host, port and the ASK decision with its hint. Answers ALLOW (reason GRANTED; with
the rule when the grant outlives the connection) or DENY (PROMPT_DENIED, PROMPT_UNANSWERED). It is cancelled when the
connection that waits for it goes away."""

LOOKUPS_AT_ONCE: Final = 8
"""Of one gate: a command that looks up names in bulk must not take all the resolver's threads."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision, and when it allows, the addresses that may be dialled, and the proxy to go through. Without
    addresses the proxy is to be given the name."""

    decision: Decision
    addresses: tuple[IPAddress, ...] = ()
    parent: ParentProxy | None = None


class Gate:
    """`network` gives the policy now. `ask` puts questions, None when there is nobody. `pinned` are the names of
    `--resolve`, exempt from the address check. `own_addresses` gives the addresses of this machine's interfaces,
    `grants` the rules that people gave the session, `proxies` are those of the daemon's environment. `somebody_to_ask`:
    whether a question would reach anybody now. `measured` hears how many seconds a decision took."""

    def __init__(
        self,
        network: Callable[[], NetworkPolicy],
        ask: Ask | None,
        resolver: Resolver,
        pinned: Collection[str] = (),
        *,
        own_addresses: Callable[[], frozenset[IPAddress]] = frozenset,
        grants: Callable[[], Sequence[HostRule]] = tuple,
        proxies: EnvironmentProxies = NO_PROXIES,
        somebody_to_ask: Callable[[], bool] = lambda: True,
        measured: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._network = network
        self._ask = ask
        self._resolver = resolver
        self._pinned = frozenset(pinned)
        self._own_addresses = own_addresses
        self._grants = grants
        self._proxies = proxies
        self._somebody_to_ask = somebody_to_ask
        self._measured = measured
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def decide(self, host: Host, port: int) -> Decision:
        """Steps 1 and 2: ALLOW or DENY, never ASK."""
        begun = time.perf_counter()
        decision = self._decide_now(host, port)
        self._measured(time.perf_counter() - begun)
        if decision.behavior is not Behavior.ASK:
            return decision
        if self._ask is None:
            return _closed(decision)
        answer = await self._ask(host, port, decision)
        again = self._decide_now(host, port)
        if again.behavior is not Behavior.ASK:
            return again  # a rule, or a grant that this very answer made
        if answer.behavior is Behavior.ALLOW:
            return answer
        if answer.behavior is Behavior.DENY:
            return answer
        return Decision(Behavior.DENY, Reason.PROMPT_UNANSWERED, decision.text, hint=decision.hint)

    def may_ask(self, host: Host, port: int) -> bool:
        """Whether `decide` would put a question now, which may take as long as people take."""
        return self._ask is not None and self._decide_now(host, port).behavior is Behavior.ASK

    def decide_name(self, host: Host) -> Decision:
        """Whether a name that is looked up may be connected to, on some port: ALLOW, ASK when that would be a question,
        or DENY. Nobody is asked, and nothing is resolved."""
        decision = decide_name(self._network(), host, self._grants())
        if decision.behavior is Behavior.ASK and (self._ask is None or not self._somebody_to_ask()):
            return _closed(decision)
        return decision

    async def admit(self, host: Host, port: int, *, plain: bool = False) -> Admission:
        """Steps 1 to 3; `plain` is for a request of a plain `http://` URL. Raises DialError when an allowed name does
        not resolve."""
        decision = await self.decide(host, port)
        if not decision.allowed:
            return Admission(decision)
        parent = self.parent(host, port, plain=plain)
        if host.address is not None:
            return Admission(decision, (host.address,), parent)
        if parent is not None and (parent.takes_names or parent.host is None):
            return Admission(decision, (), parent)
        async with self._lookups:
            answers = await self._resolver.resolve(host.name)
        if not answers:
            raise DialError("dns_failed", f"{host} does not resolve: the answer holds no address")
        return replace(self._check(host, port, decision, answers), parent=parent)

    def parent(self, host: Host, port: int, *, plain: bool = False) -> ParentProxy | None:
        """The proxy that an allowed connection goes through now."""
        if host.name in self._pinned:
            return None
        own = self._own_addresses() if host.address is not None else ()
        return choose_parent(self._network().parent_proxy, self._proxies, host, port, plain=plain, own=own)

    def allows_listed(self, host: Host, port: int) -> bool:
        """Whether a rule or grant allows it now, without asking anybody."""
        return self._decide_now(host, port).allowed

    def is_local_port(self, port: int) -> bool:
        """Whether `allowLocalPorts` names it."""
        return any(ports.first <= port <= ports.last for ports in self._network().allow_local_ports)

    @property
    def server_names(self) -> str:
        """`checkServerName`: off, log or enforce."""
        return self._network().check_server_name

    @property
    def managed_domains_only(self) -> bool:
        """Managed settings alone can allow a host."""
        return self._network().managed_domains_only

    def still_allowed(self, host: Host, port: int, opened_by: Decision, address: IPAddress | None) -> Decision:
        """Step 5, for a connection to `address` that was opened by this decision: ALLOW, or the DENY that ends it. What
        was granted for one connection only stays, unless a rule denies it by now. `address` is None where a parent
        proxy alone knows it."""
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
        own = self._own_addresses() if host.address is not None else ()
        return decide_host(self._network(), host, port, self._grants(), own)

    def _check(self, host: Host, port: int, decision: Decision, answers: Sequence[IPAddress]) -> Admission:
        network, grants, own = self._network(), self._grants(), self._own_addresses()
        pinned = host.name in self._pinned
        refused: Decision | None = None
        addresses: list[IPAddress] = []
        for address in answers:
            verdict = decide_address(network, host, port, address, grants=grants, own=own, pinned=pinned)
            if verdict.allowed:
                addresses.append(address)
            else:
                refused = refused or verdict
        if refused is not None and not addresses:
            return Admission(refused)
        return Admission(decision, tuple(addresses))


def _closed(decision: Decision) -> Decision:
    """An open decision when nobody can be asked."""
    return Decision(Behavior.DENY, decision.reason, decision.text, decision.rule, decision.origin, decision.hint)
