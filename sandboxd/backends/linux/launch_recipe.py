"""The part of a launch that the commands of one layout share. Pure."""

from __future__ import annotations

import os
from dataclasses import replace
from weakref import WeakKeyDictionary

from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions, render
from sandboxd.backends.linux.bwrap.late_names import denied_names, empty_directory
from sandboxd.backends.linux.command_limits import NO_GROUPS, ControlGroups
from sandboxd.backends.linux.helper.bridge_protocol import INFO_DESCRIPTOR, INIT_WORDS, OPTIONS_DESCRIPTOR
from sandboxd.backends.linux.helper.launch import PendingSetup
from sandboxd.backends.linux.helper.launch_configuration import MAX_PORT_RANGES, Flags, LaunchConfiguration, Listener
from sandboxd.backends.linux.helper.supervision import absence_of, flags_of, layers_of, without_notification
from sandboxd.backends.linux.landlock.confinement import NO_LANDLOCK, Landlock
from sandboxd.backends.linux.network.capture import SESSION_LOCALHOST, Ability, Capture, capture_for
from sandboxd.backends.linux.seccomp.filter import build_filter
from sandboxd.errors import LaunchError
from sandboxd.plan.filesystem.mounts import FileView, Mount
from sandboxd.plan.plan import Plan, ProcessLimit
from sandboxd_client.records import dataclass

HTTP_PORT = 3128
SOCKS_PORT = 1080
_BACKLOG = 4096
LISTENERS = (Listener.tcp("127.0.0.1", HTTP_PORT, _BACKLOG), Listener.tcp("127.0.0.1", SOCKS_PORT, _BACKLOG))
INFO_WORDS = ("--info-fd", str(INFO_DESCRIPTOR))
LAYERS = ("seccomp", "network-proxy")
"""Layers beside those of a plan's mounts and namespaces."""
PROCESS_LIMIT = "process-limit"
"""The layer in which the kernel counts the processes of a command."""
WEAKER = {"namespaces": "namespaces-weaker"}
"""Names of layers under `enableWeakerNestedSandbox`."""
WEAKER_WARNING = (
    "weaker nested sandbox: this container allows no /proc of its own, so the command sees the names and arguments of "
    "the processes around it, and /proc is read-only (sandbox.enableWeakerNestedSandbox)"
)


