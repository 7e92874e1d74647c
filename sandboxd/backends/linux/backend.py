"""The Linux back end: a Plan becomes bubblewrap and helper arguments, and a ticket waiting at the bridge."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sandboxd.backends.base import Answer, ConnectAttempt, Launch, LaunchHandle, Listeners, Observer, Refusal
from sandboxd.backends.linux.bridge import Bridge, Expected
from sandboxd.backends.linux.bridge_protocol import (
    INIT_WORDS,
    OPTIONS_DESCRIPTOR,
    Configuration,
    Flags,
    Listener,
)
from sandboxd.backends.linux.bwrap import probe_options, render
from sandboxd.backends.linux.capture import NOTHING, Ability, capture_for
from sandboxd.backends.linux.capture_probe import probe_capture
from sandboxd.backends.linux.completion import Completion
from sandboxd.backends.linux.netns import NamespaceWorker
from sandboxd.backends.linux.seccomp import build_filter
from sandboxd.backends.linux.supervision import flags_of, layers_of, without_notification
from sandboxd.errors import LaunchError, SandboxdError
from sandboxd.plan.facts import Facts
from sandboxd.plan.plan import Plan
from sandboxd.policy.violation import ViolationKind, ViolationSource

HTTP_PORT = 3128
SOCKS_PORT = 1080
GRACE_MS = 1500
EXPIRES_IN_S = 60.0
_BACKLOG = 4096
_LISTENERS = (Listener.tcp("127.0.0.1", HTTP_PORT, _BACKLOG), Listener.tcp("127.0.0.1", SOCKS_PORT, _BACKLOG))

LAYERS = ("seccomp", "network-proxy")
"""What this back end adds to the layers that the mounts and namespaces of a plan give."""
WEAKER = {"namespaces": "namespaces-weaker"}
"""What a layer is called where `enableWeakerNestedSandbox` had to be used."""
WEAKER_WARNING = (
    "weaker nested sandbox: this container allows no /proc of its own, so the command sees the names and arguments of "
    "the processes around it, and /proc is read-only (sandbox.enableWeakerNestedSandbox)"
)


class Hold(Protocol):
    def release(self) -> tuple[str, ...]:
        """Let go; says which protected names had appeared and were moved aside."""


class Placeholders(Protocol):
    """Keeps the empty directories that stand for absent protected names while a sandbox needs them."""

    async def prepare(self, paths: tuple[str, ...]) -> None:
        """Do what `hold` would have to wait for the disk for."""

    def hold(self, paths: tuple[str, ...], watched: tuple[tuple[str, ...], ...]) -> Hold: ...


class Planted(Protocol):
    """Knows what commands leave behind in the places that facts are about (`host.facts`)."""

    def unchanged(self, facts: Facts) -> bool:
        """Whether nothing can have been left. At once."""
        ...

    async def planted(self, facts: Facts) -> tuple[str, ...]:
        """Make it harmless; the paths that were given another name. Raises SandboxdError, OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What this back end runs: absolute paths. `helper` is our own build for this machine."""

    helper: str
    bwrap: str
    weaker_nesting: bool = False
    unwatched: str = ""
    """Why the kernel does not let system calls be watched; empty where it does."""


class LinuxBackend:
    """`tools` finds what is needed, proves that a sandbox can be started with it, and raises HostError otherwise; its
    answer is kept by whoever gives it, since it is asked before every launch. `worker` reaches into the namespaces of
    the sandboxes; how far is tried once, when the tools are there."""

    name = "linux"

    def __init__(
        self,
        bridge: Bridge,
        machine: str,
        tools: Callable[[], Awaitable[Tools]],
        placeholders: Placeholders,
        planted: Planted,
        worker: NamespaceWorker,
    ) -> None:
        self._completion = Completion(worker)
        self._bridge = bridge
        self._machine = machine
        self._find_tools = tools
        self._tools: Tools | None = None
        self._placeholders = placeholders
        self._planted = planted
        self._looking: set[asyncio.Task[None]] = set()
        self._worker = worker
        self.ability: Ability = NOTHING
        self._probed = False
        self._probing = asyncio.Lock()

    async def aclose(self) -> None:
        """Wait until what ended commands have left has been looked through."""
        while self._looking:
            await asyncio.wait(self._looking)

    @property
    def warnings(self) -> tuple[str, ...]:
        """In which way the next sandbox is less than it should be."""
        return (WEAKER_WARNING,) if self._tools is not None and self._tools.weaker_nesting else ()

    def named(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """The layers of the next command by the names that they deserve on this machine."""
        return tuple(WEAKER.get(layer, layer) for layer in layers) if self.warnings else layers

    async def ready(self) -> None:
        self._tools = await self._find_tools()
        if not self._probed:
            await self._probe(self._tools)

    async def _probe(self, tools: Tools) -> None:
        async with self._probing:
            if self._probed:
                return
            ticket = secrets.token_hex(16)
            words = (*probe_options(weaker=tools.weaker_nesting), "--", *INIT_WORDS)
            argv = (tools.helper, "launch", self._bridge.path, ticket, "--", tools.bwrap, *words)
            configuration = Configuration(
                arguments=(b"true",),
                filter=build_filter(self._machine),
                listeners=_LISTENERS,
                grace_ms=GRACE_MS,
                flags=Flags.WAIT,
            )
            probed = await probe_capture(self._bridge, self._worker, ticket, argv, configuration)
            self.ability, self._probed = probed.ability, probed.is_final
            if self.ability.reason:
                self._bridge.log("network_capture_limited", reason=self.ability.reason)

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[Launch, LaunchHandle]:
        if self._tools is None:
            raise LaunchError("backend_not_ready", "the back end has not been made ready", hint="a fault of ours")
        supervision, missing = plan.supervision, tuple[str, ...]()
        if self._tools.unwatched:
            supervision, missing = without_notification(supervision, self._tools.unwatched)
        options = render(plan, weaker=self._tools.weaker_nesting, root=os.geteuid() == 0)
        configuration = Configuration(
            arguments=tuple(os.fsencode(word) for word in plan.argv),
            filter=build_filter(self._machine, supervision),
            listeners=_LISTENERS,
            grace_ms=GRACE_MS,
            flags=Flags.WAIT | flags_of(supervision),
        )
        await self._placeholders.prepare(plan.view.placeholders)
        hold = self._placeholders.hold(plan.view.placeholders, plan.view.watched)
        capture = capture_for(self.ability, plan.network)
        launch = _Launching(observer, hold, self._bridge.log, partial(self._look_after, launch_id, plan.view.facts))
        launch.handle = self._bridge.expect(
            launch_id,
            Expected(
                configuration,
                b"".join(os.fsencode(option) + b"\0" for option in options.options) if options.needs_file else None,
                launch,
                partial(self._completion.begin, options=options, capture=capture),
            ),
        )
        words = ("--args", str(OPTIONS_DESCRIPTOR)) if options.needs_file else options.options
        stage = "launch-args" if options.needs_file else "launch"
        tools, bridge = self._tools, self._bridge.path
        argv = (tools.helper, stage, bridge, launch_id, "--", tools.bwrap, *words, "--", *INIT_WORDS)
        layers = (*plan.layers, *LAYERS, *layers_of(supervision), *self.ability.layers(plan.network))
        warnings = (*self.warnings, *self.ability.warnings(plan.network), *missing)
        layers = self.named(layers)
        return Launch(argv, layers, warnings, EXPIRES_IN_S, reachable=capture is not None), launch


    def _look_after(self, launch_id: str, facts: Facts | None, launch: _Launching, status: int | None) -> None:
        """A command has ended: tell so, after what it has planted has been made harmless."""
        if facts is None or self._planted.unchanged(facts):
            launch.over(status)
            return
        task = asyncio.get_running_loop().create_task(
            self._look_through(facts, launch, status), name=f"planted-{launch_id}"
        )
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look_through(self, facts: Facts, launch: _Launching, status: int | None) -> None:
        try:
            for path in await self._planted.planted(facts):
                launch.moved_aside(path)
        except (SandboxdError, OSError) as error:
            self._bridge.log("what a command has left could not be looked through", error=str(error))
        finally:
            launch.over(status)


class _Launching:
    """One launch, seen from both sides: passes everything on, and lets go of the placeholders when it is over."""

    def __init__(
        self,
        observer: Observer,
        hold: Hold,
        log: Callable[..., None],
        look_after: Callable[[_Launching, int | None], None],
    ) -> None:
        self._observer = observer
        self._hold = hold
        self._log = log
        self._look_after = look_after
        self._claimed = False
        self.handle: LaunchHandle | None = None

    def claimed(self, pid: int) -> None:
        self._claimed = True
        self._observer.claimed(pid)

    def listening(self, listeners: Listeners) -> None:
        self._observer.listening(listeners)

    def started(self) -> None:
        self._observer.started()

    def refused(self, refusal: Refusal) -> None:
        self._observer.refused(refusal)

    def lost(self, count: int) -> None:
        self._observer.lost(count)

    def connecting(self, attempt: ConnectAttempt, answer: Answer) -> None:
        self._observer.connecting(attempt, answer)

    def failed(self, reason: str) -> None:
        self._observer.failed(reason)

    def ended(self, status: int | None) -> None:
        for moved in self._hold.release():
            self.moved_aside(moved.rpartition(".refused-")[0])
        if self._claimed:
            self._look_after(self, status)
        else:
            self.over(status)

    def moved_aside(self, path: str) -> None:
        """Something that a program outside would obey has been given another name."""
        self._log("a protected name appeared during a command and was moved aside", path=path)
        self._observer.refused(
            Refusal(ViolationKind.WRITE, "create", path, ViolationSource.DAEMON, hint=f"see {path}.refused-*")
        )

    def over(self, status: int | None) -> None:
        self._observer.ended(status)

    def cancel(self) -> None:
        self._hold.release()
        if self.handle is not None:
            self.handle.cancel()

    def terminate(self) -> None:
        if self.handle is not None:
            self.handle.terminate()

    def kill(self) -> None:
        if self.handle is not None:
            self.handle.kill()
