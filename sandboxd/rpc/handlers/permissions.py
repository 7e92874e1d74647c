"""`permission.*`, `sandbox_permission_response`: questions and their answers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, cast

from sandboxd.daemon.permissions import PermissionQueries, PermissionQuery
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.settings.local_edits import EXCLUDED
from sandboxd.errors import CallerError
from sandboxd.policy.display import neutralise
from sandboxd.processes import has_ended
from sandboxd.rpc.call import ConnectedClient, MethodCall, existing_directory
from sandboxd.rpc.caller_variables import caller_is_sandbox, caller_search_path
from sandboxd.runtime.prompts.grants import GrantScope
from sandboxd.runtime.prompts.prompt_records import Asked, QuestionKind, ResolvedQuestion, Suggestion, UserAnswer
from sandboxd.runtime.sessions import Sessions
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.prompts import (
    GrantRecord,
    PermissionListParams,
    PermissionListResult,
    PermissionRequest,
    PermissionRequestParams,
    PermissionRequestResult,
    PermissionResolved,
    PermissionResponseParams,
    PermissionResponseResult,
    PermissionRevokeParams,
    PermissionRevokeResult,
    PermissionSubscribeParams,
    PermissionSubscribeResult,
    SuggestionRecord,
)
from sandboxd_client.wire.messages.prompts import (
    Scope as WireScope,
)
from sandboxd_client.wire.params import encode


@dataclass(frozen=True, slots=True)
class PermissionMethods:
    """`permission.*` and `sandbox_permission_response`."""

    permissions: PermissionQueries
    sessions: Sessions
    policies: Policies

    async def subscribe(self, call: MethodCall, params: PermissionSubscribeParams) -> PermissionSubscribeResult:
        """Return the open questions, and notify of each later question and outcome."""
        teller = tell_original if params.original_names else tell
        asked = map(_request, self.permissions.subscribe(call.client, teller, watch=bool(params.watch)))
        named = (_named(one, original=params.original_names) for one in asked)
        return PermissionSubscribeResult(cast("tuple[PermissionRequest, ...]", tuple(named)))

    async def respond(self, call: MethodCall, params: PermissionResponseParams) -> PermissionResponseResult:
        """Record an answer to a question.

        Raises CallerError when it does not count, SettingsError when `always` cannot be written."""
        prompts, behavior = self.permissions.prompts, params.behavior or params.decision
        if behavior is None or (params.behavior and params.decision and params.behavior != params.decision):
            raise CallerError("invalid_params", "an answer is one behavior", hint="send behavior: allow or deny")
        asked = next((one.question for one in prompts.open() if one.request_id == params.request_id), None)
        named = (("host", params.host), ("command_id", params.tool_use_id))
        if asked is not None and any(text not in (None, getattr(asked, name)) for name, text in named):
            raise CallerError(
                "invalid_params", "the answer names another host or command than the question", hint="leave it out"
            )
        if any(map(has_ended, prompts.askers(params.request_id, present=True))):
            raise CallerError(
                "not_permitted",
                "the process that asked has ended, and another one holds its connection, so no answer can be accepted",
                hint="have the program ask again",
            )
        if call.caller.descends_from(prompts.askers(params.request_id)):
            raise CallerError(
                "not_permitted",
                "the process that asked a question, or one that it started, may not answer it",
                hint="answer it in another terminal with: sandboxd prompts",
            )
        resolved = await self.permissions.answer(
            call.client,
            params.request_id,
            UserAnswer(
                behavior == "allow", GrantScope(params.scope), params.ttl_s, bool(params.confirm), params.pattern
            ),
            f"pid {call.caller.pid}",
        )
        return PermissionResponseResult(
            _behavior(resolved.allowed), _scope(resolved.scope), tuple(map(neutralise, resolved.warnings))
        )

    async def request(self, call: MethodCall, params: PermissionRequestParams) -> PermissionRequestResult:
        """Ask a question, and wait for the answer without a time limit."""
        cwd = None if params.cwd is None else existing_directory(params.cwd)
        if params.session_id is not None:
            session = self.sessions.get(params.session_id)
        elif cwd is not None:
            call.check_project(cwd)
            session = self.sessions.implicit(call.client, cwd, self.policies.of_session(cwd))
        else:
            raise CallerError("question_invalid", "a question belongs to a session", hint="send session_id or cwd")
        query = PermissionQuery(
            kind=QuestionKind(params.kind),
            host=params.host,
            port=params.port,
            path=params.path,
            write=params.write,
            command=params.command,
            command_id=params.command_id,
            reason=params.reason,
            directory=cwd,
            search=await caller_search_path(call) if params.search_path is None else params.search_path,
            is_sandbox=await caller_is_sandbox(call, params.is_sandbox),
        )
        answer = await self.permissions.request(session, query, uid=call.caller.uid, process=call.caller.process)
        return PermissionRequestResult(
            _behavior(answer.allowed),
            _scope(answer.scope),
            answer.by,
            neutralise(answer.text),
            answer.request_id,
            neutralise(answer.hint),
            session.variables_outside() if answer.allowed and query.kind is QuestionKind.SANDBOX_OVERRIDE else {},
            answer.outcome,
        )

    async def list_permissions(self, call: MethodCall, params: PermissionListParams) -> PermissionListResult:
        """List grants and open questions.

        Raises CallerError `session_unknown`."""
        grants = tuple(
            GrantRecord(
                grant_id=grant.id,
                session_id=session_id,
                subject=grant.subject,
                scope=grant.scope.value,
                by=grant.by,
                given_at=grant.given_at,
                expires_at=grant.expires_at,
                command_id=grant.command_id,
            )
            for session_id, grant in self.permissions.grants(params.session_id)
            if call.owns(session_id)
        )
        asked = tuple(
            _request(one)
            for one in self.permissions.prompts.open()
            if params.session_id in (None, one.session_id) and call.owns(one.session_id)
        )
        prompts = self.permissions.prompts
        return PermissionListResult(grants, asked, prompts.subscribers, prompts.can_notify())

    async def revoke(self, call: MethodCall, params: PermissionRevokeParams) -> PermissionRevokeResult:
        """Take a yes back at once.

        Raises CallerError `session_unknown`, `grant_unknown`."""
        return PermissionRevokeResult(self.permissions.revoke(params.session_id, params.grant_id).subject)


def tell(client: ConnectedClient, event: Asked | ResolvedQuestion, *, original_names: bool = False) -> None:
    if isinstance(event, Asked):
        client.notify("sandbox_permission_request", _named(_request(event), original=original_names))
        return
    record = PermissionResolved(
        request_id=event.request_id or "",
        behavior=_behavior(event.allowed),
        scope=_scope(event.scope),
        by=event.by,
        session_id=event.session_id,
        outcome=event.outcome.value,
        text=event.why,
    )
    client.notify("sandbox_permission_resolved", _named(record, original=original_names))


def _named(record: PermissionRequest | PermissionResolved, *, original: bool) -> dict[str, object]:
    """Return the fields of a record, with the names of the original beside where they are wanted."""
    fields: dict[str, object] = encode(record)
    if not original:
        return fields
    asked = isinstance(record, PermissionRequest)
    more = {"toolUseId": fields["command_id"]} if asked else {"decision": fields["behavior"]}
    return {**fields, "requestId": record.request_id, **more}


tell_original = partial(tell, original_names=True)
"""The same, with the names of fields that the owner of the settings format uses."""


def _request(asked: Asked) -> PermissionRequest:
    question = asked.question
    return PermissionRequest(
        request_id=asked.request_id,
        session_id=asked.session_id,
        kind=question.kind.value,
        expires_at=asked.expires_at,
        host=question.host,
        port=question.port,
        path=None if question.path is None else question.subject,
        command=question.command,
        command_id=None if question.command_id is None else neutralise(question.command_id),
        suggestions=suggestion_records(question.suggestions),
        project=neutralise(question.project),
        text=question.text,
        write=question.write,
        warnings=question.warnings,
        scopes=tuple(scope.value for scope in question.scopes),
        wide=question.wide,
    )


def suggestion_records(suggestions: Iterable[Suggestion]) -> tuple[SuggestionRecord, ...]:
    return tuple(
        SuggestionRecord(
            _behavior(one.allow),
            "always",
            one.key,
            neutralise(one.rule),
            "exclude" if one.key == EXCLUDED else "rule",
            one.rule if one.key == EXCLUDED else None,
            one.wide,
        )
        for one in suggestions
    )


def _behavior(allowed: bool) -> Literal["allow", "deny"]:
    return "allow" if allowed else "deny"


def _scope(scope: object) -> WireScope | None:
    return None if scope is None else cast("WireScope", str(scope))
