"""The planner: makes plans, and caches what only place and policy determine.

It does no I/O: an injected `FactSource` queries the host and says whether its answers still hold. A plan from the cache
needs that one call, the environment and the argv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from sandboxd.errors import PolicyError
from sandboxd.plan.environment import EnvironmentChange, certificates_of, variables_with_addresses
from sandboxd.plan.filesystem.effective_access import effective_access_at
from sandboxd.plan.filesystem.mounts import Operation
from sandboxd.plan.host_facts import Facts, FactSource, ResolvedPath
from sandboxd.plan.host_queries import HostQueries, list_needs
from sandboxd.plan.masked_files import is_masked
from sandboxd.plan.plan import Layout, Plan, environment_in, make_layout, plan_in, shells_of
from sandboxd.plan.request import DEFAULT_SHELLS, NO_VARIABLES, Argv, Place, ShellText
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.explain.hint_table import Symptom
from sandboxd.policy.explain.hints import hint_for
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.path_decisions import decide_path
from sandboxd.policy.sockets.socket_decisions import by_place, decide_socket, open_sockets, with_condition
from sandboxd.policy.violation import ViolationKind
from sandboxd_client.records import dataclass

KEPT = 64
"""Cached layouts, one for each session and working directory; the oldest is dropped first."""

ENDED_KEPT = 8
"""Cached layouts of ended sessions: the next session in the same place often follows at once."""

FILES_KEPT = 16
"""Sets of certificate files, by the variables of callers, that are watched."""

_MASKS = frozenset({Operation.MASK_FILE, Operation.MASK_DIRECTORY, Operation.LISTABLE_DIRECTORY})


@dataclass(frozen=True, slots=True)
class _Known:
    policy: Policy
    facts: Facts
    layout: Layout


@dataclass(frozen=True, slots=True)
class _CallerParts:
    """Parts of a layout that the variables of a caller decide; the next command often comes from the same one."""

    place: Place
    addresses: tuple[str | None, ...] | None
    change: EnvironmentChange
    warnings: tuple[str, ...]
    files: Facts | None
    """Facts about the certificate files that the variables name."""


_Key = tuple[Place, tuple[str, ...]]


class Planner:
    """Makes plans, with the `needs` and `make` of the platform."""

    def __init__(
        self,
        facts: FactSource,
        *,
        needs: Callable[[Policy, Place, tuple[str, ...]], HostQueries] = list_needs,
        make: Callable[[Policy, Place, Facts, tuple[str, ...]], Layout] = make_layout,
    ) -> None:
        self._facts = facts
        self._needs = needs
        self._make = make
        self._known: dict[_Key, _Known] = {}
        self._ended: dict[_Key, None] = {}
        self._callers: WeakKeyDictionary[Layout, _CallerParts] = WeakKeyDictionary()
        self._files: dict[tuple[str, ...], Facts] = {}

    async def plan(
        self, policy: Policy, place: Place, command: Argv | ShellText, environment: Mapping[str, str] = NO_VARIABLES
    ) -> Plan:
        layout = await self.layout(policy, place, shells_of(command))
        addresses = None if layout.trusted else variables_with_addresses(environment)
        caller = self._callers.get(layout)
        if caller is None or caller.addresses != addresses or addresses is None or not self._fits(caller, place):
            change = environment_in(layout, place, environment)
            warnings, files = await self._unreadable(layout, environment)
            caller = _CallerParts(place, addresses, change, warnings, files)
            if addresses is not None and environment:  # of a prepared sandbox it is not known yet
                self._callers[layout] = caller
        plan = plan_in(layout, caller.change, command)
        return replace(plan, warnings=(*plan.warnings, *caller.warnings)) if caller.warnings else plan

    def _fits(self, caller: _CallerParts, place: Place) -> bool:
        """Return whether the variables mean the same in a place: that of one session, or a like one of the next."""
        if caller.place is place or caller.files is None:
            return caller.place is place
        return caller.place == place and self._facts.unchanged(caller.files)

    async def _unreadable(self, layout: Layout, environment: Mapping[str, str]) -> tuple[tuple[str, ...], Facts | None]:
        """Return warnings about certificate files that commands may not read, and what is known of these files."""
        named = dict(certificates_of(environment))
        paths = tuple(dict.fromkeys(named.values()))
        if not paths:
            return (), None
        files: Facts | None = None
        try:
            files = self._files[paths] = await self._facts.answer(HostQueries(paths=paths))
            found = files.paths
        except PolicyError:  # no rule needs them, so no command is refused
            found = dict(zip(paths, await self._facts.resolve_all(paths), strict=True))
        while len(self._files) > FILES_KEPT:
            self._facts.forget(self._files.pop(next(iter(self._files))))
        decided = {path: self._decide(layout, path, found[path], write=False) for path in paths}
        warnings = (
            f"{name} names {neutralise(path)}, which the command may not read: {decided[path].text}"
            for name, path in named.items()
            if not decided[path].allowed
        )
        return tuple(warnings), files

    async def layout(self, policy: Policy, place: Place, shells: tuple[str, ...] = DEFAULT_SHELLS) -> Layout:
        """Return the file system and the shells of a place, as they are now."""
        key = (place, shells)
        self._ended.pop(key, None)
        known = self._known.get(key)
        if known is not None and known.policy is policy and self._facts.unchanged(known.facts):
            return known.layout
        facts = await self._facts.answer(self._needs(policy, place, shells))
        if known is not None and known.policy is policy and known.facts is facts:
            return known.layout
        layout = self._make(policy, place, facts, shells)
        self._known.pop(key, None)
        self._known[key] = _Known(policy, facts, layout)
        while len(self._known) > KEPT:
            self._drop(next(iter(self._known)))
        return layout

    async def explain(self, policy: Policy, place: Place, path: str, *, write: bool) -> Decision:
        """Decide whether this absolute path may be read or written in that place; a denial has a violation's hint."""
        found = await self._facts.resolve(path)
        layout = await self.layout(policy, place)
        decision = self._decide(layout, path, found, write=write)
        if not (decision.allowed or write) and is_masked(layout.entries.entries.get(found.real)):
            text = f"commands read a copy of {neutralise(path)} with placeholders for secrets"
            return Decision(Behavior.ALLOW, Reason.PATH_ALLOWED, text, decision.rule, decision.origin)
        if decision.allowed:
            return decision
        kind = ViolationKind.WRITE if write else ViolationKind.READ
        operation = "openat" if found.kind is None else "write"  # an absent name is made first
        symptom = Symptom(kind, operation, neutralise(path), place.home, decision, found.kind is not None)
        return replace(decision, hint=hint_for(symptom))

    def _decide(self, layout: Layout, path: str, found: ResolvedPath, *, write: bool) -> Decision:
        return decide_path(effective_access_at(layout.entries, path, found), write=write)

    async def explain_socket(self, policy: Policy, place: Place, path: str) -> Decision:
        """Decide whether a command in that place may connect to a Unix socket."""
        attribution = (await self.layout(policy, place)).attribution
        real = (await self._facts.resolve(path)).real
        rules = await self._facts.resolve_all(rule.path for rule in policy.network.allow_unix_sockets)
        ends = [attribution.leads_to(one) for one in rules]
        places = (place.runtime_dir, place.temporary_base, *place.private)
        own = [one.real for one in await self._facts.resolve_all(places)]
        sockets = open_sockets(policy.network, ends, own)
        decision = decide_socket(real, sockets, private=attribution.is_private_socket(real))
        if by_place(decision, sockets) and attribution.can_bring(real):
            decision = with_condition(decision)
        hint = hint_for(Symptom(ViolationKind.UNIX_SOCKET, "connect", real, place.home, decision))
        return decision if decision.allowed else replace(decision, hint=hint)

    async def resolve(self, path: str) -> ResolvedPath:
        """Resolve an absolute path on the host, now."""
        return await self._facts.resolve(path)

    def holds(self, plan: Plan) -> bool:
        """Return whether the files are as they were for the plan, as far as is known."""
        return plan.view.facts is None or self._facts.unchanged(plan.view.facts)

    def remove_made(self, plan: Plan, since: float) -> str:
        """Remove targets of masks that the sandbox itself has made since a time; return the first or "".

        No target is made for those that only a search asks for: they are copies of other masks."""
        kept = {path.rstrip("/") for path in plan.view.placeholders} | plan.view.searched
        masks = (mount.target for mount in plan.view.mounts if mount.operation in _MASKS)
        return self._facts.remove_made((path for path in masks if path not in kept), since)

    def look_again(self, path: str) -> None:
        """Discard facts about this path: the next plan examines it."""
        self._facts.look_again(path)

    def forget(self, session_tmp: str) -> None:
        """End a session: its layouts stay until some other sessions have ended."""
        for key in [key for key in self._known if key[0].session_tmp == session_tmp]:
            self._ended.pop(key, None)
            self._ended[key] = None
        while len(self._ended) > ENDED_KEPT:
            self._drop(next(iter(self._ended)))

    def _drop(self, key: _Key) -> None:
        self._ended.pop(key, None)
        known = self._known.pop(key, None)
        if known is not None and not any(other.facts is known.facts for other in self._known.values()):
            self._facts.forget(known.facts)
