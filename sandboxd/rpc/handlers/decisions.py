"""`should_sandbox`: whether a command runs in the sandbox, and without a question."""

from __future__ import annotations

from sandboxd.policy.decision import Behavior, Reason
from sandboxd.rpc.call import MethodCall
from sandboxd.rpc.caller_variables import caller_search_path, caller_variables
from sandboxd.rpc.records import reason_record
from sandboxd.runtime.events import CommandDecided, Fallback
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult


async def should_sandbox(call: MethodCall, params: ShouldSandboxParams) -> ShouldSandboxResult:
    questions = call.daemon.questions
    directory = None if params.cwd is None else call.daemon.directory(params.cwd)
    names = questions.policy(params.session_id, directory).variables
    variables = await caller_variables(call, names, None)
    answer, search = await questions.command(
        params.command,
        params.session_id,
        directory,
        Overrides(variables=variables) if variables else NO_OVERRIDES,
        uid=call.caller.uid,
        search=await caller_search_path(call) if params.path is None else params.path,
        unsandboxed=params.dangerously_disable_sandbox,
    )
    decision = answer.decision
    call.daemon.events.tell(CommandDecided(params.session_id, params.command or "", answer.sandboxed, decision))
    if decision.reason is Reason.SANDBOX_UNAVAILABLE and decision.behavior is not Behavior.DENY:
        call.daemon.events.tell(Fallback("unsandboxed", decision.text, params.session_id))
    env: dict[str, str] = {}
    if params.session_id is not None and not answer.sandboxed:
        env = call.daemon.sessions.get(params.session_id).variables_outside()
    if search is not None:
        env["PATH"] = search
    return ShouldSandboxResult(answer.sandboxed, decision.behavior.value, reason_record(decision), decision.hint, env)
