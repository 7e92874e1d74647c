"""The Linux back end: a Plan becomes bubblewrap and helper arguments, and a ticket waiting at the bridge."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from sandboxd.backends.base import Answer, ConnectAttempt, Launch, LaunchHandle, Listeners, Observer, Refusal
from sandboxd.backends.linux import pin_links
from sandboxd.backends.linux.bridge import Bridge, Expected
from sandboxd.backends.linux.bridge_protocol import (
    INIT_WORDS,
    OPTIONS_DESCRIPTOR,
    Configuration,
    Flags,
    Listener,
)
from sandboxd.backends.linux.bwrap import render
from sandboxd.backends.linux.placement import Expected as ExpectedMount
from sandboxd.backends.linux.placement import expected_mounts, misplaced
from sandboxd.backends.linux.seccomp import build_filter
from sandboxd.errors import LaunchError
from sandboxd.plan.mounts import FileView
from sandboxd.plan.plan import Plan

HTTP_PORT = 3128
SOCKS_PORT = 1080
GRACE_MS = 1500
EXPIRES_IN_S = 60.0
_BACKLOG = 4096
_LISTENERS = (Listener.tcp("127.0.0.1", HTTP_PORT, _BACKLOG), Listener.tcp("127.0.0.1", SOCKS_PORT, _BACKLOG))

LAYERS = ("seccomp", "network-proxy")
"""What this back end adds to the layers that the mounts and namespaces of a plan give."""


class Hold(Protocol):
    def release(self) -> tuple[str, ...]:
        """Let go; says which protected names had appeared and were moved aside."""


class Placeholders(Protocol):
    """Keeps the empty directories that stand for absent protected names while a sandbox needs them."""

    async def prepare(self, paths: tuple[str, ...]) -> None:
        """Do what `hold` would have to wait for the disk for."""

    def hold(self, paths: tuple[str, ...], watched: tuple[tuple[str, ...], ...]) -> Hold: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What this back end runs: absolute paths. `helper` is our own build for this machine."""

    helper: str
    bwrap: str
    weaker_nesting: bool = False


class LinuxBackend:
    """`tools` finds what is needed, proves that a sandbox can be started with it, and raises HostError otherwise; its
    answer is kept by whoever gives it, since it is asked before every launch."""

    name = "linux"

    def __init__(
        self, bridge: Bridge, machine: str, tools: Callable[[], Awaitable[Tools]], placeholders: Placeholders
    ) -> None:
        self._bridge = bridge
        self._machine = machine
        self._find_tools = tools
        self._tools: Tools | None = None
        self._placeholders = placeholders

    async def ready(self) -> None:
        self._tools = await self._find_tools()

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[Launch, LaunchHandle]:
        if self._tools is None:
            raise LaunchError("backend_not_ready", "the back end has not been made ready", hint="a fault of ours")
        options = render(plan, weaker=self._tools.weaker_nesting, root=os.geteuid() == 0)
        configuration = Configuration(
            arguments=tuple(os.fsencode(word) for word in plan.argv),
            filter=build_filter(self._machine),
            listeners=_LISTENERS,
            grace_ms=GRACE_MS,
            flags=Flags.WAIT,
        )
        await self._placeholders.prepare(plan.view.placeholders)
        hold = self._placeholders.hold(plan.view.placeholders, plan.view.watched)
        launch = _Launching(observer, hold, self._bridge.log)
        launch.handle = self._bridge.expect(
            launch_id,
            Expected(
                configuration,
                b"".join(os.fsencode(option) + b"\0" for option in options.options) if options.needs_file else None,
                launch,
                partial(_complete, view=plan.view),
            ),
        )
        words = ("--args", str(OPTIONS_DESCRIPTOR)) if options.needs_file else options.options
        stage = "launch-args" if options.needs_file else "launch"
        tools, bridge = self._tools, self._bridge.path
        argv = (tools.helper, stage, bridge, launch_id, "--", tools.bwrap, *words, "--", *INIT_WORDS)
        return Launch(argv, (*plan.layers, *LAYERS), expires_in_s=EXPIRES_IN_S), launch


_expected: WeakKeyDictionary[FileView, tuple[bytes, tuple[ExpectedMount, ...]]] = WeakKeyDictionary()
"""Per view, for the mounts of the host that it was worked out from."""


def _complete(pid: int, bubblewrap: int, view: FileView) -> Awaitable[None] | None:
    """What is to be done to a sandbox before its command may start; `pid` is its process 1. Raises LaunchError."""
    try:
        inside, outside = _read(f"/proc/{pid}/mountinfo"), _read(f"/proc/{bubblewrap}/mountinfo")
    except OSError as error:
        raise LaunchError("launch_failed", f"the sandbox ended before it was complete: {error.strerror}") from error
    known = _expected.get(view)
    if known is None or known[0] != outside:
        known = _expected[view] = outside, expected_mounts(view.mounts, outside)
    if (wrong := misplaced(known[1], inside)) is not None:
        raise LaunchError(
            "mount_misplaced",
            f"{wrong} was moved or replaced while the sandbox was made",
            hint="try again; when it happens again, a command that still runs in the same place does this",
            data={"path": wrong},
        )
    return _pin(pid, view.open_links) if view.open_links else None


def _read(path: str) -> bytes:
    """In one piece, as the kernel makes it."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


async def _pin(pid: int, links: tuple[str, ...]) -> None:
    """Keep symlinks at protected names of a sandbox from being replaced; `pid` is its process 1. Raises LaunchError."""
    process = await asyncio.create_subprocess_exec(
        *pin_links.command_line(sys.executable, pid, links),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await process.communicate()
    if process.returncode:
        why = words.decode(errors="replace").strip() or f"status {process.returncode}"
        raise LaunchError("link_not_pinned", why, hint="remove the symbolic link, or allow writing its exact path")


class _Launching:
    """One launch, seen from both sides: passes everything on, and lets go of the placeholders when it is over."""

    def __init__(self, observer: Observer, hold: Hold, log: Callable[..., None]) -> None:
        self._observer = observer
        self._hold = hold
        self._log = log
        self.handle: LaunchHandle | None = None

    def claimed(self, pid: int) -> None:
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
            self._log("a protected name appeared during a command and was moved aside", path=moved)
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
