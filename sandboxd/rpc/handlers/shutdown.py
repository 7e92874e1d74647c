"""`shutdown`: the daemon ends in good order.

The answer comes first; the connection ends when the daemon is gone."""

from __future__ import annotations

import os

from sandboxd.rpc.call import MethodCall
from sandboxd_client.wire.messages.status import ShutdownParams, ShutdownResult


async def shutdown(call: MethodCall, params: ShutdownParams) -> ShutdownResult:
    running = sum(len(session.commands()) for session in call.daemon.sessions.all())
    call.daemon.stop(f"shutdown asked for by pid {call.caller.pid}", grace_s=params.grace_s)
    return ShutdownResult(os.getpid(), running)
