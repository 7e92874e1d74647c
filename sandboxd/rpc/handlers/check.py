"""`check`: what this host can enforce, every step tried for real."""

from __future__ import annotations

from sandboxd.rpc.call import MethodCall
from sandboxd_client.wire.messages.check import CheckParams, CheckResult, CheckStepRecord


async def check(call: MethodCall, params: CheckParams) -> CheckResult:
    report = await call.daemon.check()
    steps = tuple(CheckStepRecord(s.name, s.ok, s.detail, s.remedy, s.slug) for s in report.steps)
    return CheckResult(report.ok, steps, report.layers)
