"""`hello`: the versions of both sides, and the role of the connection."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sandboxd import __version__
from sandboxd.daemon.permissions import PermissionQueries
from sandboxd.daemon.settings.subscriptions import SettingsSubscriptions
from sandboxd.daemon.violation_queries import ViolationQueries
from sandboxd.errors import CallerError
from sandboxd.rpc.call import MethodCall
from sandboxd_client.wire.messages.hello import PROTOCOL, HelloParams, HelloResult, Role

PROTOCOL_OLDEST = 1


@dataclass(frozen=True, slots=True)
class HelloMethods:
    """`hello`."""

    permissions: PermissionQueries
    violations: ViolationQueries
    subscriptions: SettingsSubscriptions

    async def hello(self, call: MethodCall, params: HelloParams) -> HelloResult:
        """Tell the client the protocol of the daemon, or refuse one that is too old."""
        if params.role == "agent":  # also where the rest is refused: a client may ignore that
            self._give_powers_up(call)
        if params.protocol < PROTOCOL_OLDEST:
            raise CallerError(
                "wrong_version",
                f"the client speaks protocol {params.protocol}, this daemon {PROTOCOL_OLDEST} to {PROTOCOL}",
                hint="update sandboxd-client",
                data={"protocol": PROTOCOL, "protocol_oldest": PROTOCOL_OLDEST},
            )
        if params.role == "full" and call.caller.restricted:
            raise CallerError(
                "not_permitted", "this connection has given its powers up", hint="connect again without the role agent"
            )
        names = tuple(name for name, method in call.methods.items() if method.access in call.caller.access)
        role: Role = "agent" if call.caller.restricted else "full"
        return HelloResult("sandboxd", __version__, PROTOCOL, PROTOCOL_OLDEST, os.getpid(), names, role)

    def _give_powers_up(self, call: MethodCall) -> None:
        """Restrict the connection.

        What it has subscribed to with its powers it hears no more."""
        if call.caller.restricted:
            return
        call.client.restrict()
        self.permissions.connection_lost(call.client)
        self.violations.connection_lost(call.client)
        self.subscriptions.remove(call.client)
