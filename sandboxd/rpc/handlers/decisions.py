"""`should_sandbox`: is this command to be sandboxed, and may it run without a question (design 6.3)?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxd.policy.decision import Behavior, Reason
from sandboxd.rpc.records import reason_record
from sandboxd.runtime.events import CommandDecided, Fallback
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult

if TYPE_CHECKING:
    from sandboxd.rpc.call import Call


async def should_sandbox(call: Call, params: ShouldSandboxParams) -> ShouldSandboxResult:
    answer = await call.daemon.questions.command(
        params.command,
        params.session_id,
        None if params.cwd is None else call.daemon.directory(params.cwd),
        uid=call.caller.uid,
        unsandboxed=params.dangerously_disable_sandbox,
    )
    decision = answer.decision
    call.daemon.events.tell(CommandDecided(params.session_id, params.command or "", answer.sandboxed, decision))
    if decision.reason is Reason.SANDBOX_UNAVAILABLE and decision.behavior is not Behavior.DENY:
        call.daemon.events.tell(Fallback("unsandboxed", decision.text, params.session_id))
    env: dict[str, str] = {}
    if params.session_id is not None and not answer.sandboxed:
        env = call.daemon.sessions.get(params.session_id).variables_outside()
    return ShouldSandboxResult(answer.sandboxed, decision.behavior.value, reason_record(decision), decision.hint, env)
