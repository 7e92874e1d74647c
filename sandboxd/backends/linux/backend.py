"""The Linux back end: bubblewrap and helper arguments, a ticket at the bridge."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from sandboxd.backends.base import LONGEST_GRACE_S, LaunchHandle, LaunchSpec, Observer, PreparedHandle
from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions, probe_options
from sandboxd.backends.linux.bwrap.late_names import (
    Expectations,
    GuardedSetup,
    LateNames,
)
from sandboxd.backends.linux.bwrap.orphans import end_processes
from sandboxd.backends.linux.bwrap.sandbox_setup import SandboxSetup
from sandboxd.backends.linux.command_limits import NO_GROUPS, CommandLimits, LimitedSetup, LimitWatch
from sandboxd.backends.linux.helper.bridge import Bridge, ExpectedLaunch, Handle
from sandboxd.backends.linux.helper.bridge_protocol import INIT_WORDS
from sandboxd.backends.linux.helper.expected_launch import Preparation
from sandboxd.backends.linux.helper.launch import Launching, NullObserver, PendingSetup, Releasable
from sandboxd.backends.linux.helper.launch_configuration import Flags, LaunchConfiguration
from sandboxd.backends.linux.helper.launch_records import CaptureRecord, LaunchRecord
from sandboxd.backends.linux.launch_recipe import LISTENERS, LaunchRecipes, LinuxTools
from sandboxd.backends.linux.network.capture import NOTHING, Ability, capture_for
from sandboxd.backends.linux.network.capture_probe import probe_capture
from sandboxd.backends.linux.network.namespace_hold import NamespaceHold
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.seccomp.filter import build_filter
from sandboxd.backends.linux.session_overlays import OverlayRecord, SessionOverlays, bound_entries
from sandboxd.errors import DaemonError, HostError, LaunchError
from sandboxd.handover.document import Outgoing
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import FileView, writable_in
from sandboxd.plan.filesystem.path_entries import TMP, overlay_directory
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd.plan.network import NetworkPlan
from sandboxd.plan.plan import Plan, ProcessLimit
from sandboxd.policy.model import NO_LIMITS, Limits
from sandboxd.policy.violation import limit_met
from sandboxd.quantities import size_text

GRACE_MS = int(LONGEST_GRACE_S * 1000)
EXPIRES_IN_S = 60.0


class PlaceholderHolder(Protocol):
    """The keeper of placeholders while a sandbox needs them."""

    async def prepare(self, paths: tuple[str, ...]) -> None:
        """Do the part of `hold` that waits for the disk."""

    def hold(
        self,
        paths: tuple[str, ...],
        watched: tuple[tuple[str, ...], ...],
        rests_on: Callable[[str], bool] = ...,
        searched: Collection[str] = ...,
    ) -> Releasable: ...


CLOCK_STEP_NS = 10_000_000
"""The most that the clock of change times may be behind time.time_ns()."""


class CleanupService(Protocol):
    """The repository clean-up (`host.git.repository_cleanup`)."""

    async def begin(self, launch_id: str, territory: Territory) -> None:
        """Register a command that is about to start."""

    def claimed(self, launch_id: str, process: int) -> None:
        """Record the start; `process` is its bubblewrap. Raises HostError."""

    def resume(self, launch_id: str, territory: Territory) -> None:
        """Register a command that another daemon has started."""

    def forget(self, launch_id: str) -> None:
        """Owe no clean-up: the command never ran, or another daemon has it."""

    def look_at_once(self, launch_id: str, could_write: Callable[[str], bool]) -> bool:
        """Clean up where there is nothing to do; return False where that takes longer to tell."""
        ...

    async def look(self, launch_id: str, could_write: Callable[[str], bool]) -> Neutralised:
        """Clean up after the command. Raises SandboxdError."""
        ...


class LinuxBackend:
    """The Linux back end.

    `tools` finds the programs and proves that a sandbox can start with them, and raises HostError otherwise. It is
    asked before every launch, so it caches its answer. `worker` enters the namespaces of sandboxes; the ability for it
    is probed once."""

    name = "linux"

    def __init__(
        self,
        bridge: Bridge,
        machine: str,
        tools: Callable[[], Awaitable[LinuxTools]],
        placeholders: PlaceholderHolder,
        cleanup: CleanupService,
        worker: NamespaceWorker,
        appearances: Expectations,
        temporary: str = "",
    ) -> None:
        self._overlays = SessionOverlays(worker)
        self._completion = SandboxSetup(worker, self._overlays)
        self._temporary = temporary
        self.no_overlays = "not probed yet"
        """The reason why a session's changes cannot be laid over the host's files, or ""."""
        self._bridge = bridge
        self._machine = machine
        self._find_tools = tools
        self._tools: LinuxTools | None = None
        self._placeholders = placeholders
        self._cleanup = cleanup
        self._looking: set[asyncio.Task[bytes]] = set()
        self._worker = worker
        self._appearances = appearances
        self.ability: Ability = NOTHING
        self._probed = False
        self._probing = asyncio.Lock()
        self._launches: dict[str, Launching] = {}
        self._inherited: dict[str, LaunchRecord] = {}
        self._watch = LimitWatch()
        self._recipes = LaunchRecipes(machine, bridge.path, GRACE_MS)

    def overlays_of(self, session_tmp: str, home: str) -> frozenset[str]:
        """Return which of `/tmp` and the home directory a session has overlays of."""
        if self.no_overlays or not session_tmp:
            return frozenset()
        return self._overlays.decide(overlay_directory(session_tmp), {"tmp": TMP, "home": home})

    async def end_session(self, directory: str) -> None:
        """End the overlays of a session, by its temporary directory."""
        if directory:
            await self._overlays.end(overlay_directory(directory))

    async def aclose(self) -> None:
        """Wait for running clean-ups."""
        await self._overlays.aclose()
        while self._looking:
            await asyncio.wait(self._looking)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about degraded isolation of the next sandbox."""
        return () if self._tools is None else self._tools.warnings

    def named(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of layers, with the weaker names where they apply."""
        return layers if self._tools is None else self._tools.named(layers)

    async def ready(self) -> None:
        self._tools = await self._find_tools()
        if not self._probed:
            await self._probe(self._tools)

    async def _probe(self, tools: LinuxTools) -> None:
        async with self._probing:
            if self._probed:
                return
            ticket = secrets.token_hex(16)
            words = (*probe_options(weaker=tools.weaker_nesting), "--", *INIT_WORDS)
            argv = (tools.launcher, "launch", self._bridge.path, ticket, "--", tools.bwrap, *words)
            configuration = LaunchConfiguration(
                arguments=(b"true",),
                filter=build_filter(self._machine),
                listeners=LISTENERS,
                grace_ms=GRACE_MS,
                flags=Flags.WAIT,
            )
            directory = os.path.join(self._temporary, f"probe-{ticket[:8]}")
            probed = await probe_capture(self._bridge, self._worker, ticket, argv, configuration, directory)
            self.ability, self._probed, self.no_overlays = probed.ability, probed.is_final, probed.no_overlays
            if self.no_overlays:
                self._bridge.log("no overlays for sessions", reason=self.no_overlays)
            if self.ability.reason:
                self._bridge.log("network_capture_limited", reason=self.ability.reason)

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[LaunchSpec, LaunchHandle]:
        return await self._launch(launch_id, plan, observer)

    async def prepare(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[LaunchSpec, PreparedHandle]:
        """Launch a sandbox that waits for its command. Raises HostError `prepare_unavailable`, PolicyError."""
        limited = CommandLimits(launch_id, plan.limits, plan.processes, NO_GROUPS).wanted
        if plan.view.placeholders or plan.view.unbound is not None or limited:
            raise HostError("prepare_unavailable", "what these settings need is made for each command")
        spec, launch = await self._launch(launch_id, plan, observer, waits=True)
        return spec, PreparedLaunch(self, launch)

    def look(self, launch: Launching) -> asyncio.Future[Any]:
        """Let a prepared sandbox see its files as they are now."""
        return asyncio.gather(*self._overlays.look_anew(launch.pending_setup.options.overlays))

    async def claim(self, launch: Launching, arguments: Sequence[str], observer: Observer) -> None:
        """Make a prepared sandbox that of a command, which starts once `observer` lets it. Raises DaemonError."""
        launch.check_mounts()
        territory = territory_of(launch.view)
        try:
            await self._cleanup.begin(launch.launch_id, territory)
            hold = self._hold(launch.view)
            if not isinstance(launch.handle, Handle) or not launch.handle.claim(map(os.fsencode, arguments)):
                hold.release(ran=False)
                raise LaunchError("launch_failed", "the sandbox has ended")
            launch.become(observer, hold, territory)
        except BaseException:
            self._cleanup.forget(launch.launch_id)
            raise

    def _hold(self, view: FileView) -> Releasable:
        rests_on = _on_nothing if view.facts is None else view.facts.rest_on
        return self._placeholders.hold(view.placeholders, view.watched, rests_on, view.searched)

    async def _launch(
        self, launch_id: str, plan: Plan, observer: Observer, *, waits: bool = False
    ) -> tuple[LaunchSpec, Launching]:
        if self._tools is None:
            hint = "report this defect of sandboxd with the daemon's log"
            raise LaunchError("backend_not_ready", "internal error: the back end is not ready", hint=hint)
        unbound, tools = plan.view.unbound, self._tools
        entries = () if unbound is None else await asyncio.to_thread(bound_entries, TMP, unbound)
        recipe = self._recipes.of(plan, tools, self.ability, entries)
        options = recipe.options
        configuration = recipe.configure(plan.argv, waits=waits)
        limits = CommandLimits(launch_id, plan.limits, recipe.processes, tools.groups, self._watch)
        await self._placeholders.prepare(plan.view.placeholders)
        territory = territory_of(plan.view)
        if not waits:
            await self._cleanup.begin(launch_id, territory)
        try:
            hold = self._placeholders.hold((), ()) if waits else self._hold(plan.view)
        except BaseException:
            self._cleanup.forget(launch_id)
            raise
        late_names = LateNames(
            plan.view.guards, self._appearances, self._worker, partial(self._paced, launch_id), plan.view.closed,
            recipe.denied, recipe.empty,
        )  # fmt: skip
        forget = partial(self._forget, launch_id, late_names)
        launch = Launching(
            launch_id, observer, hold, self._bridge.log, plan.view, territory, recipe.pending_setup, self._look_after,
            forget, self._cleanup.claimed,
        )  # fmt: skip
        self._launches[launch_id] = launch
        running = self._completion.of(options, recipe.capture, partial(self._unprotected, launch))
        setup: Preparation = running
        launch.mounts = running.mounts if waits else None
        launch.begins = running.begin
        if plan.view.guards or recipe.denied:
            self._appearances.ready()
            setup = GuardedSetup(setup, late_names)
        if limits.wanted:
            launch.take_limits(limits)
            setup = LimitedSetup(setup, limits)
        launch.handle = self._bridge.expect(
            launch_id,
            ExpectedLaunch(configuration, recipe.options_file, launch, setup, launch.clear_up),
        )
        spec = LaunchSpec(
            (*recipe.before, launch_id, *recipe.after),
            (*recipe.layers, *tools.named(limits.layers), *recipe.later_layers),
            (*recipe.warnings, *limits.warnings),
            EXPIRES_IN_S,
            reachable=recipe.capture is not None,
            shares_localhost=recipe.shares_localhost,
        )
        return spec, launch

    def _paced(self, launch_id: str) -> None:
        self._bridge.log("protected names are made outside too often to mount each at once", launch=launch_id)

    def _forget(self, launch_id: str, late_names: LateNames) -> None:
        self._launches.pop(launch_id, None)
        late_names.close()

    def _unprotected(self, launch: Launching, lost: tuple[str, ...]) -> None:
        """Let the clean-up look at repositories in which a mount was not made."""
        launch.territory = without_protection(launch.territory, lost)
        self._cleanup.resume(launch.launch_id, launch.territory)
        launch.record()

    def _look_after(self, launch: Launching) -> asyncio.Task[bytes] | None:
        """Start the clean-up after a command. None when there is nothing to do."""
        options = launch.pending_setup.options
        if options.tmp_size is not None and self._overlays.is_full(options.overlays):
            launch.refused(limit_met("tmp", size_text(options.tmp_size), size_text(2 * options.tmp_size)))
        if not launch.was_claimed or not launch.territory.places:
            self._cleanup.forget(launch.launch_id)
            return None
        if self._cleanup.look_at_once(launch.launch_id, writable_in(launch.view)):
            return None
        task = asyncio.get_running_loop().create_task(self._look_through(launch), name=f"cleanup-{launch.launch_id}")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)
        return task

    async def _look_through(self, launch: Launching) -> bytes:
        try:
            launch.tell(await self._cleanup.look(launch.launch_id, writable_in(launch.view)))
        except Exception as error:  # any failure: only this report tells the user to check the repositories
            launch.not_looked_through(error)
        return launch.last_byte

    # restart (docs/restarts.md)

    async def settled(self, patience_s: float) -> None:
        """Wait for running clean-ups, for `patience_s` at the latest."""
        if self._looking:
            await asyncio.wait(self._looking, timeout=patience_s)

    def hand_over(self, outgoing: Outgoing) -> None:
        """Release every launch. Placeholders stay for the next daemon to hold."""
        for launch_id, launch in self._launches.items():
            if launch.mounts is not None and (left := self._bridge.link(launch_id)) is not None:
                left.kill()
                left.close()
            expected, link = self._bridge.take(launch_id)
            if launch.mounts is not None or (expected is None and link is None):
                continue
            done = link is not None and link.decoder_last != ""
            record = LaunchRecord(
                launch_id,
                launch.view.placeholders,
                launch.view.watched,
                launch.territory,
                () if done else launch.pending_setup.options.mounts,
                () if done else launch.pending_setup.options.late,
                None if done else CaptureRecord(launch.pending_setup.ability, launch.pending_setup.network),
                b"" if expected is None else expected.configuration.encode(),
                None if expected is None else expected.options,
                link,
                *_limits_of(launch),
                launch.view.guards,
                launch.pending_setup.options.overlays,
                launch.pending_setup.options.tmp_size,
            )
            outgoing.add("launch", record, launch_id, () if link is None else link.ends)
        self._launches.clear()
        for overlay in self._overlays.hand_over():
            outgoing.add("overlay", overlay)

    def keep(self, launch_id: str, outgoing: Outgoing) -> bool:
        """Add the crash entry of a running command; release nothing.

        Returns False when it does not run."""
        launch, link = self._launches.get(launch_id), self._bridge.link(launch_id)
        kept = None if link is None else link.kept
        if launch is None or kept is None:
            return False
        record = LaunchRecord(
            launch_id,
            launch.view.placeholders,
            launch.view.watched,
            launch.territory,
            link=kept,
            guards=launch.view.guards,
        )
        limits, processes = _limits_of(launch)
        record = replace(record, limits=limits, processes=processes, overlays=launch.pending_setup.options.overlays)
        outgoing.add("launch", record, launch_id, kept.ends)
        return True

    def inherit(self, launches: Iterable[LaunchRecord], overlays: Iterable[OverlayRecord] = ()) -> None:
        """Take over the launches of an earlier daemon, for `resume`, and its overlays."""
        for overlay in overlays:
            self._overlays.inherit(overlay)
        self._inherited.update((launch.launch_id, launch) for launch in launches)

    def resume(self, launch_id: str, observer: Observer) -> LaunchHandle | None:
        """Go on with an inherited launch for `observer`. None for an unknown one."""
        record = self._inherited.pop(launch_id, None)
        if record is None:
            return None
        try:
            hold = self._placeholders.hold(record.placeholders, record.watched)
        except DaemonError as error:  # a removed placeholder: the mount in the sandbox still protects the name
            self._bridge.log("placeholder of an inherited command is gone", error=error.message)
            hold = self._placeholders.hold((), record.watched)
        territory = record.territory or Territory(())
        self._cleanup.resume(launch_id, territory)
        view = FileView((), record.placeholders, record.watched, guards=record.guards, places=territory.places)
        wanted = record.capture or CaptureRecord(NOTHING, NetworkPlan())
        pending_setup = PendingSetup(
            BwrapOptions((), False, record.mounts, record.late, (), record.overlays, record.tmp_size),
            wanted.ability,
            wanted.network,
        )
        if record.link is not None and record.link.init_pid is not None:
            self._overlays.adopt(record.overlays, record.link.init_pid)
        late_names = LateNames(record.guards, self._appearances, self._worker, partial(self._paced, launch_id))
        forget = partial(self._forget, launch_id, late_names)
        launch = Launching(
            launch_id, observer, hold, self._bridge.log, view, territory, pending_setup, self._look_after, forget,
            self._cleanup.claimed,
        )  # fmt: skip
        launch.was_claimed = record.link is not None
        launch.must_stand = record.link is None
        capture = capture_for(wanted.ability, wanted.network)
        completing: Preparation = self._completion.of(
            pending_setup.options, capture, partial(self._unprotected, launch)
        )
        if record.guards:
            completing = GuardedSetup(completing, late_names)
        if record.guards and record.link is not None and record.link.init_pid is not None:
            late_names.begin(record.link.init_pid)
        groups = NO_GROUPS if self._tools is None else self._tools.groups
        limits = CommandLimits(launch_id, record.limits, record.processes, groups, self._watch)
        if limits.wanted:
            launch.take_limits(limits)
            completing = LimitedSetup(completing, limits)
            if record.link is not None:
                limits.resume(record.link.init_pid, record.link.pid)
        try:
            if record.link is None:
                configuration = LaunchConfiguration.decode(record.configuration)
                stays = launch.clear_up if configuration.flags & Flags.STAY else None
                launch.handle = self._bridge.expect(
                    launch_id, ExpectedLaunch(configuration, record.options, launch, completing, stays)
                )
            else:
                launch.handle = self._bridge.resume_link(launch_id, record.link, launch, completing, launch.clear_up)
        except DaemonError:
            hold.release()
            self._cleanup.forget(launch_id)
            raise
        self._launches[launch_id] = launch
        return launch

    def inside(self, descriptor: int) -> NamespaceHold:
        """Return the network of a sandbox, by an inherited descriptor."""
        return NamespaceHold(self._worker, descriptor)

    def end_inherited(self) -> list[str]:
        """End the launches whose session could not be taken over; return their ids."""
        left = list(self._inherited.items())
        for launch_id, record in left:
            launch = self.resume(launch_id, NullObserver())
            if launch is not None and record.link is not None:
                launch.kill()
            elif launch is not None:
                launch.cancel()
        return [launch_id for launch_id, _ in left]

    def end_left(self) -> None:
        """End all remaining launches with the daemon, and wait for their end.

        A failed hand-over or start leaves them. None may go on when its placeholders are removed."""
        ends = [number for one in self._inherited.values() if one.link is not None for number in one.link.ends]
        for launch_id in self._launches:
            link = self._bridge.link(launch_id)
            ends += () if link is None else link.ends
        if ends:
            self._bridge.log("commands are ended with their daemon", processes=len(ends))
            end_processes(ends)


class PreparedLaunch:
    """The handle of a prepared sandbox."""

    def __init__(self, backend: LinuxBackend, launch: Launching) -> None:
        self._backend, self._launch = backend, launch
        self.cancel, self.terminate, self.kill = launch.cancel, launch.terminate, launch.kill

    def look(self) -> asyncio.Future[Any]:
        return self._backend.look(self._launch)

    async def claim(self, arguments: Sequence[str], observer: Observer) -> None:
        await self._backend.claim(self._launch, arguments, observer)


def _limits_of(launch: Launching) -> tuple[Limits, ProcessLimit | None]:
    return (NO_LIMITS, None) if launch.limits is None else (launch.limits.limits, launch.limits.processes)


def _on_nothing(path: str) -> bool:
    return False


def territory_of(view: FileView) -> Territory:
    """Return the territory of a command that starts now with this view."""
    facts = view.facts
    scans = () if facts is None else facts.scans.values()
    known = tuple(one.path for scan in scans for one in scan.git_dirs if one.names)  # without, nothing in it is guarded
    excluded = () if facts is None else facts.excluded
    return Territory(view.places, excluded, known, time.time_ns() - CLOCK_STEP_NS)


def without_protection(territory: Territory, lost: Sequence[str]) -> Territory:
    """Return a territory without the repositories of these paths; of a path elsewhere, any can be the reason."""
    at = [[one for one in territory.known if is_below(path, one) or is_below(one, path)] for path in lost]
    left = () if [] in at else tuple(one for one in territory.known if not any(one in some for some in at))
    return replace(territory, known=left)
