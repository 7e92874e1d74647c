"""`restart`: the daemon executes itself anew and goes on with everything.

The answer comes first."""

from __future__ import annotations

import os

from sandboxd.rpc.call import MethodCall
from sandboxd_client.wire.messages.status import RestartParams, RestartResult


async def restart(call: MethodCall, params: RestartParams) -> RestartResult:
    """Restart the daemon. Raises HostError when the next program would not start."""
    version = await call.daemon.restarting.prepared()
    call.daemon.stop(f"restart asked for by pid {call.caller.pid}", restart=True)
    return RestartResult(os.getpid(), version)
