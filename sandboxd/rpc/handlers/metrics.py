"""`metrics`: the figures of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxd_client.wire.messages.metrics import MetricsParams, MetricsResult

if TYPE_CHECKING:
    from sandboxd.rpc.call import MethodCall


async def metrics(call: MethodCall, params: MetricsParams) -> MetricsResult:
    return MetricsResult(call.daemon.metrics.text())
