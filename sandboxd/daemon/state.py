"""State of the daemon, for its report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sandboxd.backends.base import Backend
from sandboxd.daemon.audit.audit_recorder import AuditRecorder
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.restart.restarting import Restarted
from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.startup import StartUp
from sandboxd.errors import HostError
from sandboxd.host.features import CheckStep
from sandboxd.policy.hosts.egress import actual_layers, describe_egress
from sandboxd.policy.hosts.parent_proxies import EnvironmentProxies
from sandboxd.runtime.session import with_time_limit
from sandboxd.runtime.sessions import Sessions
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result; with `ok` a sandbox can start, and failed steps are missing layers."""

    ok: bool
    steps: tuple[CheckStep, ...]
    layers: tuple[str, ...]


@dataclass(slots=True)
class DaemonState:
    """State of a running daemon, as `status` and `check` report it."""

    socket: str
    policies: Policies
    reloading: Reloading
    sessions: Sessions
    backend: Backend
    audit: AuditRecorder
    steps: Callable[[], Awaitable[Sequence[CheckStep]]]
    """Try everything that a sandbox needs on this host."""
    layers: Callable[[], tuple[str, ...]]
    """Return the layers of a command wrapped now."""
    warnings: tuple[str, ...]
    """Problems at the start of the daemon."""
    machine_warnings: Callable[[], tuple[str, ...]]
    """Present problems of the back end."""
    proxies: EnvironmentProxies
    """Proxy variables of the daemon."""
    startup: StartUp
    """Duration of the start."""
    activated: bool
    """True where a service manager owns the socket and starts the daemon."""
    started_at: float
    restarts: int
    restarted: Restarted | None = None
    """Result of the last restart."""

    async def check(self) -> CheckReport:
        """Report whether a sandbox can start, and what is missing."""
        steps = tuple(await self.steps())
        if await self.unavailable() is not None:
            return CheckReport(False, steps, ())
        return CheckReport(True, steps, self.actual_layers())

    async def unavailable(self) -> HostError | None:
        """Return why no command can be wrapped now, or None."""
        try:
            await self.backend.ready()
        except HostError as error:
            return error
        return None

    def actual_layers(self) -> tuple[str, ...]:
        """Return the layers that the settings leave in force."""
        policy = self.policies.own.now.policy
        return with_time_limit(actual_layers(policy.network, self.layers()), policy)

    def egress(self) -> tuple[str, ...]:
        """Describe which component decides on connections, and their proxy."""
        return describe_egress(self.policies.own.now.policy.network, self.proxies)
