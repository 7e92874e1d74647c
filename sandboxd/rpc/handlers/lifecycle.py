"""`restart` and `shutdown`: the end of this daemon. The answer comes first.

After `shutdown` the connection ends when the daemon is gone. After `restart` the daemon executes itself anew and goes
on with everything."""

from __future__ import annotations

import os

from sandboxd.daemon.lifecycle import StopRequest
from sandboxd.daemon.restart.restarting import Restarting
from sandboxd.rpc.call import MethodCall
from sandboxd.runtime.sessions import Sessions
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.status import RestartParams, RestartResult, ShutdownParams, ShutdownResult


@dataclass(frozen=True, slots=True)
class LifecycleMethods:
    """`restart` and `shutdown`."""

    stop: StopRequest
    restarting: Restarting
    sessions: Sessions

    async def restart(self, call: MethodCall, params: RestartParams) -> RestartResult:
        """Restart the daemon. Raises HostError when the next program would not start."""
        version = await self.restarting.prepared(params.interpreter or "")
        self.stop(f"restart asked for by pid {call.caller.pid}", restart=True)
        return RestartResult(os.getpid(), version)

    async def shutdown(self, call: MethodCall, params: ShutdownParams) -> ShutdownResult:
        running = sum(len(session.commands()) for session in self.sessions.all())
        self.stop(f"shutdown asked for by pid {call.caller.pid}", grace_s=params.grace_s)
        return ShutdownResult(os.getpid(), running)
