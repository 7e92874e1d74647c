"""The context of a call: the caller, its connection, and the rights to sessions and directories."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.errors import CallerError, SettingsError
from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.policy.display import neutralise
from sandboxd.policy.paths.wide_places import why_wide_project
from sandboxd.rpc.peer import Caller, MethodAccess
from sandboxd.runtime.sessions import Sessions
from sandboxd_client.records import dataclass
from sandboxd_client.wire.params import ParamsError

MOST_SETTINGS = 64 << 10
"""Bytes of settings in a call, as JSON; files may have more."""


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
class CallSurroundings:
    """Parts that a call needs before and beside its handler, whatever its method."""

    sessions: Sessions
    places: SettingsPlaces
    reloading: Reloading

    async def bring_settings_up_to_date(self, session_id: str | None, cwd: str | None) -> None:
        """Reread changed settings of a session, a directory or the daemon, if known."""
        directory = None
        with contextlib.suppress(CallerError):
            if session_id is not None:
                directory = self.sessions.get(session_id).cwd
            elif cwd is not None:
                directory = existing_directory(cwd)
        await self.reloading.bring_up_to_date(directory)


@dataclass(frozen=True, slots=True)
class MethodCall:
    """The caller, its rights, and the methods that it can call."""

    around: CallSurroundings
    client: ConnectedClient
    methods: Mapping[str, Route]

    @property
    def caller(self) -> Caller:
        return self.client.caller

    def check_project(self, directory: str) -> None:
        """Check a project's directory. Raises CallerError `not_permitted`.

        A session in a directory that is more than a project would let commands write there."""
        if not self.caller.restricted:
            return
        real = resolve(directory, NullNameRecorder()).real
        if why_wide_project(real, self.around.places.home):
            raise CallerError(
                "not_permitted",
                f"a connection with the role agent may not have commands write in {neutralise(real)}",
                hint="name the directory of a project",
            )

    def owns(self, session_id: str) -> bool:
        """Return whether the caller may see and use a session.

        A restricted connection has only those that it has opened."""
        return not self.caller.restricted or self.around.sessions.is_owner(session_id, self.client)

    def check_wrap(self, wrap_id: str) -> None:
        """Check the owner of a wrap. Raises CallerError `wrap_unknown`.

        Only for a restricted connection."""
        if self.caller.restricted:
            self.around.sessions.check_made(wrap_id, self.client)


def existing_directory(path: str) -> str:
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


def checked_settings(name: str, settings: dict[str, Any] | str | None) -> dict[str, Any] | str | None:
    """Return settings of a call: an object, or an absolute path.

    Raises ParamsError, and SettingsError `settings_too_large`: a policy of very many rules takes seconds to make."""
    if isinstance(settings, str):
        if not settings.startswith("/") or "\0" in settings:
            raise ParamsError(name, "an object, or an absolute path without a NUL character", "another text")
    elif settings and (size := len(json.dumps(settings))) > MOST_SETTINGS:
        raise SettingsError(
            "settings_too_large",
            f"{name} has {size} bytes, the limit is {MOST_SETTINGS}",
            hint="write them into a settings file, or name fewer rules",
        )
    return settings


Handler = Callable[["MethodCall", Any], Awaitable[Any]]
"""Takes the call and the record of its parameters, and returns a record of the wire."""


GroupHandler = Callable[[Any, "MethodCall", Any], Awaitable[Any]]
"""A handler as a class has it, before it is bound to an object."""


@dataclass(frozen=True, slots=True)
class Route:
    """Parameters of a request, its handler, and the access that it needs."""

    params: type[Any]
    handler: Handler
    access: MethodAccess


@dataclass(frozen=True, slots=True)
class MethodRow:
    """Row of the method table: `handler` is a method of the class `group`."""

    params: type[Any]
    group: type[Any]
    handler: GroupHandler
    access: MethodAccess
