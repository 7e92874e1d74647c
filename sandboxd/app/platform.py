"""Interface between the daemon and the back ends; tests replace it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from sandboxd.backends.base import Backend, Prepare
from sandboxd.handover.document import Incoming, Outgoing
from sandboxd.host.features import CheckStep
from sandboxd.plan.host_facts import SocketsAtStart
from sandboxd.plan.request import Place
from sandboxd.policy.decision import Decision
from sandboxd.policy.model import Policy
from sandboxd.runtime.session import Inherited, LaunchPlanner
from sandboxd.runtime.socket_gate import FindSockets
from sandboxd_client.records import dataclass, field


@dataclass(frozen=True, slots=True)
class BackendContext:
    """Directories, policy, environment and log that a back end is made with."""

    directory: str
    kept: str
    """Private directory that outlives the daemon and the next start of the host."""
    policy: Callable[[], Policy]
    environment: Mapping[str, str]
    log: FilteringBoundLogger
    temporary: str = ""
    """Private directory that goes with the daemon."""
    before: Incoming = field(default_factory=Incoming)
    """State of an earlier daemon; a back end takes its parts."""


@dataclass(frozen=True, slots=True)
class LaunchHandover:
    """Passing of running launches from one daemon to the next.

    `prepared` accepts nothing more and waits that many seconds at most for pending sandbox set-ups. `hand_over`
    releases the launches, `inherited` resumes one, and `end_inherited` ends those that were not resumed and returns
    their names. `keep` adds a running launch to a document and releases nothing; it returns False when the launch is
    not running."""

    prepared: Callable[[float], Awaitable[None]]
    hand_over: Callable[[Outgoing], None]
    inherited: Inherited
    end_inherited: Callable[[], list[str]]
    keep: Callable[[str, Outgoing], bool] = lambda launch_id, outgoing: False


class ExplainingPlanner(LaunchPlanner, Protocol):
    async def explain(self, policy: Policy, place: Place, path: str, *, write: bool) -> Decision: ...

    async def explain_socket(self, policy: Policy, place: Place, path: str) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Platform:
    """Parts that differ between operating systems; tests replace them."""

    backend: Backend
    planner: ExplainingPlanner
    steps: Callable[[], Awaitable[Sequence[CheckStep]]]
    layers: Callable[[], tuple[str, ...]]
    daemon_paths: Callable[[], tuple[str, ...]] = tuple
    """Files that the daemon executes and imports, which no sandbox may write."""
    warnings: Callable[[], tuple[str, ...]] = tuple
    """Current problems of the back end, for `status`."""
    scan_warnings: Callable[[], tuple[str, ...]] = tuple
    """Current problems of scans; a command reports them when they have changed."""
    captures: Callable[[], bool] = bool
    """True where connections that ignore the proxy variables are captured."""
    overlays: Callable[[str, str], frozenset[str]] = lambda session_tmp, home: frozenset()
    """The directories of the host that a session's changes can be laid over (`Place.overlays`)."""
    find_sockets: FindSockets = lambda places: SocketsAtStart()
    """Search for the existing Unix sockets."""
    prepare: Prepare | None = None
    launch_handover: LaunchHandover | None = None
    """None where the sandboxes cannot outlive their daemon."""


Assemble = Callable[[BackendContext], AbstractAsyncContextManager[Platform]]
