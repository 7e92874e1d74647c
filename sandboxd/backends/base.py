"""What the runtime asks of an operating system's back end, and what a back end tells the runtime.

A back end turns a Plan into a `LaunchSpec` (text only) and keeps the link to each running sandbox. It knows nothing of
sessions, proxies or RPC: what happens to a command is told to its `Observer`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sandboxd.plan.host_facts import SocketFile
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.violation import DenialEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxd.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a client must spawn. `argv` runs nothing by itself: without the daemon's answer it exits 125."""

    argv: tuple[str, ...]
    layers: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    expires_in_s: float = 60.0
    env_set: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables beside those of the plan, or in their place. May hold a password: never logged."""
    reachable: bool = False
    """The network of the sandbox can be connected to from outside: there will be `Listeners.inside`."""


class SandboxNetwork(Protocol):
    """The network of one sandbox, from outside. Whoever received it closes it. `fileno` is the descriptor of the
    namespace, which it owns; -1 once it is closed."""

    def fileno(self) -> int: ...

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket, as if a program inside had made it. Raises OSError, and LaunchError
        when the sandbox has ended."""

    async def is_listening(self, address: IPAddress, port: int) -> bool:
        """Whether a program inside listens there, at this very address or at all of them. Raises LaunchError."""

    async def is_bound(self, file: SocketFile) -> bool:
        """Tell whether a socket that was made inside is bound to this file now.

        Raises OSError, and LaunchError when the sandbox has ended."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Listeners:
    """The listening sockets of one sandbox. They live in the sandbox's network namespace; the receiver owns them, and
    `inside` as well. With `check` the sockets can be reached by others too, and a client has to give a user name and a
    password that it accepts.

    `captured` accept the TCP connections that programs make to any address; the own address of an accepted socket
    (getsockname) is the destination. `dns_datagram` and `dns_stream` receive what is sent to port 53 of any address: of
    a datagram the ancillary data say to which (IP_PKTINFO, IPV6_RECVPKTINFO), and the answer has to come from there.
    All sockets are non-blocking. `namespace` is a descriptor of the network namespace, or -1 where there is none or
    `inside` owns it."""

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
        """Close all of it, for a receiver that has no use for it."""
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
    """A connect() inside a sandbox that waits for an answer. For the Internet families `address` is the address as
    text and `port` its port; for a Unix socket `address` is the path after every symbolic link, `port` 0, and `file` is
    the very socket that would be connected (None from the helper of an earlier version). `pid` is the process by its
    number in the sandbox, `process` its name, not yet fit for display."""

    family: int
    address: str
    port: int
    pid: int
    process: str
    file: SocketFile | None = None


AnswerConnect = Callable[[int], None]
"""An error number for the program, or 0: go on. To be called exactly once, now or later; after the attempt is over
(the program was interrupted, the sandbox has ended) it does nothing."""


class Observer(Protocol):
    """Hears what becomes of one launch, in this order: claimed, starting, listening, started or failed, ended. What
    `starting` returns is awaited; where it raises SandboxdError the command does not start. `failed` is
    `outdated` where files or settings have changed since the plan was made. `ended` is always the last of these, and
    comes exactly once for a launch that was claimed or has expired. `refused` may come at any time, also later: a
    system's log is slow. `lost` says how many refusals were left out because they were too many.
    `connecting` comes between started and ended; the answer is a courtesy for Internet addresses, where the gate stands
    behind the connection itself, and the decision for Unix sockets."""

    def refused(self, refusal: DenialEvent) -> None: ...
    def lost(self, count: int) -> None: ...
    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None: ...
    def claimed(self, pid: int) -> None: ...
    def listening(self, listeners: Listeners) -> None: ...
    def starting(self) -> Awaitable[None] | None: ...
    def started(self) -> None: ...
    def failed(self, reason: str, *, outdated: bool = False) -> None: ...
    def ended(self, status: int | None) -> None: ...


class LaunchHandle(Protocol):
    """The back end's hold on one launch."""

    def cancel(self) -> None:
        """Forget a launch nobody has claimed: its argv exits 125 from now on."""

    def terminate(self) -> None:
        """Ask the command to end: TERM, and KILL after the grace period. Its whole tree dies."""

    def kill(self) -> None:
        """End the whole tree at once."""


class Backend(Protocol):
    """One per daemon."""

    name: str

    async def ready(self) -> None:
        """Return when a sandbox can be started here. Raises HostError with cause and remedy when none can."""

    async def launch(self, launch_id: str, plan: Plan, observer: Observer) -> tuple[LaunchSpec, LaunchHandle]:
        """Prepare one launch. Raises PolicyError or HostError; never returns anything that runs unsandboxed."""
