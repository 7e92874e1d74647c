"""`status`: the daemon itself."""

from __future__ import annotations

import os

from sandboxd import __version__
from sandboxd.errors import HostError
from sandboxd.policy.display import neutralise
from sandboxd.rpc.call import MethodCall
from sandboxd.rpc.handlers.sessions import record_of
from sandboxd.rpc.handlers.settings import file_records
from sandboxd.rpc.records import origin_record
from sandboxd_client.wire.messages.hello import PROTOCOL
from sandboxd_client.wire.messages.status import (
    AuditRecord,
    PhaseRecord,
    RestartRecord,
    StatusParams,
    StatusResult,
    UnavailableRecord,
)


async def status(call: MethodCall, params: StatusParams) -> StatusResult:
    daemon = call.daemon
    unavailable = await _unavailable(call)
    own = daemon.policies.own
    audit = daemon.audit.state
    sessions = tuple(record_of(session) for session in daemon.sessions.all() if call.owns(session.id))
    restarted = daemon.restarted
    return StatusResult(
        version=__version__,
        protocol=PROTOCOL,
        pid=os.getpid(),
        started_at=daemon.started_at,
        socket=daemon.socket,
        generation=daemon.policies.generation,
        enabled=own.now.policy.enabled,
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
        enabled_origin=origin_record(own.now.policy.enabled_origin),
    )


async def _unavailable(call: MethodCall) -> UnavailableRecord | None:
    """The refusal that a command wrapped now would get, or None."""
    try:
        await call.daemon.backend.ready()
    except HostError as error:
        return UnavailableRecord(error.slug, neutralise(error.message), neutralise(error.hint))
    return None
