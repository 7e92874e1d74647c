"""Running daemon as its methods see it."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sandboxd.backends.base import Backend
from sandboxd.daemon.audit.audit_recorder import AuditRecorder
from sandboxd.daemon.lifecycle import StopRequest
from sandboxd.daemon.metrics import Metrics
from sandboxd.daemon.permissions import PermissionQueries
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.daemon.restart.restarting import Restarted, Restarting
from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.settings.settings_notices import SettingsNotices
from sandboxd.daemon.settings.subscriptions import SettingsSubscriptions
from sandboxd.daemon.settings.trusting import Trusting
from sandboxd.daemon.startup import StartUp
from sandboxd.daemon.violation_queries import ViolationQueries
from sandboxd.errors import CallerError, HostError
from sandboxd.handover.document import Outgoing
from sandboxd.host.features import CheckStep
from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.policy.display import neutralise
from sandboxd.policy.hosts.egress import actual_layers, describe_egress
from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies
from sandboxd.runtime.events import Events
from sandboxd.runtime.sessions import Sessions


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result; with `ok` a sandbox can start, and failed steps are missing layers."""

    ok: bool
    steps: tuple[CheckStep, ...]
    layers: tuple[str, ...]


@dataclass(slots=True)
class Daemon:
    """Parts of a daemon. They change inside and are not replaced."""

    socket: str
    policies: Policies
    reloading: Reloading
    subscriptions: SettingsSubscriptions
    sessions: Sessions
    questions: PolicyQueries
    permissions: PermissionQueries
    trusting: Trusting
    blocked: ViolationQueries
    backend: Backend
    events: Events
    audit: AuditRecorder
    metrics: Metrics
    steps: Callable[[], Awaitable[Sequence[CheckStep]]]
    """Try everything that a sandbox needs on this host."""
    layers: Callable[[], tuple[str, ...]]
    """Return the layers of a command wrapped now."""
    stop: StopRequest
    warnings: tuple[str, ...] = ()
    """Problems at the start of the daemon."""
    machine_warnings: Callable[[], tuple[str, ...]] = tuple
    """Present problems of the back end."""
    scan_warnings: Callable[[], tuple[str, ...]] = tuple
    """Those about scans; a command reports them when they have changed."""
    restarting: Restarting = field(kw_only=True)
    hand_over: Callable[[], Awaitable[Outgoing]] = field(kw_only=True, repr=False)
    """Release everything for the next daemon. Afterwards this one can only end."""
    news: SettingsNotices = field(default_factory=SettingsNotices)
    restarts: int = 0
    restarted: Restarted | None = None
    """Result of the last restart."""
    proxies: EnvironmentProxies = NO_PROXIES
    """Proxy variables of the daemon."""
    startup: StartUp = field(default_factory=StartUp)
    """Duration of the start."""
    activated: bool = False
    """True where a service manager owns the socket and starts the daemon."""
    started_at: float = field(default_factory=time.time)

    async def check(self) -> CheckReport:
        """Report whether a sandbox can start, and what is missing."""
        steps = tuple(await self.steps())
        try:
            await self.backend.ready()
        except HostError:
            return CheckReport(False, steps, ())
        return CheckReport(True, steps, self.actual_layers())

    def actual_layers(self) -> tuple[str, ...]:
        """Return the layers that the settings leave in force."""
        return actual_layers(self.policies.own.now.policy.network, self.layers())

    def egress(self) -> tuple[str, ...]:
        """Describe which component decides on connections, and their proxy."""
        return describe_egress(self.policies.own.now.policy.network, self.proxies)

    async def bring_settings_up_to_date(self, session_id: str | None, cwd: str | None) -> None:
        """Reread changed settings of a session, a directory or the daemon, if known."""
        directory = None
        with contextlib.suppress(CallerError):
            if session_id is not None:
                directory = self.sessions.get(session_id).cwd
            elif cwd is not None:
                directory = self.directory(cwd)
        await self.reloading.come_back()
        await self.policies.bring_up_to_date(directory)

    def directory(self, path: str) -> str:
        """Return a path as a normalised directory. Raises CallerError `cwd_*`."""
        if not path.startswith("/"):
            raise CallerError(
                "cwd_relative", f"cwd is not an absolute path: {neutralise(path)}", hint="send an absolute path"
            )
        try:
            # Text alone cannot tell what `link/..` means.
            climbs = "/../" in path + "/"
            path = resolve(path, NullNameRecorder()).real if climbs else "/" + os.path.normpath(path).lstrip("/")
            found = stat.S_ISDIR(os.stat(path).st_mode)
        except (OSError, ValueError):
            found = False
        if not found:
            raise CallerError(
                "cwd_missing", f"there is no directory {neutralise(path)}", hint="create it, or name another directory"
            )
        return path
