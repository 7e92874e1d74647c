"""Composition of the Linux back end: bubblewrap, the helper and the bridge."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from sandboxd.app.loaded_code import linked_files, own_code, source_trees
from sandboxd.app.platform import BackendContext, LaunchHandover, Platform
from sandboxd.backends.linux.backend import LinuxBackend
from sandboxd.backends.linux.bwrap.bwrap_options import PROBE_PARTS, probe_options
from sandboxd.backends.linux.bwrap.orphans import end_orphans
from sandboxd.backends.linux.command_limits import (
    CommandLimits,
    ControlGroups,
    find_control_groups,
    group_of,
    mounted_groups,
)
from sandboxd.backends.linux.helper.bridge import Bridge
from sandboxd.backends.linux.helper.launch_records import BridgeRecord, LaunchRecord
from sandboxd.backends.linux.helper.supervision import ABSENT_NAMES, NOTIFICATION, PLACEHOLDERS
from sandboxd.backends.linux.landlock.confinement import Landlock
from sandboxd.backends.linux.landlock.landlock_probe import REMEDY as LANDLOCK_REMEDY
from sandboxd.backends.linux.landlock.landlock_probe import find_landlock
from sandboxd.backends.linux.launch_recipe import LAYERS as LINUX_LAYERS
from sandboxd.backends.linux.launch_recipe import PROCESS_LIMIT, WEAKER_WARNING, LinuxTools
from sandboxd.backends.linux.network.capture import NOTHING, Reach
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.network.unix_sockets import with_names
from sandboxd.backends.linux.session_overlays import OverlayRecord
from sandboxd.errors import HostError
from sandboxd.handover.document import Outgoing
from sandboxd.host.fact_source import HostFacts
from sandboxd.host.features import (
    CheckStep,
    SandboxProbe,
    check_git,
    check_host,
    closed_memory,
    why_unbounded,
    why_unguarded,
    why_unwatched,
)
from sandboxd.host.git.launch_journal import LaunchJournal
from sandboxd.host.git.pending_cleanups import log_results
from sandboxd.host.git.repository_cleanup import RepositoryCleanup
from sandboxd.host.helper_program import find_helper, machine_name
from sandboxd.host.placeholders.placeholder_set import Placeholders, PlaceholdersRecord
from sandboxd.host.socket_files import find_sockets
from sandboxd.host.watch.appearances import Appearances
from sandboxd.plan.host_facts import Facts
from sandboxd.plan.network import network_plan
from sandboxd.plan.plan import LAYERS as PLAN_LAYERS
from sandboxd.plan.plan import Layout, limit_processes, make_layout
from sandboxd.plan.planner import Planner as HostPlanner
from sandboxd.plan.request import Place
from sandboxd.policy.model import Policy
from sandboxd.rpc.peer import Identity, identify_runner
from sandboxd.runtime.session import Inherited
from sandboxd_client.programs import find

_OVERLAYS = "the host's /tmp shows through, and what commands write there is their session's"


class LogOnChange:
    """Logger of changes in the abilities of this host, not of each command."""

    def __init__(self, log: Callable[..., object]) -> None:
        self._log = log
        self._last: tuple[str, str] = ("", "")

    def now(self, event: str, error: HostError | None = None) -> None:
        """Log a changed state; `event` is empty when all is well."""
        why = error.message if error is not None else ""
        if (event, why) != self._last and event and error is not None:
            self._log(event, why=why, slug=error.slug)
        self._last = (event, why)


@asynccontextmanager
async def linux_platform(context: BackendContext) -> AsyncIterator[Platform]:
    """Assemble the Linux back end. Raises HostError when the helper is missing."""
    helper, launcher, machine = find_helper(), find_helper(name="launch"), machine_name()
    search_path = context.environment.get("PATH") or ""
    executed = dict.fromkeys(own_code(os.path.dirname(os.path.dirname(helper))))
    strict, weaker = probe_options(), probe_options(weaker=True)
    probe, weaker_probe = SandboxProbe(strict), SandboxProbe(weaker)
    own = Identity.own()
    state_log = LogOnChange(context.log.warning)

    unwatched = await asyncio.to_thread(why_unwatched, helper)
    unbounded = why_unbounded()
    landlock = await asyncio.to_thread(find_landlock, helper)
    unguarded = await asyncio.to_thread(
        why_unguarded, helper, unwatched or closed_memory(), "" if landlock.confinement else landlock.reason
    )
    groups = await asyncio.to_thread(_find_groups)
    if landlock.slug:
        context.log.warning("Landlock is not used", why=landlock.reason, slug=landlock.slug)

    def writable() -> tuple[str, ...]:
        return tuple(rule.path for rule in context.policy().files.allow_write if not rule.glob)

    def daemon_paths() -> tuple[str, ...]:
        configured = context.policy().platform.bwrap_path
        return tuple(executed) if configured is None else (*executed, configured)

    async def tools() -> LinuxTools:
        wanted = context.policy().platform
        try:
            bwrap = await probe.ready(wanted.bwrap_path, search_path, writable())
            executed[bwrap.path] = None
            state_log.now("")
            closed = unwatched or closed_memory()
            return LinuxTools(launcher, bwrap.path, False, closed, unbounded, groups, landlock, unguarded)
        except HostError as error:
            if not wanted.weaker_nested_sandbox:
                state_log.now("no sandbox can be started", error)
                raise
            because = error
        try:
            bwrap = await weaker_probe.ready(wanted.bwrap_path, search_path, writable())
            executed[bwrap.path] = None
        except HostError as error:
            state_log.now("no sandbox can be started", error)
            raise
        state_log.now("sandboxes are weaker than usual (enableWeakerNestedSandbox)", because)
        closed = unwatched or closed_memory()
        return LinuxTools(launcher, bwrap.path, True, closed, unbounded, groups, landlock, WEAKER_WARNING)

    async def steps() -> Sequence[CheckStep]:
        configured = context.policy().platform.bwrap_path
        found = await asyncio.to_thread(check_host, strict, weaker, PROBE_PARTS, configured, search_path, writable())
        with contextlib.suppress(HostError):  # the steps report the reason
            await backend.ready()
        tried = await asyncio.to_thread(find_landlock, helper)
        advice = await asyncio.to_thread(check_git)
        limits = CheckStep("limits", groups.found, groups.text, required=False)
        overlay = CheckStep("overlay", not backend.no_overlays, backend.no_overlays or _OVERLAYS, required=False)
        probed = () if backend.ability is NOTHING else (_capture_step(backend), overlay)  # what a sandbox tries
        advised = (*probed, limits, advice, _own_code_step())
        return (*found, _landlock_step(tried), _absence_step(unguarded), *advised)

    def make(policy: Policy, place: Place, found: Facts, shells: tuple[str, ...]) -> Layout:
        guards = not unguarded and not policy.platform.weaker_nested_sandbox
        return make_layout(policy, place, found, shells, guards=guards)

    cleanup = RepositoryCleanup(LaunchJournal(os.path.join(context.kept, "launches")), log_results(context.log.warning))
    facts = HostFacts(cleanup.made)
    placeholders = Placeholders(os.path.join(context.kept, "placeholders"))
    worker = NamespaceWorker(find_helper(name="namespaces"), context.log.warning)
    path = os.path.join(context.directory, "bridge.sock")
    bridge = Bridge(path, lambda peer: identify_runner(peer, own), context.log.warning, cleanup.made.made)
    appearances = Appearances(context.log.warning)
    temporary = context.temporary or context.kept
    backend = LinuxBackend(bridge, machine, tools, placeholders, cleanup, worker, appearances, temporary)
    async with AsyncExitStack() as stack:
        stack.callback(facts.close)
        stack.callback(appearances.close)
        for pid in await asyncio.to_thread(end_orphans):
            context.log.info("ended an orphan of an incomplete sandbox", pid=pid)
        for path in await asyncio.to_thread(placeholders.recover):
            context.log.info("removed a placeholder of an earlier daemon", path=path)
        stack.callback(placeholders.close)
        for held in context.before.take("placeholders", PlaceholdersRecord):
            placeholders.resume(held)
        placeholders.follow()
        stack.push_async_callback(worker.aclose)
        stack.push_async_callback(cleanup.aclose)
        inherited = context.before.take("launch", LaunchRecord)
        try:
            await cleanup.take_over(frozenset(one.launch_id for one in inherited if one.link is not None))
        except HostError as error:  # the journals stay for the next daemon
            context.log.warning("repository clean-up of earlier commands failed", error=error.message)
        backend.inherit(inherited, context.before.take("overlay", OverlayRecord))
        bridges = context.before.take("bridge", BridgeRecord)
        if bridges:
            bridge.resume(bridges[0])
        else:
            bridge.open()
        stack.callback(bridge.close)
        stack.callback(backend.end_left)
        stack.push_async_callback(backend.aclose)

        async def prepared(patience_s: float) -> None:
            await bridge.prepared(patience_s)
            await backend.settled(patience_s)

        def hand_over(outgoing: Outgoing) -> None:
            backend.hand_over(outgoing)
            cleanup.hand_over()
            outgoing.add("bridge", bridge.hand_over())
            outgoing.add("placeholders", placeholders.hand_over())

        def end_inherited() -> list[str]:
            ended = backend.end_inherited()
            if bridges:
                bridge.go_on()
            return ended

        yield Platform(
            backend=backend,
            planner=HostPlanner(facts, make=make),
            steps=steps,
            layers=lambda: backend.named(
                (
                    *PLAN_LAYERS,
                    *LINUX_LAYERS,
                    PLACEHOLDERS if unguarded else ABSENT_NAMES,
                    *(() if unbounded else (PROCESS_LIMIT,)),
                    *CommandLimits("", context.policy().limits, limit_processes(context.policy()), groups).layers,
                    *landlock.layers,
                    *(() if unwatched or closed_memory() else (NOTIFICATION,)),
                    *backend.ability.layers(network_plan(context.policy().network)),
                )
            ),
            daemon_paths=daemon_paths,
            captures=lambda: backend.ability.reach is not None,
            overlays=backend.overlays_of,
            warnings=lambda: backend.warnings,
            scan_warnings=lambda: (*facts.warnings, *appearances.warnings),
            find_sockets=lambda places: with_names(find_sockets(places)),
            prepare=backend.prepare,
            launch_handover=LaunchHandover(
                prepared, hand_over, Inherited(backend.resume, backend.inside), end_inherited, backend.keep
            ),
        )


def _find_groups() -> ControlGroups:
    """Return the way to control groups, which the machine has from its start on."""
    mounted, own = mounted_groups(), ""
    with contextlib.suppress(OSError):
        own = group_of("self", mounted)
    return find_control_groups(find("busctl").path, mounted, booted=os.path.isdir("/run/systemd/system"), own=own)


def _absence_step(unguarded: str) -> CheckStep:
    if not unguarded:
        return CheckStep("absent names", True, "protected names are kept absent with nothing there", required=False)
    detail = f"something empty stands at absent protected names while a command runs: {unguarded}"
    remedy = "use Linux 5.19 or newer with Landlock, and restart sandboxd"
    return CheckStep("absent names", False, detail, remedy, required=False, slug="absent_names_limited")


def _landlock_step(found: Landlock) -> CheckStep:
    """Report a new trial of Landlock; commands keep the result of the start."""
    if found.confinement is not None and not found.reason:
        return CheckStep("landlock", True, f"version {found.version}: refuses what mounts let pass", required=False)
    without = "a file given as standard input can be written, and so can FIFOs outside"
    detail = found.reason if found.confinement is not None else f"not used: {found.reason}; {without}"
    return CheckStep("landlock", False, detail, LANDLOCK_REMEDY, required=False, slug=found.slug or "landlock_limited")


def _own_code_step() -> CheckStep:
    if linked := linked_files():
        return CheckStep(
            "own code",
            False,
            f"{len(linked)} files that the daemon imports have further names (hard links), by which commands may "
            f"be able to write them: {linked[0]}",
            "install it with copies: UV_LINK_MODE=copy uv tool install --reinstall sandboxd, or UV_LINK_MODE=copy "
            "pipx reinstall sandboxd",
            required=False,
            slug="code_linked",
        )
    if not (trees := source_trees()):
        return CheckStep("own code", True, "no command can write what the daemon imports", required=False)
    return CheckStep(
        "own code",
        False,
        f"the daemon is imported from a source tree ({', '.join(trees)}): what has been imported is read-only for "
        "commands, and what lies beside it is not",
        "install it where no project is, for example with: ./dev install, in a checkout of sandboxd",
        required=False,
        slug="source_tree",
    )


def _capture_step(backend: LinuxBackend) -> CheckStep:
    reach, reason = backend.ability.reach, backend.ability.reason
    if reach is Reach.EVERY_PORT:
        return CheckStep("network capture", True, "connections are captured on every port", required=False)
    remedy = "load the kernel modules nf_tables, nft_tproxy and nft_socket, and restart sandboxd"
    found = "only the ports that rules name are captured" if reach is Reach.LISTED_PORTS else "nothing is captured"
    return CheckStep("network capture", False, f"{found}: {reason}", remedy, required=False, slug="capture_limited")
