"""What a handler is given beside its parameters: who calls, over which connection, and the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandboxd.daemon.state import Daemon
    from sandboxd.rpc.peer import Caller


class Client(Protocol):
    """The caller's connection as handlers see it. The object itself owns the sessions opened over it."""

    @property
    def caller(self) -> Caller: ...

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; never waits. A client that does not take them is cut off."""


@dataclass(frozen=True, slots=True)
class Call:
    daemon: Daemon
    client: Client
    methods: Mapping[str, Method]

    @property
    def caller(self) -> Caller:
        return self.client.caller


class Access(Enum):
    """What a method lets its caller do. Whoever passed the door (`rpc.peer`) has all of it; the column is there for
    callers with less, and tells the log which calls changed something."""

    ASK = "ask"
    """Look at settings, decisions and state."""
    RUN = "run"
    """Open sessions and wrap commands."""
    CONTROL = "control"
    """Change what holds for everybody: settings, and whether there is a daemon."""


EVERYTHING = frozenset(Access)


@dataclass(frozen=True, slots=True)
class Method:
    """`handler` takes the call and a `params` record, and returns a record of the wire."""

    params: type[Any]
    handler: Callable[[Call, Any], Awaitable[Any]]
    access: Access
