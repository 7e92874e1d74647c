"""`status`, `check`, `metrics`: the daemon itself, what this host can enforce, and figures."""

from __future__ import annotations

import os

from sandboxd import PACKAGE, __version__
from sandboxd.daemon.metrics import Metrics
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.daemon.state import DaemonState
from sandboxd.errors import HostError
from sandboxd.policy.display import neutralise
from sandboxd.rpc.call import MethodCall
from sandboxd.rpc.handlers.sessions import record_of
from sandboxd.rpc.handlers.settings import file_records
from sandboxd.rpc.records import origin_record
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.check import CheckParams, CheckResult, CheckStepRecord
from sandboxd_client.wire.messages.hello import PROTOCOL
from sandboxd_client.wire.messages.metrics import MetricsParams, MetricsResult
from sandboxd_client.wire.messages.status import (
    AuditRecord,
    PhaseRecord,
    RestartRecord,
    StatusParams,
    StatusResult,
    UnavailableRecord,
)


@dataclass(frozen=True, slots=True)
class StatusMethods:
    """`status`, `check` and `metrics`."""

    daemon: DaemonState
    figures: Metrics
    questions: PolicyQueries

    async def status(self, call: MethodCall, params: StatusParams) -> StatusResult:
        daemon = self.daemon
        unavailable = _unavailable_record(await daemon.unavailable())
        own = daemon.policies.own
        audit = daemon.audit.state
        sessions = tuple(record_of(session) for session in daemon.sessions.all() if call.owns(session.id))
        restarted, off = daemon.restarted, self.questions.why_off(own.now.policy)
        return StatusResult(
            version=__version__,
            protocol=PROTOCOL,
            pid=os.getpid(),
            started_at=daemon.started_at,
            socket=daemon.socket,
            generation=daemon.policies.generation,
            enabled=off is None,
            settings=file_records(own.latest),
            sessions=sessions,
            layers=() if unavailable else daemon.actual_layers(),
            commands=sum(session.commands for session in sessions),
            warnings=(
                *daemon.warnings,
                *daemon.machine_warnings(),
                *filter(None, [daemon.reloading.failure]),
                *own.complaints,
                *filter(None, [audit.failure]),
            ),
            network=daemon.egress(),
            audit=AuditRecord(audit.enabled, audit.path, audit.lines, audit.lost, audit.failure, audit.blocking),
            startup=tuple(PhaseRecord(phase.name, round(phase.seconds, 4)) for phase in daemon.startup.phases),
            activated=daemon.activated,
            prepared=sum(session.prepared.waiting for session in daemon.sessions.all()),
            restarts=daemon.restarts,
            restarted=None
            if restarted is None
            else RestartRecord(
                restarted.stall_s,
                restarted.from_version,
                restarted.commands,
                restarted.cut,
                tuple(map(neutralise, restarted.lost)),
                restarted.crashed,
            ),
            unavailable=unavailable,
            enabled_origin=origin_record((off and off.origin) or own.now.policy.enabled_origin),
            program=PACKAGE,
        )

    async def check(self, call: MethodCall, params: CheckParams) -> CheckResult:
        """Try every step that a sandbox needs on this host."""
        report = await self.daemon.check()
        steps = tuple(CheckStepRecord(s.name, s.ok, s.detail, s.remedy, s.slug) for s in report.steps)
        return CheckResult(report.ok, steps, report.layers)

    async def metrics(self, call: MethodCall, params: MetricsParams) -> MetricsResult:
        return MetricsResult(self.figures.text())


def _unavailable_record(error: HostError | None) -> UnavailableRecord | None:
    """Return the refusal that a command wrapped now would get, or None."""
    if error is None:
        return None
    return UnavailableRecord(error.slug, neutralise(error.message), neutralise(error.hint))
