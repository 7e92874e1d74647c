"""`metrics`: the figures of the daemon."""

from __future__ import annotations

from sandboxd.rpc.call import MethodCall
from sandboxd_client.wire.messages.metrics import MetricsParams, MetricsResult


async def metrics(call: MethodCall, params: MetricsParams) -> MetricsResult:
    return MetricsResult(call.daemon.metrics.text())
