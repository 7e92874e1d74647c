"""`policy.*`: questions to the policy, answered by the code that enforces it."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any

from sandboxd.daemon.policy_queries import Explained, PolicyQueries
from sandboxd.policy.decision import PermissionMode
from sandboxd.policy.explain import guidance
from sandboxd.policy.explain.guidance import Surroundings, Wording
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.parent_proxies import ParentProxy
from sandboxd.rpc.call import MethodCall, existing_directory
from sandboxd.rpc.caller_variables import caller_is_sandbox, caller_search_path, caller_variables
from sandboxd.rpc.records import origin_record, reason_record
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides
from sandboxd.settings.origins import Origin
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.policy import (
    ClosePortsParams,
    ClosePortsResult,
    DescribeParams,
    DescribeResult,
    EffectiveParams,
    EffectiveResult,
    ExplainParams,
    ExplainResult,
)
from sandboxd_client.wire.params import ParamsError, encode

MOST_CLOSED = 16
"""Ports that one connection can close."""
_PAGE = re.compile(r"https?://(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})/")
_FLAG = re.compile("[A-Za-z_-][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class PolicyMethods:
    """`policy.*`."""

    questions: PolicyQueries
    sessions: Sessions

    async def close_ports(self, call: MethodCall, params: ClosePortsParams) -> ClosePortsResult:
        """Close ports of this machine for every command, as long as the connection lasts."""
        if len(params.ports) > MOST_CLOSED or any(not 0 < port < 65536 for port in params.ports):
            raise ParamsError("ports", f"at most {MOST_CLOSED} numbers of ports", "others")
        page = _PAGE.fullmatch(params.page)
        if params.page and (page is None or int(page[1]) not in params.ports):
            raise ParamsError("page", "an address such as http://127.0.0.1:8443/ with one of the ports", "another text")
        warnings = self.questions.close_ports(call.client, params.ports, params.page)
        return ClosePortsResult(self.questions.closed_ports.of(call.client)[0], warnings)

    async def explain(self, call: MethodCall, params: ExplainParams) -> ExplainResult:
        """Return a decision. Raises CallerError for a malformed target."""
        questions = self.questions
        directory = None if params.cwd is None else existing_directory(params.cwd)
        names = questions.policy(params.session_id, directory).variables
        variables = await caller_variables(call, names, None)
        mine = Overrides(variables=variables) if variables else NO_OVERRIDES
        match params.kind:
            case "host":
                explained = questions.explain_host(params.target, params.session_id, directory)
            case "path":
                explained = await questions.explain_path(
                    params.target, params.session_id, directory, mine, write=params.write
                )
            case "socket":
                explained = await questions.explain_socket(params.target, params.session_id, directory, mine)
            case _:
                search = await caller_search_path(call)
                answer = await questions.explain_command(
                    params.target,
                    params.session_id,
                    directory,
                    mine,
                    uid=call.caller.uid,
                    search=search,
                    is_sandbox=await caller_is_sandbox(call, params.is_sandbox),
                )
                explained = Explained(params.target, answer.decision, answer.sandboxed)
        decision = explained.decision
        return ExplainResult(
            kind=params.kind,
            subject=explained.subject,
            behavior=decision.behavior.value,
            reason=reason_record(decision),
            hint=decision.hint,
            sandboxed=explained.sandboxed,
        )

    async def effective(self, call: MethodCall, params: EffectiveParams) -> EffectiveResult:
        directory = None if params.cwd is None else existing_directory(params.cwd)
        policy = self.questions.policy(params.session_id, directory)
        return EffectiveResult(policy.generation, _plain(policy))

    async def describe(self, call: MethodCall, params: DescribeParams) -> DescribeResult:
        """Return the restrictions in words, for the prompt of a model."""
        questions = self.questions
        directory = None if params.cwd is None else existing_directory(params.cwd)
        if params.session_id is not None and directory is None:
            directory = self.sessions.get(params.session_id).cwd
        policy = questions.policy(params.session_id, directory)
        off, mode = questions.why_off(policy), questions.mode(params.session_id)
        around = Surroundings(
            directory or "the working directory",
            "/tmp",
            exceptions=tuple((params.exceptions or {}).items()),
            unavailable=await questions.unavailable(),
            off="" if off is None else off.text,
            mode=PermissionMode(mode or PermissionMode.PROMPT),
        )
        flag = guidance.FLAG if params.flag_name is None else params.flag_name
        if not _FLAG.fullmatch(flag):
            raise ParamsError("flag_name", "a name of at most 64 letters, digits, _ and -", "another text")
        wording = Wording(flag, params.style == "strict", params.examples is not False)
        description = guidance.describe(policy, around, wording)
        return DescribeResult(policy.generation, description.text, description.data)


def _plain(value: Any) -> Any:
    """Return the policy as JSON: host patterns as written, origins as on the wire."""
    match value:
        case enum.Enum():
            return value.value
        case HostPattern():
            return value.text
        case Origin():
            return encode(origin_record(value))
        case ParentProxy():
            return str(value)
        case tuple() | list():
            return [_plain(item) for item in value]
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            return value
