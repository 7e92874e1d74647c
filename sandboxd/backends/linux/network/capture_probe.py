"""The probe of what can be captured on this machine, with a real sandbox.

A minimal sandbox is launched over the bridge. While it waits for GO, the programs are tried in its network namespace,
the best first. No simpler test is reliable: entering its user namespace depends on the system's rules, and a kernel
module for the packet rules loads, or does not, at first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, Listeners, SandboxNetwork
from sandboxd.backends.linux.helper.bridge import Bridge, ExpectedLaunch
from sandboxd.backends.linux.helper.launch_configuration import LaunchConfiguration
from sandboxd.backends.linux.network.capture import Ability, Reach, capture_for
from sandboxd.backends.linux.network.namespace_request import NamespaceError
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.network.netlink import Family
from sandboxd.backends.linux.session_overlays import why_no_overlays
from sandboxd.children import Child
from sandboxd.plan.network import NetworkPlan
from sandboxd.policy.violation import DenialEvent
from sandboxd_client.records import dataclass

PATIENCE_S = 20.0
_BOTH = (Family.V4, Family.V6)
ATTEMPTS = tuple(Ability(reach, families) for reach in Reach for families in (_BOTH, _BOTH[:1]))
"""In order of preference. A machine without IPv6 has none inside either."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result; `is_final` unless the probe itself failed."""

    ability: Ability
    is_final: bool
    no_overlays: str = ""
    """The reason why no overlay can be mounted, or ""."""


async def probe_capture(
    bridge: Bridge,
    worker: NamespaceWorker,
    ticket: str,
    argv: Sequence[str],
    configuration: LaunchConfiguration,
    directory: str = "",
) -> Probed:
    """Probe with a minimal sandbox.

    `argv` launches it by this ticket; `configuration` is for its helper, with Flags.WAIT. An overlay is tried in
    `directory`, which is made and removed."""
    found: list[Probed] = []
    observer = _ProbeObserver()
    handle = bridge.expect(ticket, ExpectedLaunch(configuration, None, observer, _Trial(worker, directory, found)))
    try:
        child = Child(argv)
    except OSError as error:
        handle.cancel()
        why = f"cannot start a sandbox: {error.strerror}"
        return Probed(Ability(None, reason=why), is_final=False, no_overlays=why)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await child.over()
            if observer.is_claimed:
                await observer.over.wait()
    except TimeoutError:
        pass
    finally:
        handle.cancel()
        status = await child.end()
    if found:
        return found[0]
    reason = observer.reason or f"the sandbox ended with status {status}"
    why = f"cannot probe the capture: {reason}"
    return Probed(Ability(None, reason=why), is_final=False, no_overlays=why)


class _Trial:
    """The set-up of the probe's sandbox."""

    def __init__(self, worker: NamespaceWorker, directory: str, found: list[Probed]) -> None:
        self._worker = worker
        self._directory = directory
        self._found = found

    def born(self, pid: int, bubblewrap: int) -> None: ...

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None]:
        return self._try(pid, listeners)

    async def _try(self, pid: int, listeners: Listeners) -> None:
        ability = await _try_all(listeners, self._worker)
        why = await why_no_overlays(self._worker, listeners.namespace, pid, self._directory)
        self._found.append(Probed(ability, True, why))

    def abandon(self) -> None: ...


async def _try_all(listeners: Listeners, worker: NamespaceWorker) -> Ability:
    reason = ""
    for attempt in ATTEMPTS:
        capture = capture_for(attempt, NetworkPlan())
        assert capture is not None
        try:
            sockets = await capture.begin(worker, listeners.namespace)
        except NamespaceError as error:
            reason = reason or error.message
            continue
        for one in sockets:
            one.close()
        return Ability(attempt.reach, attempt.families, reason)
    return Ability(None, reason=reason)


class _ProbeObserver:
    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.is_claimed = False
        self.reason = ""

    def claimed(self, pid: int) -> None:
        self.is_claimed = True

    def listening(self, listeners: Listeners) -> None:
        listeners.close()

    def starting(self, inside: SandboxNetwork | None = None) -> None: ...

    def listens(self) -> None: ...

    def started(self) -> None: ...

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self.reason = self.reason or reason

    def refused(self, refusal: DenialEvent) -> None: ...

    def lost(self, count: int) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        answer(0)

    def ended(self, status: int | None) -> None:
        self.over.set()
