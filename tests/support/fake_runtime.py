"""A back end and a planner that start nothing: for tests of the daemon that are about something else.

`FakeBackend.launches` has every launch; `start()` and `end()` play the helper's part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandboxd.app.platform import BackendContext, Platform
from sandboxd.backends.base import LaunchSpec, Observer
from sandboxd.errors import CallerError, HostError, PolicyError
from sandboxd.host.features import CheckStep
from sandboxd.plan.environment import EnvironmentChange
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.filesystem.mounts import FileView
from sandboxd.plan.host_facts import ResolvedPath
from sandboxd.plan.plan import Plan
from sandboxd.plan.request import NO_VARIABLES, Argv, Place, ShellText
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.model import Policy


@dataclass(slots=True, eq=False)
class FakeHandle:
    backend: FakeBackend
    launch_id: str
    plan: Plan
    observer: Observer
    running: bool = False
    log: list[str] = field(default_factory=list)

    def start(self, pid: int = 1) -> None:
        self.running = True
        self.observer.claimed(pid)
        self.observer.started()

    def end(self, status: int | None = 0) -> None:
        self.running = False
        self.observer.ended(status)

    def cancel(self) -> None:
        self.log.append("cancel")

    def terminate(self) -> None:
        self.log.append("terminate")
        if not self.backend.stubborn:
            self.end(143)

    def kill(self) -> None:
        self.log.append("kill")
        self.end(137)


class FakeBackend:
    """`unavailable` makes every start fail with that reason; `stubborn` commands ignore TERM; the network of a
    `reachable` one can be connected to; `warnings` come with each launch."""

    name = "fake"

    def __init__(self) -> None:
        self.launches: list[FakeHandle] = []
        self.unavailable = ""
        self.stubborn = False
        self.reachable = False
        self.warnings: tuple[str, ...] = ()

    async def ready(self) -> None:
        if self.unavailable:
            raise HostError("sandbox_unavailable", self.unavailable, hint="run: sandboxd check")

    async def end_session(self, directory: str) -> None: ...

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[LaunchSpec, FakeHandle]:
        handle = FakeHandle(self, launch_id, plan, observer)
        self.launches.append(handle)
        argv = ("/bin/false", launch_id, "--", *plan.argv)
        return LaunchSpec(argv, (*plan.layers, "fake"), self.warnings, reachable=self.reachable), handle


class FakePlanner:
    """Plans nothing, and keeps what it was asked. `refusal` makes every plan fail; `attribution` is that of all."""

    def __init__(self) -> None:
        self.asked: list[tuple[Policy, Place, Argv | ShellText, Mapping[str, str]]] = []
        self.refusal: PolicyError | CallerError | None = None
        self.forgotten: list[str] = []
        self.attribution: Attribution | None = None

    async def plan(
        self, policy: Policy, place: Place, command: Argv | ShellText, environment: Mapping[str, str] = NO_VARIABLES
    ) -> Plan:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((policy, place, command, environment))
        argv = command.words if isinstance(command, Argv) else ("/bin/sh", "-c", command.text)
        change = EnvironmentChange({"SANDBOX_RUNTIME": "1"}, ("SECRET",))
        return Plan(FileView((), ()), change, place.cwd, argv, attribution=self.attribution)

    async def explain(self, policy: Policy, place: Place, path: str, *, write: bool) -> Decision:
        inside = path == place.cwd or path.startswith(place.cwd + "/")
        behavior = Behavior.ALLOW if inside or not write else Behavior.DENY
        return Decision(behavior, Reason.PATH_ALLOWED if inside else Reason.READ_DEFAULT, f"{path} in {place.cwd}")

    async def explain_socket(self, policy: Policy, place: Place, path: str) -> Decision:
        return Decision(Behavior.DENY, Reason.SOCKET_NOT_LISTED, f"{path} is not listed")

    async def resolve(self, path: str) -> ResolvedPath:
        return ResolvedPath(path)

    def holds(self, plan: Plan) -> bool:
        return True

    def remove_made(self, plan: Plan, since: float) -> str:
        return ""

    def look_again(self, path: str) -> None:
        pass

    def forget(self, session_tmp: str) -> None:
        self.forgotten.append(session_tmp)


class FakeMachine:
    """`assemble` for `app.compose.run_daemon`: keeps the parts in reach of the test."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.planner = FakePlanner()
        self.steps = [CheckStep("kernel", True, "fine"), CheckStep("capture", False, "no nftables", "load nf_tables")]

    async def check(self) -> list[CheckStep]:
        return self.steps

    @property
    def machine(self) -> Platform:
        return Platform(self.backend, self.planner, self.check, lambda: ("filesystem", "fake"))

    @asynccontextmanager
    async def assemble(self, context: BackendContext) -> AsyncIterator[Platform]:
        yield self.machine
