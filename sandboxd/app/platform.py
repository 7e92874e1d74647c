"""What the daemon needs of the operating system it runs on, and how that is chosen. `app.linux` and `app.macos` make
one; tests put another in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from sandboxd.backends.base import Backend
from sandboxd.daemon.state import Step
from sandboxd.handover.document import Incoming, Outgoing
from sandboxd.plan.host_facts import SocketsAtStart
from sandboxd.plan.request import Place
from sandboxd.policy.decision import Decision
from sandboxd.policy.model import Policy
from sandboxd.runtime.session import Inherited, LaunchPlanner
from sandboxd.runtime.socket_gate import FindSockets


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a back end stands on: the daemon's private directory, and the policy of the daemon itself."""

    directory: str
    kept: str
    """A private directory that outlives the daemon and the machine's next start."""
    policy: Callable[[], Policy]
    environment: Mapping[str, str]
    log: FilteringBoundLogger
    before: Incoming = field(default_factory=Incoming)
    """What another daemon has left; a back end takes its parts of it."""


@dataclass(frozen=True, slots=True)
class LaunchHandover:
    """How the sandboxes of a back end go from one daemon to the next. `prepared` takes nothing more in and waits, so
    long at most, until none is in the middle of being completed; `hand_over` lets go of them; `inherited` goes on with
    one, and `end_inherited` ends those that nobody has resumed and says which they were. `keep` writes down what is
    needed of one that runs, and lets go of nothing; False when it does not run."""

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
    """What differs between operating systems, and what tests replace."""

    backend: Backend
    planner: ExplainingPlanner
    steps: Callable[[], Awaitable[Sequence[Step]]]
    layers: Callable[[], tuple[str, ...]]
    daemon_paths: Callable[[], tuple[str, ...]] = tuple
    """What the daemon executes and imports, which no sandbox may write."""
    warnings: Callable[[], tuple[str, ...]] = tuple
    """What is not as it should be now, for `status`."""
    scan_warnings: Callable[[], tuple[str, ...]] = tuple
    """The same about the look at files; a command tells them when they have changed."""
    captures: Callable[[], bool] = bool
    """Whether connections that ignore the proxy variables are captured; asked once the back end is ready."""
    find_sockets: FindSockets = lambda places: SocketsAtStart()
    """The Unix sockets that are there now; only asked where connects to them are."""
    launch_handover: LaunchHandover | None = None
    """None where the sandboxes cannot outlive their daemon."""


Assemble = Callable[[BackendContext], AbstractAsyncContextManager[Platform]]
