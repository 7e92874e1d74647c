"""Questions about connections of commands, and the decisions that follow."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.hosts.host_patterns import Host, HostPattern
from sandboxd.policy.hosts.request_rules import HttpRequest
from sandboxd.policy.hosts.shared_hosts import purpose_of
from sandboxd.policy.model import HostRule
from sandboxd.policy.wide_grants import METADATA, serves_metadata
from sandboxd.proxy.gate import LIMITS, Ask, AskRequest
from sandboxd.runtime.command import Command
from sandboxd.runtime.prompts.grants import GrantScope
from sandboxd.runtime.prompts.open_prompts import Prompts
from sandboxd.runtime.prompts.prompt_records import Outcome, Question, QuestionKind, ResolvedQuestion, Suggestion
from sandboxd.runtime.session import SandboxSession
from sandboxd.settings.origins import Origin, Source

ALLOWED_DOMAINS = "sandbox.network.allowedDomains"
DENIED_DOMAINS = "sandbox.network.deniedDomains"
BY_A_PERSON = Origin(Source.CLI, "permission")
"""Where a granted rule stands: in no file."""
NETWORK_SCOPES = (GrantScope.ONCE, GrantScope.COMMAND, GrantScope.SESSION, GrantScope.ALWAYS)

_REASONS = {
    Outcome.ANSWERED: Reason.PROMPT_DENIED,
    Outcome.REMEMBERED: Reason.PROMPT_DENIED,
    Outcome.NO_SUBSCRIBER: Reason.HOST_NOT_LISTED,  # no person was asked: only the list has decided
}


def host_question(
    host: Host, port: int, project: str, *, text: str = "", command: str | None = None, command_id: str | None = None
) -> Question:
    """The question whether commands of a project may reach `host` at `port`."""
    target = host.authority(port)
    return Question(
        kind=QuestionKind.NETWORK,
        key=(QuestionKind.NETWORK, target),
        subject=target,
        project=project,
        host=host.name,
        port=port,
        command=None if command is None else neutralise(command),
        command_id=None if command_id is None else neutralise(command_id),
        text=neutralise(text),
        warnings=host_warnings(host),
        wide=serves_metadata(host),
        suggestions=(Suggestion(True, ALLOWED_DOMAINS, target), Suggestion(False, DENIED_DOMAINS, target)),
        scopes=NETWORK_SCOPES,
        rule=HostRule(HostPattern.parse(target), BY_A_PERSON),
    )


def host_warnings(host: Host) -> tuple[str, ...]:
    """Warnings about what a yes opens: the program may send anything to the host."""
    warnings = []
    purpose = purpose_of(host)
    if purpose:
        warnings.append(f"{host.uri} {purpose}: whatever the command can read may be sent there")
    if host.address is not None:
        warnings.append("this is an address without a name: nothing says whose it is")
    if serves_metadata(host):
        warnings.append(f"{host.uri} {METADATA}")
    if "xn--" in host.name:
        warnings.append("the name has letters of other scripts, which may look like those of another name")
    return tuple(warnings)


def host_decision(host: Host, port: int, decision: Decision, outcome: ResolvedQuestion) -> Decision:
    """The open `decision` after the outcome: ALLOW or DENY."""
    target = host.authority(port)
    if outcome.allowed:
        return Decision(Behavior.ALLOW, Reason.GRANTED, f"{target} was allowed when asked")
    reason = _REASONS.get(outcome.outcome, Reason.PROMPT_UNANSWERED)
    if decision.reason in LIMITS and reason is Reason.HOST_NOT_LISTED:
        reason = decision.reason
    text = f"{decision.text}, and {outcome.why}"
    return Decision(Behavior.DENY, reason, text, hint=decision.hint)


async def put(
    prompts: Prompts, session: SandboxSession, question: Question, asker: str, process: tuple[int, int] | None = None
) -> ResolvedQuestion:
    """Put a question of a session; one that is ending asks nothing any more.

    `process` is as in `Prompts.ask`."""
    if session.closed:
        return ResolvedQuestion(None, session.id, False, Outcome.SESSION_ENDED)
    return await prompts.ask(session.id, session.grants, question, asker, process)


def asking(prompts: Prompts, session: SandboxSession, command: Command) -> Ask:
    """Return the function by which the gate asks about a connection."""

    async def ask(host: Host, port: int, decision: Decision) -> Decision:
        question = host_question(
            host, port, session.cwd, text=decision.text, command=command.text, command_id=command.command_id
        )
        if decision.reason in LIMITS:  # a yes allows as much again, and no rule for the host
            key = (QuestionKind.NETWORK, decision.reason, decision.rule or "*")
            question = replace(question, key=key, suggestions=(), scopes=(GrantScope.ONCE,), rule=None)
        outcome = await put(prompts, session, question, command.wrap_id)
        return host_decision(host, port, decision, outcome)

    return ask


def request_question(
    host: Host, port: int, request: HttpRequest, project: str, command: Command, text: str
) -> Question:
    """The question whether a command may send one request. A yes for the session holds for the same one again."""
    subject = neutralise(f"{request.method} {host.authority(port)}{request.path}")
    return Question(
        kind=QuestionKind.NETWORK,
        key=(QuestionKind.NETWORK, request.method, host.authority(port), request.path),
        subject=subject,
        project=project,
        host=host.name,
        port=port,
        command=neutralise(command.text),
        command_id=None if command.command_id is None else neutralise(command.command_id),
        text=neutralise(text),
        scopes=(GrantScope.ONCE, GrantScope.SESSION),
    )


def asking_requests(prompts: Prompts, session: SandboxSession, command: Command) -> AskRequest:
    """Return the function by which the gate asks about a request."""

    async def ask(host: Host, port: int, request: HttpRequest, decision: Decision) -> Decision:
        question = request_question(host, port, request, session.cwd, command, decision.text)
        if session.grants.of_command(question.key) is not None:
            return Decision(Behavior.ALLOW, Reason.GRANTED, f"{question.subject} was allowed when asked")
        outcome = await put(prompts, session, question, command.wrap_id)
        return host_decision(host, port, decision, outcome)

    return ask
