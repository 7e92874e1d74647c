"""The context of a call: the caller, its connection and the daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sandboxd.daemon.state import Daemon
from sandboxd.errors import CallerError
from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.policy.display import neutralise
from sandboxd.policy.paths.wide_places import why_wide_project
from sandboxd.rpc.peer import Caller, MethodAccess


class ConnectedClient(Protocol):
    """The caller's connection as handlers see it.

    The object itself owns the sessions opened over it."""

    @property
    def caller(self) -> Caller: ...

    def restrict(self) -> None:
        """Give all powers up, for as long as the connection lasts, but those of `AGENT`."""

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; never waits.

        A client that does not take them is cut off."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    daemon: Daemon
    client: ConnectedClient
    methods: Mapping[str, Route]

    @property
    def caller(self) -> Caller:
        return self.client.caller

    def check_project(self, directory: str) -> None:
        """Raises CallerError `not_permitted` where a restricted connection opens too much.

        A session in a directory that is more than a project would let commands write there."""
        if not self.caller.restricted:
            return
        real = resolve(directory, NullNameRecorder()).real
        if why_wide_project(real, self.daemon.policies.places.home):
            raise CallerError(
                "not_permitted",
                f"a connection with the role agent may not have commands write in {neutralise(real)}",
                hint="name the directory of a project",
            )

    def owns(self, session_id: str) -> bool:
        """Whether the caller may see and use a session.

        A restricted connection has only those that it has opened."""
        return not self.caller.restricted or self.daemon.sessions.is_owner(session_id, self.client)

    def check_wrap(self, wrap_id: str) -> None:
        """Raises CallerError `wrap_unknown` for another connection's wrap.

        Only for a restricted connection."""
        if self.caller.restricted:
            self.daemon.sessions.check_made(wrap_id, self.client)

    def give_powers_up(self) -> None:
        """Restrict the connection.

        What it has subscribed to with its powers it hears no more."""
        if self.caller.restricted:
            return
        self.client.restrict()
        self.daemon.permissions.connection_lost(self.client)
        self.daemon.blocked.connection_lost(self.client)
        self.daemon.subscriptions.remove(self.client)


Handler = Callable[["MethodCall", Any], Awaitable[Any]]
"""Takes the call and the record of its parameters, and returns a record of the wire."""


@dataclass(frozen=True, slots=True)
class Route:
    """Parameters of a request, its handler, and the access that it needs."""

    params: type[Any]
    handler: Handler
    access: MethodAccess
