"""The running daemon as its methods see it: the parts, put together by `app`."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sandboxd.daemon.settings.settings_notices import SettingsNotices
from sandboxd.daemon.startup import StartUp
from sandboxd.errors import CallerError, HostError
from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.policy.display import neutralise
from sandboxd.policy.hosts.egress import actual_layers, describe_egress
from sandboxd.policy.hosts.parent_proxies import NO_PROXIES, EnvironmentProxies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sandboxd.backends.base import Backend
    from sandboxd.daemon.audit.audit_recorder import AuditRecorder
    from sandboxd.daemon.lifecycle import StopRequest
    from sandboxd.daemon.metrics import Metrics
    from sandboxd.daemon.permissions import PermissionQueries
    from sandboxd.daemon.policies import Policies
    from sandboxd.daemon.policy_queries import PolicyQueries
    from sandboxd.daemon.restart.restarting import Restarted, Restarting
    from sandboxd.daemon.settings.reload import Reloading
    from sandboxd.daemon.settings.subscriptions import SettingsSubscriptions
    from sandboxd.daemon.settings.trusting import Trusting
    from sandboxd.daemon.violation_queries import ViolationQueries
    from sandboxd.handover.document import Outgoing
    from sandboxd.runtime.events import Events
    from sandboxd.runtime.sessions import Sessions


class Step(Protocol):
    """One step of the check: what was tried, whether it worked, what was seen, and the remedy when it did not."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def detail(self) -> str: ...
    @property
    def remedy(self) -> str: ...
    @property
    def slug(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CheckReport:
    """`ok` says that a sandbox can be started; a step that failed all the same is a layer that is missing."""

    ok: bool
    steps: tuple[Step, ...]
    layers: tuple[str, ...]


@dataclass(slots=True)
class Daemon:
    """One per process. Nothing here is replaced while it runs: what changes, changes inside the parts."""

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
    steps: Callable[[], Awaitable[Sequence[Step]]]
    """Tries everything a sandbox needs on this host."""
    layers: Callable[[], tuple[str, ...]]
    """Those that a command wrapped now would get."""
    stop: StopRequest
    warnings: tuple[str, ...] = ()
    """What was not as it should be when the daemon started."""
    machine_warnings: Callable[[], tuple[str, ...]] = tuple
    """What is not as it should be with the back end now."""
    scan_warnings: Callable[[], tuple[str, ...]] = tuple
    """Those of them about the look at files: a command tells of them when they have changed."""
    restarting: Restarting = field(kw_only=True)
    hand_over: Callable[[], Awaitable[Outgoing]] = field(kw_only=True, repr=False)
    """Let go of everything, for the next daemon; then the only thing left to do is to end."""
    news: SettingsNotices = field(default_factory=SettingsNotices)
    restarts: int = 0
    restarted: Restarted | None = None
    """What came of the last of them."""
    proxies: EnvironmentProxies = NO_PROXIES
    """What the daemon's own proxy variables say."""
    startup: StartUp = field(default_factory=StartUp)
    """How long its start took."""
    activated: bool = False
    """Whether a service manager made the socket, and listens when we do not."""
    started_at: float = field(default_factory=time.time)

    async def check(self) -> CheckReport:
        """Whether a sandbox can be started, and what is missing."""
        steps = tuple(await self.steps())
        try:
            await self.backend.ready()
        except HostError:
            return CheckReport(False, steps, ())
        return CheckReport(True, steps, self.actual_layers())

    def actual_layers(self) -> tuple[str, ...]:
        """The layers of the back end, as far as the settings leave them in force."""
        return actual_layers(self.policies.own.now.policy.network, self.layers())

    def egress(self) -> tuple[str, ...]:
        """Who decides about connections, and through which proxy they go: a sentence each."""
        return describe_egress(self.policies.own.now.policy.network, self.proxies)

    async def bring_settings_up_to_date(self, session_id: str | None, cwd: str | None) -> None:
        """Read the settings files again that have changed: those of a session's project, else of a directory's, else
        the daemon's own. Whether there is such a session or directory is for others to tell."""
        directory = None
        with contextlib.suppress(CallerError):
            if session_id is not None:
                directory = self.sessions.get(session_id).cwd
            elif cwd is not None:
                directory = self.directory(cwd)
        await self.reloading.come_back()
        await self.policies.bring_up_to_date(directory)

    def directory(self, path: str) -> str:
        """`path` as a working directory: absolute, without `.`, `..` and a trailing slash. Raises CallerError
        `cwd_relative` or `cwd_missing`."""
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
                "cwd_missing", f"there is no directory {neutralise(path)}", hint="make it, or name another one"
            )
        return path
