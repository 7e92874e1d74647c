"""What programs ask for by name (`permission.request`), the rules that answers write, and whose connections subscribe.

A request is first decided by the policy, as the thing itself would be; only what the policy leaves open is put to
people. Running a command outside the sandbox is always put to them: no rule and no setting answers that with yes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sandboxd.daemon.changing import change_of, change_settings
from sandboxd.daemon.trusting import TRUST_KEY
from sandboxd.errors import CallerError
from sandboxd.policy.command_decisions import why_sandboxed
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.display import LONGEST, neutralise
from sandboxd.policy.host_decisions import decide_host
from sandboxd.policy.hosts import parse_host
from sandboxd.policy.wide_grants import wide_path
from sandboxd.proxy.interfaces import OwnAddresses
from sandboxd.runtime.asking import host_question, put
from sandboxd.runtime.grants import Grant, Scope
from sandboxd.runtime.prompts import NOBODY, Prompts, Tell, WriteRule
from sandboxd.runtime.questions import Asked, Kind, Question, Resolved, Suggestion, Verdict
from sandboxd.runtime.session import Session
from sandboxd.runtime.session_records import PermissionMode
from sandboxd.sources.trust import real_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandboxd.daemon.policies import Policies
    from sandboxd.daemon.questions import Questions
    from sandboxd.daemon.trusting import Trusting
    from sandboxd.runtime.sessions import Sessions

__all__ = ["Answer", "Asked", "Grant", "Kind", "Permissions", "Resolved", "Scope", "Verdict", "Wish", "rule_writer"]

LONGEST_COMMAND = 16 << 10
"""A person must see the whole of a command that is to run outside the sandbox."""
SHOWN_BLOCKED = 5
_EXPLICIT = frozenset({Reason.PATH_DENIED, Reason.PATH_PROTECTED})
_PATTERN = frozenset("*?[]{}$\0")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a program asks for. `reason` is its own word for why, shown to people."""

    kind: Kind
    host: str | None = None
    port: int | None = None
    path: str | None = None
    write: bool = False
    command: str | None = None
    command_id: str | None = None
    reason: str = ""

    @property
    def why(self) -> str:
        """The reason as people see it: it is a claim, and looks like one."""
        return f"the program says: {self.reason}" if self.reason else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`by` is `policy` when nobody had to be asked. `text` is a sentence for people."""

    allowed: bool
    text: str
    by: str | None = None
    scope: Scope | None = None
    request_id: str | None = None
    hint: str = ""


class Permissions:
    """The permission methods of a daemon."""

    def __init__(
        self,
        prompts: Prompts,
        questions: Questions,
        sessions: Sessions,
        taken_back: Callable[[str], None] = lambda session_id: None,
        home: str = "/",
    ) -> None:
        """`taken_back` hears of each session in which a grant was revoked; `home` is the user's home directory."""
        self.prompts = prompts
        self._taken_back = taken_back
        self._home = home
        self._questions = questions
        self._sessions = sessions
        self._own_addresses = OwnAddresses()

    def subscribe(self, subscriber: object, tell: Tell) -> tuple[Asked, ...]:
        return self.prompts.subscribe(subscriber, tell)

    def connection_lost(self, subscriber: object) -> None:
        self.prompts.unsubscribe(subscriber)

    async def answer(
        self, subscriber: object, request_id: str, verdict: Verdict, by: str
    ) -> Resolved:
        """Raises CallerError, and SettingsError when `always` cannot be written; the question stays open then."""
        return await self.prompts.answer(subscriber, request_id, verdict, by)

    def grants(self, session_id: str | None) -> list[tuple[str, Grant]]:
        """(session, grant) of one session, or of all. Raises CallerError `session_unknown`."""
        sessions = self._sessions.all() if session_id is None else [self._sessions.get(session_id)]
        return [(session.id, grant) for session in sessions for grant in session.grants.list()]

    def revoke(self, session_id: str, grant_id: str) -> Grant:
        """Take a yes back; connections that stand on it are cut. Raises CallerError."""
        revoked = self._sessions.get(session_id).grants.revoke(grant_id)
        self._taken_back(session_id)
        return revoked

    async def request(
        self, session: Session, wish: Wish, *, uid: int, process: tuple[int, int] | None = None
    ) -> Answer:
        """Decide, asking people where the policy leaves it open. `process` is the one that asks, by process id and
        start time. Raises CallerError for a wish that makes no sense."""
        match wish.kind:
            case Kind.NETWORK:
                decision, question, asker = self._network(session, wish)
            case Kind.PATH:
                decision, question, asker = await self._path(session, wish)
            case Kind.SANDBOX_OVERRIDE:
                decision, question, asker = await self._override(session, wish, uid)
            case Kind.TRUST:
                raise CallerError(
                    "question_invalid", "no program asks for trust", hint="a person types: sandboxd trust"
                )
        if decision.behavior is not Behavior.ASK:
            return Answer(decision.allowed, decision.text, "policy", hint=decision.hint)
        if session.spec.permission_mode is PermissionMode.NONE:
            return Answer(False, "this session asks nobody: its permission mode is none", "policy")
        outcome = await put(self.prompts, session, question, asker, process)
        text = f"{question.subject}: {outcome.why}"
        return Answer(outcome.allowed, text, outcome.by, outcome.scope, outcome.request_id, decision.hint)

    def _network(self, session: Session, wish: Wish) -> tuple[Decision, Question, str]:
        if not wish.host or wish.port is None or not 0 < wish.port < 65536:
            raise CallerError("question_invalid", "a question about the network needs a host and a port")
        host = parse_host(wish.host)
        running = next((c for c in session.commands() if wish.command_id and c.command_id == wish.command_id), None)
        asker = _nobody() if running is None else running.wrap_id
        decision = decide_host(
            session.policy.network, host, wish.port, session.grants.host_rules(asker), self._own_addresses()
        )
        command = wish.command if running is None else running.text
        question = host_question(
            host, wish.port, session.cwd, text=wish.why or decision.text, command=command, command_id=wish.command_id
        )
        if running is None:
            question = replace(question, scopes=(Scope.ONCE, Scope.SESSION, Scope.ALWAYS))
        return decision, question, asker

    async def _path(self, session: Session, wish: Wish) -> tuple[Decision, Question, str]:
        path = wish.path or ""
        if not path.startswith("/") or len(path) > LONGEST or _PATTERN.intersection(path):
            raise CallerError(
                "question_invalid",
                "a question about a path needs one absolute path, not a pattern",
                hint="send the path of one file or directory",
            )
        explained = await self._questions.explain_path(path, session.id, None, write=wish.write)
        decision, path = explained.decision, explained.subject
        if decision.behavior is Behavior.DENY and decision.reason not in _EXPLICIT:
            if session.policy.allow_overrides:
                decision = Decision(Behavior.ASK, decision.reason, decision.text, hint=decision.hint)
            else:
                text = f"{decision.text}, and sandbox.allowOverrides lets nobody widen the rules"
                decision = Decision(Behavior.DENY, decision.reason, text)
        opens = wide_path(path, self._home, real_path, write=wish.write)
        wide = (f"this lets commands {'write' if wish.write else 'read'} {neutralise(opens)}",) if opens else ()
        kind, opposite = ("allowWrite", "denyWrite") if wish.write else ("allowRead", "denyRead")
        scopes = [Scope.ONCE, Scope.SESSION, Scope.ALWAYS]
        if wish.command_id:
            scopes.insert(1, Scope.COMMAND)
        question = Question(
            kind=Kind.PATH,
            key=(Kind.PATH, kind, path),
            subject=neutralise(path),
            project=session.cwd,
            path=path,
            write=wish.write,
            command=None if wish.command is None else neutralise(wish.command),
            command_id=wish.command_id,
            text=neutralise(wish.why or decision.text),
            warnings=wide,
            wide=bool(wide),
            suggestions=(
                Suggestion(True, f"sandbox.filesystem.{kind}", path),
                Suggestion(False, f"sandbox.filesystem.{opposite}", path),
            ),
            scopes=tuple(scopes),
        )
        return decision, question, wish.command_id or _nobody()

    async def _override(self, session: Session, wish: Wish, uid: int) -> tuple[Decision, Question, str]:
        command = wish.command or ""
        if not command.strip() or len(command) > LONGEST_COMMAND:
            raise CallerError(
                "question_invalid",
                f"a question about the sandbox needs a command of at most {LONGEST_COMMAND} characters",
            )
        policy = session.policy
        if not policy.commands.allow_unsandboxed:
            decision = Decision(
                Behavior.DENY,
                Reason.OVERRIDE_FORBIDDEN,
                f"no command may run outside the sandbox: {why_sandboxed(policy.commands)}",
                "sandbox.allowUnsandboxedCommands",
                policy.commands.allow_unsandboxed_origin,
            )
        else:
            decided, _ = await self._questions.command(command, session.id, None, uid=uid, search="", unsandboxed=True)
            decision = decided.decision
            if decision.behavior is Behavior.ALLOW:  # never without a person
                decision = Decision(Behavior.ASK, decision.reason, decision.text, hint=decision.hint)
        shown = neutralise(command, LONGEST_COMMAND)
        question = Question(
            kind=Kind.SANDBOX_OVERRIDE,
            key=(Kind.SANDBOX_OVERRIDE, command),
            subject=shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…",
            project=session.cwd,
            command=shown,
            command_id=None if wish.command_id is None else neutralise(wish.command_id),
            text=neutralise(wish.why or "the program asks to run this outside the sandbox"),
            warnings=("outside the sandbox it can read, change and send whatever you can", *_blocked(session, wish)),
            scopes=(Scope.ONCE,),
        )
        return decision, question, _nobody()


def rule_writer(policies: Policies, trusting: Trusting) -> WriteRule:
    """What makes an `always` true: the rule goes into local settings, or trust into its records, and holds when it
    returns."""

    async def write(directory: str, suggestion: Suggestion, confirmed: bool) -> tuple[str, ...]:
        if suggestion.key == TRUST_KEY:
            return await trusting.answered(directory, suggestion.rule)
        change = change_of("add", suggestion.key, suggestion.rule)
        return (await change_settings(policies, [change], None, directory, confirmed=confirmed)).warnings

    return write


def _blocked(session: Session, wish: Wish) -> tuple[str, ...]:
    """What the sandbox blocked in the command before: known to us, not claimed by the program."""
    found = session.violations.list(wish.command_id) if wish.command_id else []
    lines = list(dict.fromkeys(f"{one.operation} {one.target}" for one in found))
    more = f", and {len(lines) - SHOWN_BLOCKED} more" if len(lines) > SHOWN_BLOCKED else ""
    return (f"blocked in the sandbox: {', '.join(lines[:SHOWN_BLOCKED])}{more}",) if lines else ()


def _nobody() -> str:
    """Stands for one request that belongs to no command."""
    return f"{NOBODY}{secrets.token_hex(8)}"
