"""`should_sandbox`: whether a command runs in the sandbox, and without a question."""

from __future__ import annotations

from sandboxd.daemon.permissions import suggested
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.policy.decision import Behavior, PermissionMode, Reason
from sandboxd.rpc.call import MethodCall, existing_directory
from sandboxd.rpc.caller_variables import caller_is_sandbox, caller_search_path, caller_variables
from sandboxd.rpc.handlers.permissions import suggestion_records
from sandboxd.rpc.records import reason_record
from sandboxd.runtime.events import CommandDecided, Events, Fallback
from sandboxd.runtime.prompts.prompt_records import QuestionKind
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.decisions import ShouldSandboxParams, ShouldSandboxResult


@dataclass(frozen=True, slots=True)
class DecisionMethods:
    """`should_sandbox`."""

    questions: PolicyQueries
    sessions: Sessions
    events: Events

    async def should_sandbox(self, call: MethodCall, params: ShouldSandboxParams) -> ShouldSandboxResult:
        directory = None if params.cwd is None else existing_directory(params.cwd)
        names = self.questions.policy(params.session_id, directory).variables
        variables = await caller_variables(call, names, None)
        answer, search = await self.questions.command(
            params.command,
            params.session_id,
            directory,
            Overrides(variables=variables) if variables else NO_OVERRIDES,
            uid=call.caller.uid,
            search=await caller_search_path(call) if params.path is None else params.path,
            unsandboxed=params.dangerously_disable_sandbox,
            is_sandbox=await caller_is_sandbox(call, params.is_sandbox),
        )
        decision = answer.decision
        self.events.tell(CommandDecided(params.session_id, params.command or "", answer.sandboxed, decision))
        if decision.reason is Reason.SANDBOX_UNAVAILABLE and decision.behavior is not Behavior.DENY:
            self.events.tell(Fallback("unsandboxed", decision.text, params.session_id))
        env: dict[str, str] = {}
        if params.session_id is not None and not answer.sandboxed:
            env = self.sessions.get(params.session_id).variables_outside()
        if search is not None:
            env["PATH"] = search
        outside = decision.reason in (Reason.SANDBOX_OVERRIDE, Reason.SANDBOX_UNAVAILABLE)
        kind = QuestionKind.SANDBOX_OVERRIDE if outside else QuestionKind.COMMAND
        asks = decision.behavior is Behavior.ASK
        planning = self.questions.mode(params.session_id) == PermissionMode.PLAN
        rules = suggested(kind, params.command, decision.reason) if asks and not planning else ()
        return ShouldSandboxResult(
            answer.sandboxed,
            decision.behavior.value,
            reason_record(decision),
            decision.hint,
            env,
            None if not asks else "sandbox_override" if outside else "command",
            suggestion_records(rules),
        )
