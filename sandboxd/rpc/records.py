"""Conversion of the daemon's records to those of the wire."""

from __future__ import annotations

from sandboxd.policy.decision import Decision
from sandboxd.policy.violation import Violation
from sandboxd.settings.origins import Origin
from sandboxd_client.wire.messages.decisions import ReasonRecord
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.violations import ViolationRecord


def origin_record(origin: Origin) -> OriginRecord:
    return OriginRecord(origin.source.value, origin.key, origin.file, origin.line, origin.column)


def reason_record(decision: Decision) -> ReasonRecord:
    origin = None if decision.origin is None else origin_record(decision.origin)
    return ReasonRecord(decision.reason.value, decision.text, decision.rule, origin)


def violation_record(violation: Violation) -> ViolationRecord:
    return ViolationRecord(
        id=violation.id,
        time=violation.time,
        session_id=violation.session_id,
        command_id=violation.command_id,
        kind=violation.kind.value,
        operation=violation.operation,
        target=violation.target,
        outcome=violation.outcome,
        source=violation.source.value,
        process=violation.process,
        rule=violation.rule,
        origin=None if violation.origin is None else origin_record(violation.origin),
        hint=violation.hint,
        count=violation.count,
        inferred=violation.inferred,
        policy_generation=violation.policy_generation,
        last_time=violation.last_time,
        command=violation.command,
    )
