"""`violation.*`: what was blocked, as it happens and afterwards."""

from __future__ import annotations

from sandboxd.daemon.policies import Policies
from sandboxd.daemon.violation_queries import Cleared, ViolationQueries, ViolationSnapshot
from sandboxd.errors import CallerError
from sandboxd.policy.violation import Violation
from sandboxd.rpc.call import ConnectedClient, MethodCall
from sandboxd.rpc.records import violation_record
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.settings import ChangeRecord
from sandboxd_client.wire.messages.violations import (
    ViolationAnnotateParams,
    ViolationAnnotateResult,
    ViolationClearParams,
    ViolationClearResult,
    ViolationHappened,
    ViolationListParams,
    ViolationListResult,
    ViolationsCleared,
    ViolationStripParams,
    ViolationStripResult,
    ViolationSubscribeParams,
    ViolationSuggestParams,
    ViolationSuggestResult,
)
from sandboxd_client.wire.params import encode


@dataclass(frozen=True, slots=True)
class ViolationMethods:
    """`violation.*`."""

    queries: ViolationQueries
    policies: Policies

    async def list_violations(self, call: MethodCall, params: ViolationListParams) -> ViolationListResult:
        return _result(self.queries.snapshot(params.session_id, params.command_id, params.since, call.owns))

    async def subscribe(self, call: MethodCall, params: ViolationSubscribeParams) -> ViolationListResult:
        """Return violations since the cursor, and notify of each change."""
        if params.session_id is None and call.caller.restricted:
            raise CallerError(
                "not_permitted",
                "a connection with the role agent hears of its own sessions only",
                hint="send the session_id of a session that it has opened",
            )
        return _result(self.queries.subscribe(call.client, params.session_id, params.since, tell))

    async def clear(self, call: MethodCall, params: ViolationClearParams) -> ViolationClearResult:
        return ViolationClearResult(self.queries.clear(params.session_id, call.owns))

    async def suggest(self, call: MethodCall, params: ViolationSuggestParams) -> ViolationSuggestResult:
        """Return the changes that open one violation. Raises CallerError `violation_unknown`."""
        lesson = await self.queries.suggest(params.violation_id, self.policies.places.home, call.owns)
        sections = lesson.settings.get("sandbox", {})
        changes = tuple(
            ChangeRecord("add", f"sandbox.{section}.{key}", rule)
            for section, lists in sections.items()
            for key, rules in lists.items()
            for rule in rules
        )
        return ViolationSuggestResult(changes, "; ".join(one.why for one in lesson.left_out), lesson.notes)

    async def annotate(self, call: MethodCall, params: ViolationAnnotateParams) -> ViolationAnnotateResult:
        text, count = await self.queries.annotate(params.command_id, params.stderr, params.session_id, call.owns)
        return ViolationAnnotateResult(text, count)

    async def strip(self, call: MethodCall, params: ViolationStripParams) -> ViolationStripResult:
        return ViolationStripResult(await self.queries.strip(params.text))


def _result(snapshot: ViolationSnapshot) -> ViolationListResult:
    return ViolationListResult(
        tuple(map(violation_record, snapshot.violations)),
        snapshot.total,
        snapshot.hidden,
        snapshot.cursor,
        snapshot.complete,
        snapshot.lost,
    )


def tell(client: ConnectedClient, event: Violation | Cleared, cursor: str) -> None:
    if isinstance(event, Cleared):
        record = ViolationsCleared(cursor, event.session_id, event.count)
        client.notify("sandbox_violations_cleared", encode(record))
    else:
        client.notify("sandbox_violation", encode(ViolationHappened(cursor, violation_record(event))))
