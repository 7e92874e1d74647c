"""The interface between the runtime and the back end of an operating system.

A back end turns a Plan into a `LaunchSpec` (text only) and keeps the link to each running sandbox. It knows nothing of
sessions, proxies or RPC: it reports the events of a command to its `Observer`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from sandboxd.plan.host_facts import SocketFile
from sandboxd.plan.plan import Plan
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.violation import DenialEvent
from sandboxd_client.records import dataclass, field

LONGEST_GRACE_S = 600.0
"""Between TERM and KILL, also where no daemon kills earlier."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The argv for a client to spawn in `cwd` before it expires.

    It runs nothing by itself: without the daemon's answer it exits 125. A back end tells what it adds to the plan; the
    session completes it with what the plan and the policy say."""

    argv: tuple[str, ...]
    layers: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    expires_in_s: float = 60.0
    env_set: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables to set. May hold a password: never logged."""
    env_unset: tuple[str, ...] = ()
    """Variables to remove."""
    env_tag: str = ""
    """The same for the same variables."""
    cwd: str = ""
    reachable: bool = False
    """The host can connect into the sandbox: there will be `Listeners.inside`."""
    shares_localhost: bool = False
    """Connections to servers of the session's other commands can be captured."""
    prepared: bool = False
    """A waiting sandbox runs it: there is nothing to spawn."""
    tmp: str = ""
    """The directory with what the session writes in /tmp, where the host can see it."""


@dataclass(frozen=True, slots=True)
class SessionServer:
    """A listening TCP socket of a command; `takes_v4`: at `::`, for IPv4 too."""

    address: IPAddress
    port: int
    takes_v4: bool = False

    def is_at(self, address: IPAddress, port: int) -> bool:
        """Return whether a connection to this address and port reaches it."""
        if port != self.port:
            return False
        if self.address.is_unspecified:
            return address.version == self.address.version or self.takes_v4
        return address == self.address


class SandboxNetwork(Protocol):
    """The network of one sandbox, from outside. Its receiver closes it.

    `fileno` is the descriptor of the namespace, which it owns; -1 once it is closed."""

    def fileno(self) -> int: ...

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket:
        """Return a connected, non-blocking TCP socket of the sandbox.

        Raises OSError, and LaunchError when the sandbox has ended."""

    async def is_listening(self, address: IPAddress, port: int) -> bool:
        """Return whether a program inside listens at this address or at all of them.

        Raises LaunchError."""

    async def is_bound(self, file: SocketFile) -> bool:
        """Return whether a socket that was made inside is bound to this file now.

        Raises OSError, and LaunchError when the sandbox has ended."""

    async def servers(self) -> frozenset[SessionServer]:
        """Return what the programs inside listen at.

        Raises OSError, and LaunchError when the sandbox has ended."""

    async def lead_out(self, servers: frozenset[SessionServer]) -> None:
        """Capture connections to these servers of other sandboxes, and no others of loopback.

        Raises OSError, and LaunchError when the sandbox has ended."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Listeners:
    """The listening, non-blocking sockets of one sandbox, owned by the receiver.

    With `check` other programs can reach the sockets too, and a client has to give a user name and password that it
    accepts. `captured` accept the TCP connections that programs make to any address: getsockname of an accepted socket
    is the destination. `dns_datagram` and `dns_stream` receive traffic to port 53 of any address; the ancillary data of
    a datagram (IP_PKTINFO, IPV6_RECVPKTINFO) name that address, and the answer has to come from it. `namespace` is a
    descriptor of the network namespace, or -1 where there is none or `inside` owns it."""

    http: socket.socket | None = None
    socks: socket.socket | None = None
    namespace: int = -1
    others: list[socket.socket] = field(default_factory=list)
    check: Callable[[bytes, bytes], bool] | None = None
    captured: list[socket.socket] = field(default_factory=list)
    dns_datagram: list[socket.socket] = field(default_factory=list)
    dns_stream: list[socket.socket] = field(default_factory=list)
    inside: SandboxNetwork | None = None

    def close(self) -> None:
        """Close everything."""
        for one in (self.http, self.socks, *self.others, *self.captured, *self.dns_datagram, *self.dns_stream):
            if one is not None:
                one.close()
        if self.namespace >= 0:
            os.close(self.namespace)
            self.namespace = -1
        if self.inside is not None:
            self.inside.close()


@dataclass(frozen=True, slots=True)
class ConnectAttempt:
    """A connect() inside a sandbox that waits for an answer.

    For the Internet families `address` is text and `port` its port. For a Unix socket `address` is the path after every
    symbolic link, `port` 0, and `file` the exact socket (None from an earlier helper). `pid` is the process number in
    the sandbox, `process` its name, not yet fit for display."""

    family: int
    address: str
    port: int
    pid: int
    process: str
    file: SocketFile | None = None


AnswerConnect = Callable[[int], None]
"""Answers with an error number, or 0 to go on. Called exactly once, now or later; without effect when the attempt is
over (the program was interrupted, the sandbox has ended)."""


class Observer(Protocol):
    """The receiver of one launch's events.

    Order: claimed, starting, listening, started or failed, ended. The result of `starting` is awaited; after
    SandboxdError the command does not start. `failed` is `outdated` where files or settings have changed since the
    plan. `ended` is last, and comes exactly once for a launch that was claimed or has expired. `refused` may come at
    any time, also later: a system's log is slow. `lost` counts refusals left out because of their rate. `connecting`
    and `listens`, for a new server of a program, come between started and ended. The answer of `connecting` decides for
    Unix sockets; for Internet addresses the gate behind the connection decides."""

    def refused(self, refusal: DenialEvent) -> None: ...
    def lost(self, count: int) -> None: ...
    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None: ...
    def claimed(self, pid: int) -> None: ...
    def listening(self, listeners: Listeners) -> None: ...
    def starting(self, inside: SandboxNetwork | None = None) -> Awaitable[None] | None: ...
    def listens(self) -> None: ...
    def started(self) -> None: ...
    def failed(self, reason: str, *, outdated: bool = False) -> None: ...
    # -N for signal N
    def ended(self, status: int | None) -> None: ...


class LaunchHandle(Protocol):
    """The back end's handle of one launch."""

    def cancel(self) -> None:
        """Forget an unclaimed launch: its argv exits 125 from now on."""

    def terminate(self) -> None:
        """Send TERM to the command and its tree, and KILL after `LONGEST_GRACE_S`. A second call kills at once."""

    def kill(self) -> None:
        """End the whole tree at once."""


class PreparedHandle(LaunchHandle, Protocol):
    """The handle of a sandbox that waits for its command."""

    def look(self) -> asyncio.Future[Any]:
        """Begin to look at its files anew, for a claim, which waits for that."""
        ...

    async def claim(self, arguments: Sequence[str], observer: Observer) -> None:
        """Give it its command, which starts once the observer of the launch lets it start.

        Raises DaemonError where it is not the sandbox any more that it was made as."""


Prepare = Callable[[str, Plan, Observer], Awaitable[tuple["LaunchSpec", PreparedHandle]]]
"""Launches a sandbox that waits for its command, by id and plan. Raises HostError where that is not possible."""


class Backend(Protocol):
    """The back end of a daemon."""

    name: str

    async def ready(self) -> None:
        """Return when a sandbox can start. Raises HostError with cause and remedy."""

    async def end_session(self, directory: str) -> None:
        """Release what is kept for a session, by its temporary directory."""

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[LaunchSpec, LaunchHandle]:
        """Prepare one launch; never returns a bare command.

        Raises PolicyError or HostError."""
