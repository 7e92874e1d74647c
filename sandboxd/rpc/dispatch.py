"""The whole API as one table (`METHODS`), and the frame around every handler.

No socket here: `Dispatcher.respond` takes a decoded message and returns the answer, so it is tested with dictionaries.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from sandboxd.errors import CallerError, DaemonError, HostError, InternalError, LaunchError, PolicyError, SettingsError
from sandboxd.policy.display import neutralise
from sandboxd.proxy.fair_share import Share
from sandboxd.rpc.call import CallSurroundings, ConnectedClient, GroupHandler, MethodCall, MethodRow, Route
from sandboxd.rpc.handlers.commands import CommandMethods
from sandboxd.rpc.handlers.credentials import CredentialMethods
from sandboxd.rpc.handlers.decisions import DecisionMethods
from sandboxd.rpc.handlers.hello import HelloMethods, gives_powers_up
from sandboxd.rpc.handlers.lifecycle import LifecycleMethods
from sandboxd.rpc.handlers.permissions import PermissionMethods
from sandboxd.rpc.handlers.policy import PolicyMethods
from sandboxd.rpc.handlers.sessions import SessionMethods
from sandboxd.rpc.handlers.settings import SettingsMethods
from sandboxd.rpc.handlers.status import StatusMethods
from sandboxd.rpc.handlers.violations import ViolationMethods
from sandboxd.rpc.handlers.wrap import WrapMethods
from sandboxd.rpc.jsonrpc import Json, Methods, Result, failure, respond, success
from sandboxd.rpc.peer import MethodAccess
from sandboxd.rpc.shares import heavy
from sandboxd.runtime.events import Controlled
from sandboxd_client.wire import codes
from sandboxd_client.wire.messages import methods as wire
from sandboxd_client.wire.params import ParamsError, decode, encode

ASK, RUN, JOIN = MethodAccess.ASK, MethodAccess.RUN, MethodAccess.JOIN
ANSWER, CONTROL = MethodAccess.ANSWER, MethodAccess.CONTROL

# Class, handler and required access of each method. Parameters and results are those of `wire.messages.methods`.
_HANDLERS: dict[str, tuple[type[Any], GroupHandler, MethodAccess]] = {
    "hello": (HelloMethods, HelloMethods.hello, ASK),
    "status": (StatusMethods, StatusMethods.status, ASK),
    "check": (StatusMethods, StatusMethods.check, ASK),
    "metrics": (StatusMethods, StatusMethods.metrics, ASK),
    "restart": (LifecycleMethods, LifecycleMethods.restart, CONTROL),
    "shutdown": (LifecycleMethods, LifecycleMethods.shutdown, CONTROL),
    "session.open": (SessionMethods, SessionMethods.open_session, RUN),
    "session.update": (SessionMethods, SessionMethods.update_session, CONTROL),
    "session.join": (SessionMethods, SessionMethods.join_session, JOIN),
    "session.close": (SessionMethods, SessionMethods.close_session, RUN),
    "session.list": (SessionMethods, SessionMethods.list_sessions, ASK),
    "command.list": (CommandMethods, CommandMethods.list_commands, ASK),
    "command.kill": (CommandMethods, CommandMethods.kill_command, RUN),
    "should_sandbox": (DecisionMethods, DecisionMethods.should_sandbox, ASK),
    "wrap": (WrapMethods, WrapMethods.wrap, RUN),
    "wrap.outcome": (WrapMethods, WrapMethods.outcome, RUN),
    "permission.subscribe": (PermissionMethods, PermissionMethods.subscribe, ANSWER),
    "sandbox_permission_response": (PermissionMethods, PermissionMethods.respond, CONTROL),
    "permission.request": (PermissionMethods, PermissionMethods.request, RUN),
    "permission.list": (PermissionMethods, PermissionMethods.list_permissions, ASK),
    "permission.revoke": (PermissionMethods, PermissionMethods.revoke, CONTROL),
    "violation.list": (ViolationMethods, ViolationMethods.list_violations, ASK),
    "violation.subscribe": (ViolationMethods, ViolationMethods.subscribe, ASK),
    "violation.clear": (ViolationMethods, ViolationMethods.clear, RUN),
    "violation.suggest": (ViolationMethods, ViolationMethods.suggest, ASK),
    "violation.annotate": (ViolationMethods, ViolationMethods.annotate, ASK),
    "violation.strip": (ViolationMethods, ViolationMethods.strip, ASK),
    "settings.get": (SettingsMethods, SettingsMethods.get, ASK),
    "settings.update": (SettingsMethods, SettingsMethods.update, CONTROL),
    "settings.exclude_command": (SettingsMethods, SettingsMethods.exclude_command, CONTROL),
    "settings.trust": (SettingsMethods, SettingsMethods.trust, CONTROL),
    "settings.reload": (SettingsMethods, SettingsMethods.reload, CONTROL),
    "settings.locked": (SettingsMethods, SettingsMethods.locked, ASK),
    "settings.subscribe": (SettingsMethods, SettingsMethods.subscribe, ASK),
    "settings.lint": (SettingsMethods, SettingsMethods.lint, ASK),
    "settings.schema": (SettingsMethods, SettingsMethods.schema, ASK),
    "credential.set": (CredentialMethods, CredentialMethods.set, CONTROL),
    "credential.remove": (CredentialMethods, CredentialMethods.remove, CONTROL),
    "credential.list": (CredentialMethods, CredentialMethods.list_credentials, ASK),
    "policy.close_ports": (PolicyMethods, PolicyMethods.close_ports, CONTROL),
    "policy.explain": (PolicyMethods, PolicyMethods.explain, ASK),
    "policy.effective": (PolicyMethods, PolicyMethods.effective, ASK),
    "policy.describe": (PolicyMethods, PolicyMethods.describe, ASK),
}
METHODS = {name: MethodRow(wire.METHODS[name].params, *row) for name, row in _HANDLERS.items()}


def routes(*groups: object) -> dict[str, Route]:
    """Return the whole API, served by one object of each class in `METHODS`."""
    objects = {type(group): group for group in groups}
    return {
        name: Route(row.params, partial(row.handler, objects[row.group]), row.access) for name, row in METHODS.items()
    }


PATIENT = frozenset({"permission.request", "wrap.outcome", "violation.annotate", "check", "status", "session.list"})
"""Methods that may take long or change nothing: the next daemon can repeat their calls."""

FRESH = frozenset(
    {"status", "session.open", "session.update", "session.join", "should_sandbox", "wrap", "permission.request",
     "credential.set", "credential.list", "settings.get", "settings.update", "settings.exclude_command",
     "settings.locked", "policy.explain", "policy.effective", "policy.describe", "restart"}
)  # fmt: skip
"""Methods whose answers depend on settings: changed files are read first."""

# Whose fault an error is, by class: the number of a slug that the table of codes does not have.
_NUMBERS: dict[type[DaemonError], int] = {
    CallerError: codes.CALLER,
    SettingsError: codes.SETTINGS,
    PolicyError: codes.POLICY,
    HostError: codes.HOST,
    LaunchError: codes.LAUNCH,
    InternalError: codes.INTERNAL_ERROR,
}

_REMEDIES = {
    errno.EMFILE: "end sandboxes that are not needed, or raise the limit on open files of the daemon (ulimit -n)",
    errno.ENFILE: "end programs that are not needed, or raise fs.file-max",
    errno.ENOMEM: "free some memory",
    errno.ENOSPC: "free some disk space, where /tmp, the home or the runtime directory is full",
    errno.EDQUOT: "free some of the disk quota",
    errno.EIO: "see the log of the kernel: dmesg",
    errno.EROFS: "mount the file system writable; the log of the daemon names the path",
}
"""Ways out where the machine refuses what any call needs."""

_LIGHT = {
    "status",
    "restart",
    "credential.set",
    "credential.list",
    "permission.request",
    "settings.get",
    "settings.locked",
}
HEAVY = FRESH - _LIGHT
"""Methods that need threads, and much of their time."""


class Dispatcher:
    """Answers the messages of all connections of a daemon.

    `controlled` hears of the calls that change something, `restricted` of connections that have given powers up."""

    def __init__(
        self,
        methods: Mapping[str, Route],
        around: CallSurroundings,
        log: FilteringBoundLogger,
        *,
        controlled: Callable[[Controlled], None] = lambda event: None,
        restricted: Callable[[ConnectedClient], None] = lambda client: None,
    ) -> None:
        self._restricted = restricted
        self._controlled = controlled
        self._around = around
        self._log = log
        self._table = methods
        self._methods = Methods({name: self._bound(name, route) for name, route in methods.items()})

    async def respond(
        self, message: object, client: ConnectedClient, share: Share | None = None
    ) -> Json | list[Json] | None:
        """Return the answer to one decoded message of `client`, or None.

        Raises nothing but CancelledError. What it takes is counted to `share`."""
        return await respond(message, self._methods, MethodCall(self._around, client, self._table), share)

    def take_role(self, message: object, text: str, client: ConnectedClient) -> None:
        """Restrict a connection by the message that says so, before the next one is taken.

        To be called for each message, in their order."""
        if gives_powers_up(message, text):
            self.restrict(client)

    def restrict(self, client: ConnectedClient) -> None:
        """Take all powers from a connection but those of the role `agent`."""
        if not client.caller.restricted:
            client.restrict()
            self._restricted(client)

    def _bound(self, name: str, route: Route) -> Any:
        async def call(context: MethodCall, params: object) -> Result:
            try:
                if route.access not in context.caller.access:
                    raise CallerError(
                        "not_permitted",
                        f"a connection with the role agent may not use {name}",
                        hint="ask a person to do it, with the sandboxd command in a terminal",
                    )
                if route.access is RUN:
                    context.caller.check_groups()
                if route.access is CONTROL:
                    self._log.info("control", method=name, peer=context.caller.pid)
                    self._controlled(Controlled(name, context.caller.pid))
                record = _in_session(context, decode(route.params, params))
                work = self._work(name, route, context, record)
                return success(encode(await (heavy(work) if name in HEAVY else work)))
            except ParamsError as error:
                data = {"slug": error.slug, "hint": error.hint or f"send {error.expected}", **error.data}
                return failure(codes.INVALID_PARAMS, error.message, data)
            except InternalError as error:
                return self._internal(name, error, error.message)
            except DaemonError as error:
                return failure(number_of(error), neutralise(error.message), data_of(error))
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _REMEDIES:
                    return self._exhausted(name, error.errno, error)
                return self._internal(name, error, "the daemon failed at this call")

        return call

    async def _work(self, name: str, route: Route, context: MethodCall, record: Any) -> object:
        if name in FRESH:
            session_id, cwd = getattr(record, "session_id", None), getattr(record, "cwd", None)
            await self._around.bring_settings_up_to_date(session_id, cwd)
        return await route.handler(context, record)

    def _exhausted(self, name: str, number: int, error: OSError) -> Result:
        """Answer what the machine refused: the path, if any, goes to the log only."""
        self._log.error("call failed", method=name, exc_info=error)
        message = f"the machine refuses what the daemon needs for this call: {os.strerror(number)}"
        return failure(codes.HOST, message, {"slug": "host_exhausted", "hint": _REMEDIES[number]})

    def _internal(self, name: str, error: Exception, message: str) -> Result:
        """Answer a fault of the daemon: details go to the log, only an id to the caller."""
        incident = secrets.token_hex(4)
        self._log.error("call failed", method=name, incident=incident, exc_info=error)
        slug = error.slug if isinstance(error, InternalError) else "internal_error"
        hint = f"this is a fault of sandboxd; its log has the details under incident {incident}"
        return failure(codes.INTERNAL_ERROR, message, {"slug": slug, "hint": hint, "incident": incident})


def _in_session(call: MethodCall, record: Any) -> Any:
    """Return the parameters with the id of a session in place of its name.

    Raises CallerError `not_permitted` for a restricted connection that has not opened it."""
    session_id = getattr(record, "session_id", None)
    if session_id is None:
        return record
    if not call.owns(session_id):
        raise CallerError(
            "not_permitted",
            "a connection with the role agent may use only sessions that it has opened itself",
            hint="open one with session.open, or leave session_id out",
        )
    known = call.around.sessions.id_of(session_id)
    return record if known == session_id else replace(record, session_id=known)


def number_of(error: DaemonError) -> int:
    by_class = next((_NUMBERS[kind] for kind in type(error).__mro__ if kind in _NUMBERS), codes.INTERNAL_ERROR)
    return codes.number_of(error.slug, by_class)


def data_of(error: DaemonError) -> Json:
    # Names of files, keys and rules may come from a project, that is, from a file an agent has written.
    return {"slug": error.slug, "hint": neutralise(error.hint), **error.data}


def answer_to(error: DaemonError) -> Json:
    """Return an error as an answer to no particular request."""
    return {
        "jsonrpc": "2.0",
        "error": {"code": number_of(error), "message": error.message, "data": data_of(error)},
        "id": None,
    }
