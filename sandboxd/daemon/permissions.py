"""Permission queries of programs, and the rules that answers write.

The policy decides first, as for the access itself. Only what it leaves open becomes a prompt. A command outside the
sandbox always needs a prompt: no rule or setting permits it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from sandboxd.daemon.policies import Policies
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.daemon.settings.local_edits import EXCLUDED, change_of, change_settings
from sandboxd.daemon.settings.trusting import TRUST_KEY, Trusting
from sandboxd.errors import CallerError
from sandboxd.policy.commands.command_decisions import CommandDecision, why_sandboxed
from sandboxd.policy.commands.command_patterns import parse_command_pattern
from sandboxd.policy.commands.exclusion import exclusion_patterns, is_exact
from sandboxd.policy.commands.wide_programs import why_wide_program
from sandboxd.policy.decision import Behavior, Decision, PermissionMode, Reason
from sandboxd.policy.display import LONGEST, neutralise
from sandboxd.policy.hosts.host_decisions import decide_host
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.policy.wide_grants import wide_path
from sandboxd.proxy.host_addresses import HostAddresses
from sandboxd.runtime.prompts.connection_prompts import host_question, put
from sandboxd.runtime.prompts.grants import Grant, GrantScope
from sandboxd.runtime.prompts.open_prompts import REQUEST_PREFIX, Prompts, Tell, WriteRule
from sandboxd.runtime.prompts.prompt_records import (
    Asked,
    Question,
    QuestionKind,
    ResolvedQuestion,
    Suggestion,
    UserAnswer,
)
from sandboxd.runtime.session import SandboxSession
from sandboxd.runtime.sessions import Sessions
from sandboxd.settings.files.trust import real_path
from sandboxd_client.records import dataclass

LONGEST_COMMAND = 16 << 10
"""Longest command of a prompt, which shows all of it."""
SHOWN_BLOCKED = 5
_OUTSIDE = "outside the sandbox it can read, change and send whatever you can"
_EXPLICIT = frozenset({Reason.PATH_DENIED, Reason.PATH_PROTECTED})
_PATTERN = frozenset("*?[]{}$\0")


@dataclass(frozen=True, slots=True)
class PermissionQuery:
    """Permission query of a program. `reason` is its own text, shown to the user."""

    kind: QuestionKind
    host: str | None = None
    port: int | None = None
    path: str | None = None
    write: bool = False
    command: str | None = None
    command_id: str | None = None
    reason: str = ""
    directory: str | None = None
    """Directory that the command runs in; None for that of the session."""
    search: str = ""
    """PATH of the command."""
    is_sandbox: bool = False

    @property
    def why(self) -> str:
        """Return the reason marked as a claim of the program."""
        return f"the program says: {self.reason}" if self.reason else ""


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    """Answer to a query. `by` is `policy` when no prompt was needed."""

    allowed: bool
    text: str
    by: str | None = None
    scope: GrantScope | None = None
    request_id: str | None = None
    hint: str = ""
    outcome: str = ""
    """The outcome of the prompt, empty where there was none."""


class PermissionQueries:
    """Permission methods of a daemon."""

    def __init__(
        self,
        prompts: Prompts,
        questions: PolicyQueries,
        sessions: Sessions,
        grants_revoked: Callable[[str], None] = lambda session_id: None,
        home: str = "/",
    ) -> None:
        """Call `grants_revoked` with each session in which a grant was revoked."""
        self.prompts = prompts
        self._grants_revoked = grants_revoked
        self._home = home
        self._questions = questions
        self._sessions = sessions
        self._host_addresses = HostAddresses()

    def subscribe(self, subscriber: object, tell: Tell, *, watch: bool = False) -> tuple[Asked, ...]:
        return self.prompts.subscribe(subscriber, tell, watch=watch)

    def connection_lost(self, subscriber: object) -> None:
        self.prompts.unsubscribe(subscriber)

    async def answer(self, subscriber: object, request_id: str, verdict: UserAnswer, by: str) -> ResolvedQuestion:
        """Answer a prompt. An error leaves it open: CallerError, SettingsError."""
        return await self.prompts.answer(subscriber, request_id, verdict, by)

    def grants(self, session_id: str | None) -> list[tuple[str, Grant]]:
        """Return session ids with grants. Raises CallerError `session_unknown`."""
        sessions = self._sessions.all() if session_id is None else [self._sessions.get(session_id)]
        return [(session.id, grant) for session in sessions for grant in session.grants.list()]

    def revoke(self, session_id: str, grant_id: str) -> Grant:
        """Revoke a grant and cut the connections that depend on it. Raises CallerError."""
        revoked = self._sessions.get(session_id).grants.revoke(grant_id)
        self._grants_revoked(session_id)
        return revoked

    async def request(
        self, session: SandboxSession, query: PermissionQuery, *, uid: int, process: tuple[int, int] | None = None
    ) -> PermissionAnswer:
        """Decide a query, with a prompt where the policy leaves it open.

        `process` is the asking process by pid and start time. Raises CallerError for an invalid query."""
        match query.kind:
            case QuestionKind.NETWORK:
                decision, question, asker = self._network(session, query)
            case QuestionKind.PATH:
                decision, question, asker = await self._path(session, query)
            case QuestionKind.SANDBOX_OVERRIDE:
                decision, question, asker = await self._override(session, query, uid)
            case QuestionKind.COMMAND:
                decision, question, asker = await self._command(session, query, uid)
            case QuestionKind.TRUST:
                raise CallerError(
                    "question_invalid", "a program cannot ask for trust", hint="run as the user: sandboxd trust"
                )
        if decision.behavior is not Behavior.ASK:
            return PermissionAnswer(decision.allowed, decision.text, "policy", hint=decision.hint)
        if not session.spec.asks and not (query.kind is QuestionKind.COMMAND and session.spec.is_planning):
            why = f"the permission mode of this session is {session.spec.permission_mode.value}, so there is no prompt"
            return PermissionAnswer(False, why, "policy")
        grant = session.grants.of_command(question.key)
        if grant is not None:
            return PermissionAnswer(True, f"{question.subject}: allowed for the session", grant.by, grant.scope)
        outcome = await put(self.prompts, session, question, asker, process)
        return PermissionAnswer(
            outcome.allowed,
            f"{question.subject}: {outcome.why}",
            outcome.by,
            outcome.scope,
            outcome.request_id,
            decision.hint,
            outcome.outcome.value,
        )

    def _network(self, session: SandboxSession, query: PermissionQuery) -> tuple[Decision, Question, str]:
        if not query.host or query.port is None or not 0 < query.port < 65536:
            raise CallerError("question_invalid", "a question about the network needs a host and a port")
        host = parse_host(query.host)
        running = next((c for c in session.commands() if query.command_id and c.command_id == query.command_id), None)
        asker = _no_command() if running is None else running.wrap_id
        decision = decide_host(
            session.policy.network,
            host,
            query.port,
            session.grants.host_rules(asker),
            self._host_addresses(),
            self._questions.closed_ports(),
        )
        command = query.command if running is None else running.text
        question = host_question(
            host, query.port, session.cwd, text=query.why or decision.text, command=command, command_id=query.command_id
        )
        if running is None:
            question = replace(question, scopes=(GrantScope.ONCE, GrantScope.SESSION, GrantScope.ALWAYS))
        return decision, question, asker

    async def _path(self, session: SandboxSession, query: PermissionQuery) -> tuple[Decision, Question, str]:
        path = query.path or ""
        if not path.startswith("/") or len(path) > LONGEST or _PATTERN.intersection(path):
            raise CallerError(
                "question_invalid",
                "a question about a path needs one absolute path, not a pattern",
                hint="send the path of one file or directory",
            )
        explained = await self._questions.explain_path(path, session.id, None, write=query.write)
        decision, path = explained.decision, explained.subject
        if decision.behavior is Behavior.DENY and decision.reason not in _EXPLICIT:
            if session.policy.allow_overrides:
                decision = Decision(Behavior.ASK, decision.reason, decision.text, hint=decision.hint)
            else:
                text = f"{decision.text}, and sandbox.allowOverrides is off"
                decision = Decision(Behavior.DENY, decision.reason, text)
        opens = wide_path(path, self._home, real_path, write=query.write)
        wide = (f"this lets commands {'write' if query.write else 'read'} {neutralise(opens)}",) if opens else ()
        kind, opposite = ("allowWrite", "denyWrite") if query.write else ("allowRead", "denyRead")
        scopes = [GrantScope.ONCE, GrantScope.SESSION, GrantScope.ALWAYS]
        if query.command_id:
            scopes.insert(1, GrantScope.COMMAND)
        question = Question(
            kind=QuestionKind.PATH,
            key=(QuestionKind.PATH, kind, path),
            subject=neutralise(path),
            project=session.cwd,
            path=path,
            write=query.write,
            command=None if query.command is None else neutralise(query.command),
            command_id=query.command_id,
            text=neutralise(query.why or decision.text),
            warnings=wide,
            wide=bool(wide),
            suggestions=(
                Suggestion(True, f"sandbox.filesystem.{kind}", path),
                Suggestion(False, f"sandbox.filesystem.{opposite}", path),
            ),
            scopes=tuple(scopes),
        )
        return decision, question, query.command_id or _no_command()

    async def _override(
        self, session: SandboxSession, query: PermissionQuery, uid: int
    ) -> tuple[Decision, Question, str]:
        policy, mode = session.policy, session.spec.permission_mode
        if not policy.commands.allow_unsandboxed or mode is PermissionMode.PLAN:
            decision = Decision(
                Behavior.DENY,
                Reason.OVERRIDE_FORBIDDEN,
                f"no command may run outside the sandbox: {why_sandboxed(policy.commands, mode)}",
                "sandbox.allowUnsandboxedCommands",
                policy.commands.allow_unsandboxed_origin,
            )
        else:
            decision = (await self._decided(session, query, uid, unsandboxed=True)).decision
            if decision.behavior is Behavior.ALLOW:  # only by a prompt
                decision = Decision(Behavior.ASK, decision.reason, decision.text, hint=decision.hint)
        question = _about_command(
            session,
            query,
            query.why or "the program asks to run this outside the sandbox",
            (_OUTSIDE, *_blocked(session, query)),
            suggested(query.kind, query.command or "", decision.reason),
        )
        return decision, question, _no_command()

    async def _command(
        self, session: SandboxSession, query: PermissionQuery, uid: int
    ) -> tuple[Decision, Question, str]:
        decided = await self._decided(session, query, uid)
        decision, command = decided.decision, query.command or ""
        suggestions = suggested(query.kind, command, decision.reason) if session.spec.asks else ()
        warnings = () if decided.sandboxed else (_OUTSIDE,)
        text = "; ".join(filter(None, (query.why, decision.text)))
        return decision, _about_command(session, query, text, warnings, suggestions), _no_command()

    async def _decided(
        self, session: SandboxSession, query: PermissionQuery, uid: int, *, unsandboxed: bool = False
    ) -> CommandDecision:
        command = query.command or ""
        if not command.strip() or len(command) > LONGEST_COMMAND:
            raise CallerError(
                "question_invalid", f"a question about a command needs one of at most {LONGEST_COMMAND} characters"
            )
        answer, _ = await self._questions.command(
            command,
            session.id,
            query.directory,
            uid=uid,
            search=query.search,
            unsandboxed=unsandboxed,
            is_sandbox=query.is_sandbox,
        )
        return answer


def suggested(kind: QuestionKind, command: str, reason: Reason) -> tuple[Suggestion, ...]:
    """Return the rules that `always` can write for a question about a command, the narrowest first."""
    if kind is QuestionKind.SANDBOX_OVERRIDE:
        return tuple(
            Suggestion(True, EXCLUDED, pattern, bool(why_wide_program(parse_command_pattern(pattern))))
            for pattern in exclusion_patterns(command)
        )
    if reason is Reason.SANDBOXED and is_exact(command):  # no rule that allows beats one that asks
        rule = f"Bash({command.strip()})"
        return Suggestion(True, "permissions.allow", rule), Suggestion(False, "permissions.deny", rule)
    return ()


def _about_command(
    session: SandboxSession,
    query: PermissionQuery,
    text: str,
    warnings: tuple[str, ...],
    suggestions: tuple[Suggestion, ...],
) -> Question:
    """Return the question about a whole command line in one directory."""
    shown = neutralise(query.command or "", LONGEST_COMMAND)
    scopes = (GrantScope.ONCE, GrantScope.SESSION)
    return Question(
        kind=query.kind,
        key=(query.kind, query.command or "", query.directory or session.cwd),
        subject=shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…",
        project=session.cwd,
        command=shown,
        command_id=None if query.command_id is None else neutralise(query.command_id),
        text=neutralise(text),
        warnings=warnings,
        suggestions=suggestions,
        scopes=(*scopes, GrantScope.ALWAYS) if suggestions else scopes,
    )


def rule_writer(policies: Policies, trusting: Trusting) -> WriteRule:
    """Return the function that puts the rule of an `always`, or trust, in force."""

    async def write(directory: str, suggestion: Suggestion, confirmed: bool) -> tuple[str, ...]:
        if suggestion.key == TRUST_KEY:
            return await trusting.answered(directory, suggestion.rule)
        change = change_of("add", suggestion.key, suggestion.rule)
        return (await change_settings(policies, [change], None, directory, confirmed=confirmed)).warnings

    return write


def _blocked(session: SandboxSession, query: PermissionQuery) -> tuple[str, ...]:
    """Return what the daemon recorded as blocked in the command before."""
    found = session.violations.list(query.command_id) if query.command_id else []
    lines = list(dict.fromkeys(f"{one.operation} {one.target}" for one in found))
    more = f", and {len(lines) - SHOWN_BLOCKED} more" if len(lines) > SHOWN_BLOCKED else ""
    return (f"blocked in the sandbox: {', '.join(lines[:SHOWN_BLOCKED])}{more}",) if lines else ()


def _no_command() -> str:
    """Return the id of a request that belongs to no command."""
    return f"{REQUEST_PREFIX}{secrets.token_hex(8)}"
