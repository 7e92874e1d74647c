"""Composition of the macOS back end."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from sandboxd.app.loaded_code import own_code
from sandboxd.app.platform import BackendContext, Platform
from sandboxd.backends.macos import supervise
from sandboxd.backends.macos.backend import MacosTools, SeatbeltBackend
from sandboxd.backends.macos.members import Members, SeatbeltMembers, end_members
from sandboxd.backends.macos.monitor import LogMonitor, MonitorState, MonitorStatus, stream_command
from sandboxd.backends.macos.planner import SeatbeltPlanner
from sandboxd.backends.macos.probe import SANDBOX_EXEC, SeatbeltProbe, refused_constructs, try_sandbox
from sandboxd.backends.macos.reception import Reception
from sandboxd.backends.macos.seatbelt.dialect import CONSTRUCTS
from sandboxd.errors import HostError
from sandboxd.host.directories import user_directories
from sandboxd.host.fact_source import HostFacts
from sandboxd.host.features import CheckStep
from sandboxd.rpc.peer import Identity, identify
from sandboxd_client.records import dataclass, field

SUPERVISOR = os.path.abspath(supervise.__file__)
SETTLE_S = 0.1
"""Seconds that a failed command's end waits for records of a running log."""


@dataclass(frozen=True, slots=True)
class MacosDependencies:
    """Programs and system interfaces; tests replace them."""

    sandbox_exec: str = SANDBOX_EXEC
    log_command: Callable[[str], Sequence[str]] = stream_command
    members: Callable[[], Members] = SeatbeltMembers
    log_pauses_s: Sequence[float] = field(default=(1.0, 2.0, 5.0, 15.0, 60.0))


@asynccontextmanager
async def macos_platform(context: BackendContext, parts: MacosDependencies | None = None) -> AsyncIterator[Platform]:
    """Assemble the macOS back end. Raises HostError."""
    parts = parts or MacosDependencies()
    try:
        members = parts.members()
    except (AttributeError, OSError) as error:
        raise HostError(
            "members_unknown", f"cannot list the processes of a sandbox on this macOS: {error}",
            hint="report the version of macOS as an issue",
        ) from error  # fmt: skip
    probe = SeatbeltProbe(parts.sandbox_exec)
    own = Identity.own()

    async def find_tools() -> MacosTools:
        return MacosTools(parts.sandbox_exec, sys.executable, SUPERVISOR, refused=await probe.ready())

    async def settle(ticket: str, status: int | None) -> None:
        if status:
            await monitor.settle(ticket, SETTLE_S)

    async def steps() -> Sequence[CheckStep]:
        return (
            await sandbox_step(parts.sandbox_exec),
            await language_step(parts.sandbox_exec),
            monitor_step(monitor.status),
        )

    facts = HostFacts()
    paths = own_code()
    monitor = LogMonitor(
        context.log.info, parts.log_command, pauses_s=parts.log_pauses_s,
        provoke=lambda tag: try_sandbox(parts.sandbox_exec, tag),
    )  # fmt: skip
    reception = Reception(
        os.path.join(context.directory, "launch.sock"),
        lambda connection: identify(connection, own).pid,
        lambda member: end_members(members, member, context.log.warning),
        context.log.warning,
        settle,
    )
    async with AsyncExitStack() as stack:
        stack.callback(facts.close)
        await stack.enter_async_context(monitor)
        await reception.open()
        stack.push_async_callback(reception.close)
        backend = SeatbeltBackend(reception, monitor, find_tools)
        yield Platform(
            backend=backend,
            planner=SeatbeltPlanner(facts, user_directories()),
            steps=steps,
            layers=lambda: backend.layers,
            daemon_paths=lambda: paths,
            warnings=lambda: monitor_warnings(monitor.status),
        )


async def sandbox_step(sandbox_exec: str) -> CheckStep:
    """Start a sandbox anew, and report whether it holds."""
    try:
        await try_sandbox(sandbox_exec)
    except HostError as error:
        return CheckStep("sandbox", False, error.message, error.hint, slug=error.slug)
    return CheckStep("sandbox", True, f"{sandbox_exec} starts a sandbox, and it refuses what it should")


async def language_step(sandbox_exec: str) -> CheckStep:
    """Report the constructs of profiles that this macOS refuses, with what stands in their place."""
    try:
        refused = await refused_constructs(sandbox_exec)
    except HostError as error:
        return CheckStep("profile language", False, error.message, error.hint, required=False, slug=error.slug)
    told = [f"{one.name} is refused: {one.instead}" for one in CONSTRUCTS if one.name in refused]
    accepted = ", ".join(one.name for one in CONSTRUCTS)
    return CheckStep("profile language", True, "; ".join(told) or f"every construct is accepted: {accepted}")


def monitor_step(status: MonitorStatus) -> CheckStep:
    """Report the log monitor. Without it refusals hold, but are not reported."""
    if status.state is MonitorState.RUNNING:
        detail = f"the system's log is read: {status.refusals} refusals since the daemon began, {status.noise} of noise"
        return CheckStep("violation log", True, detail)
    remedy = "refusals hold all the same; see docs/macos.md"
    return CheckStep("violation log", False, _reason(status), remedy, required=False, slug="log_unavailable")


def monitor_warnings(status: MonitorStatus) -> tuple[str, ...]:
    """Return the warnings for `status`."""
    if status.state is MonitorState.RUNNING:
        return ()
    return (f"{_reason(status)}; refusals of files and services are not reported meanwhile",)


def _reason(status: MonitorStatus) -> str:
    if status.state is MonitorState.UNAVAILABLE:
        return f"the system's log cannot be read: {status.reason}"
    return "the system's log has not shown a provoked refusal yet"