@dataclass(frozen=True, slots=True)
class LinuxTools:
    """Absolute paths of the programs that this back end runs, and their limits."""

    launcher: str
    bwrap: str
    weaker_nesting: bool = False
    unwatched: str = ""
    """The reason why system calls cannot be watched; empty where they can."""
    unbounded: str = ""
    """The reason why processes cannot be limited; empty where they can."""
    groups: ControlGroups = NO_GROUPS
    """The way to control groups for limits."""
    landlock: Landlock = NO_LANDLOCK
    """The Landlock features of this kernel."""
    unguarded: str = ""
    """The reason why names are kept absent by placeholders; empty where without."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about degraded isolation."""
        return (WEAKER_WARNING,) if self.weaker_nesting else ()

    def named(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of layers, with the weaker names where they apply."""
        return tuple(WEAKER.get(layer, layer) for layer in layers) if self.weaker_nesting else layers


@dataclass(frozen=True, slots=True, eq=False)
class LaunchRecipe:
    """Everything of a launch but its ticket, its command and its limits; holds no view, which is its key."""

    made_from: tuple[object, ...]
    options: BwrapOptions
    options_file: bytes | None
    """The options where they are too long for an argument list."""
    configuration: LaunchConfiguration
    capture: Capture | None
    pending_setup: PendingSetup
    processes: ProcessLimit | None
    denied: frozenset[str]
    empty: str
    before: tuple[str, ...]
    """The argv as far as the ticket."""
    after: tuple[str, ...]
    layers: tuple[str, ...]
    """Layers before those of limits."""
    later_layers: tuple[str, ...]
    warnings: tuple[str, ...]

    def configure(self, argv: tuple[str, ...], *, waits: bool) -> LaunchConfiguration:
        """Return the configuration for a command, or of a sandbox that waits for one. Raises CallerError."""
        made = replace(self.configuration, arguments=tuple(map(os.fsencode, argv)))
        return replace(made, flags=made.flags | Flags.PREPARED) if waits else made

    @property
    def shares_localhost(self) -> bool:
        return SESSION_LOCALHOST in self.later_layers


class LaunchRecipes:
    """The recipes of one back end, by view; `machine` is its architecture."""

    def __init__(self, machine: str, bridge: str, grace_ms: int) -> None:
        self._machine, self._bridge, self._grace_ms = machine, bridge, grace_ms
        self._known: WeakKeyDictionary[FileView, LaunchRecipe] = WeakKeyDictionary()

    def of(self, plan: Plan, tools: LinuxTools, ability: Ability, entries: tuple[Mount, ...]) -> LaunchRecipe:
        """Return the recipe for a plan. Raises LaunchError, CallerError, PolicyError.

        `entries` of one directory follow the mount there, as they are now."""
        parts = (plan.cwd, plan.layers, plan.removed_variables, plan.supervision, plan.network, plan.processes)
        made_from = (*parts, tools, ability, entries)
        known = self._known.get(plan.view)
        if known is None or known.made_from != made_from:
            known = self._known[plan.view] = self._make(made_from, plan, tools, ability, entries)
        return known

    def _make(
        self, made_from: tuple[object, ...], plan: Plan, tools: LinuxTools, ability: Ability, entries: tuple[Mount, ...]
    ) -> LaunchRecipe:
        _check_guard(plan, tools)
        supervision, missing = plan.supervision, tuple[str, ...]()
        if tools.unwatched:
            supervision, missing = without_notification(supervision, tools.unwatched)
        options = render(plan, weaker=tools.weaker_nesting, root=os.geteuid() == 0, entries=entries)
        configuration = LaunchConfiguration(
            arguments=(b"true",),
            filter=build_filter(self._machine, supervision, (os.getuid(), os.getgid())),
            listeners=LISTENERS,
            grace_ms=self._grace_ms,
            flags=Flags.WAIT | Flags.STAY | flags_of(supervision),
            removals=tuple(os.fsencode(pattern) for pattern in plan.removed_variables),
            asked_ports=plan.network.local_ports[:MAX_PORT_RANGES],
            processes=None if tools.unbounded or plan.processes is None else plan.processes.most,
            confinement=tools.landlock.confine(options.roots),
            guard=tools.landlock.guard(plan.view),
        )
        processes = plan.processes
        if processes is not None and not tools.groups.found and configuration.processes is None:
            processes = replace(processes, counted=False)
        words = ("--args", str(OPTIONS_DESCRIPTOR)) if options.needs_file else options.options
        bounds = () if configuration.processes is None else (PROCESS_LIMIT,)
        return LaunchRecipe(
            made_from=made_from,
            options=options,
            options_file=_file_of(options) if options.needs_file else None,
            configuration=configuration,
            capture=capture_for(ability, plan.network),
            pending_setup=PendingSetup(options, ability, plan.network),
            processes=processes,
            denied=denied_names(plan.view),
            empty=empty_directory(plan.view),
            before=(tools.launcher, "launch-args" if options.needs_file else "launch", self._bridge),
            after=("--", tools.bwrap, *words, *INFO_WORDS, "--", *INIT_WORDS),
            layers=tools.named((*plan.layers, *LAYERS, *absence_of(plan.view, guards=not tools.unguarded), *bounds)),
            later_layers=tools.named((*tools.landlock.layers, *layers_of(supervision), *ability.layers(plan.network))),
            warnings=(*tools.warnings, *ability.warnings(plan.network), *missing),
        )


def _file_of(options: BwrapOptions) -> bytes:
    return b"".join(os.fsencode(option) + b"\0" for option in options.options)


def _check_guard(plan: Plan, tools: LinuxTools) -> None:
    """Check that names can be kept absent as planned. Raises LaunchError."""
    if plan.view.guards and (tools.unwatched or tools.landlock.confinement is None):
        raise LaunchError(
            "guard_lost",
            f"names cannot be kept absent as planned: {tools.unwatched or tools.landlock.reason}",
            hint="sandboxd restart",
        )
