"""The macOS back end: the argv of a supervisor of `sandbox-exec`, and two ports."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from sandboxd.backends.base import LaunchHandle, LaunchSpec, Listeners, Observer
from sandboxd.backends.macos.environment import seatbelt_environment
from sandboxd.backends.macos.log_lines import make_tag
from sandboxd.backends.macos.members import PREFIX
from sandboxd.backends.macos.monitor import LogMonitor, MonitorState
from sandboxd.backends.macos.planner import SeatbeltPlan
from sandboxd.backends.macos.reception import Reception, SeatbeltLaunch
from sandboxd.backends.macos.seatbelt.dialect import TIOCSTI
from sandboxd.backends.macos.tokens import ProxyPassword
from sandboxd.errors import HostError, LaunchError
from sandboxd.plan.plan import Plan
from sandboxd_client.records import dataclass

EXPIRES_IN_S = 60.0
BACKLOG = 512
NETWORK = "network-proxy"
LOG = "violation-log"

STAGE = 'printf s >&3; exec 3>&-; exec "$@"'
"""The first shell in the sandbox: it confirms the profile, closes that descriptor, and becomes the command."""


@dataclass(frozen=True, slots=True)
class MacosTools:
    """Absolute paths of the programs that this back end runs."""

    sandbox_exec: str
    python: str
    supervisor: str
    shell: str = "/bin/sh"
    refused: frozenset[str] = frozenset()
    """Constructs that this macOS does not compile (`seatbelt.dialect`)."""


class SeatbeltBackend:
    """The macOS back end.

    `find_tools` proves that a sandbox can start, and raises HostError otherwise; it caches its answer."""

    name = "macos"

    def __init__(
        self, reception: Reception, monitor: LogMonitor, find_tools: Callable[[], Awaitable[MacosTools]]
    ) -> None:
        self._reception = reception
        self._monitor = monitor
        self._find_tools = find_tools
        self._tools: MacosTools | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of the next command; without the log, refusals are not reported."""
        logged = (LOG,) if self._monitor.state is MonitorState.RUNNING else ()
        return ("seatbelt", NETWORK, *logged)

    async def ready(self) -> None:
        self._tools = await self._find_tools()

    async def end_session(self, directory: str) -> None:
        """Do nothing: sessions keep nothing but their directory."""

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[LaunchSpec, LaunchHandle]:
        if self._tools is None:
            raise LaunchError("backend_not_ready", "internal error: the back end is not ready")
        if not isinstance(plan, SeatbeltPlan) or plan.place is None:
            raise LaunchError("plan_of_another_system", "internal error: the plan was not made for macOS")
        password = ProxyPassword()
        listeners = open_listeners(password)
        assert listeners.http is not None and listeners.socks is not None
        ports = listeners.http.getsockname()[1], listeners.socks.getsockname()[1]
        member = PREFIX + launch_id
        tools = self._tools
        launch = SeatbeltLaunch(
            launch_id, member, listeners, observer, self._reception, terminal=TIOCSTI in tools.refused
        )
        words = plan.profile.arguments(
            tag=make_tag(launch_id, self._monitor.suffix), member=member, http_port=ports[0], socks_port=ports[1],
            refused=tools.refused,
        )  # fmt: skip
        self._monitor.expect(launch_id, observer)
        self._reception.expect(launch_id, launch)
        argv = (
            tools.python, "-I", "-S", tools.supervisor, self._reception.path, launch_id,
            *plan.removed_variables, "--",
            tools.sandbox_exec, *words, "--", tools.shell, "-c", STAGE, "sandboxd", *plan.argv,
        )  # fmt: skip
        environment = seatbelt_environment(plan.place, plan.session_tmp, plan.caller or {}, *ports, password)
        return LaunchSpec(argv, self.layers, expires_in_s=EXPIRES_IN_S, env_set=environment), launch


def open_listeners(password: ProxyPassword) -> Listeners:
    """Open two ports of 127.0.0.1 that the system chooses. Raises HostError."""
    opened: list[socket.socket] = []
    try:
        for _ in range(2):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            opened.append(listener)
            listener.bind(("127.0.0.1", 0))
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        for listener in opened:
            listener.close()
        raise HostError(
            "proxy_ports", f"cannot open a port for a command's proxy: {error.strerror}", hint="end other programs"
        ) from error
    return Listeners(http=opened[0], socks=opened[1], check=password.check)
