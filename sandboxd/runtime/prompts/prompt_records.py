"""Permission prompts and their outcomes, as values.

`runtime/prompts/open_prompts.py` puts the questions."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sandboxd.errors import CallerError
from sandboxd.policy.model import HostRule
from sandboxd.runtime.prompts.grants import GrantScope, Key
from sandboxd_client.records import dataclass, field

LONGEST_TTL_S: Final = 30 * 24 * 3600.0


class QuestionKind(StrEnum):
    NETWORK = "network"
    PATH = "path"
    SANDBOX_OVERRIDE = "sandbox_override"
    COMMAND = "command"
    """May this command run at all? Asked where a rule or the strict mode says so."""
    TRUST = "trust"
    """May the changed settings files of a project widen? Asked by the daemon itself."""


class Outcome(StrEnum):
    """Outcome of a question.

    A fixed list: programs read it."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    NO_SUBSCRIBER = "no_subscriber"
    WITHDRAWN = "withdrawn"
    SESSION_ENDED = "session_ended"
    TOO_MANY = "too_many"
    REMEMBERED = "remembered"


WHY: Final = {
    Outcome.ANSWERED: "it was denied when asked",
    Outcome.TIMED_OUT: "no subscriber answered the question in time",
    Outcome.NO_SUBSCRIBER: "no client answers prompts",
    Outcome.WITHDRAWN: "what asked for it has ended",
    Outcome.SESSION_ENDED: "the session has ended",
    Outcome.TOO_MANY: "this session has asked too many questions",
    Outcome.REMEMBERED: "it was denied in this session before",
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The rule that `always` writes: an entry of the list `key` of local settings."""

    allow: bool
    key: str
    rule: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question to subscribers.

    Every text is fit for display. `key` is what it is about, `subject` the same for people; `path` is as the policy
    knows it, while `subject` may be neutralised. `warnings` say what a yes would really mean."""

    kind: QuestionKind
    key: Key
    subject: str
    project: str
    host: str | None = None
    port: int | None = None
    path: str | None = None
    write: bool = False
    command: str | None = None
    command_id: str | None = None
    text: str = ""
    warnings: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    scopes: tuple[GrantScope, ...] = (GrantScope.ONCE,)
    wide: bool = False
    """A yes is a wide grant, so it is asked for twice."""
    rule: HostRule | None = field(default=None, repr=False)
    """The pattern that a yes allows, for a host."""

    def suggestion(self, allow: bool, rule: str | None = None) -> Suggestion | None:
        """Return the narrowest suggestion, or the one of this `rule`."""
        return next((s for s in self.suggestions if s.allow is allow and rule in (None, s.rule)), None)


@dataclass(frozen=True, slots=True)
class Asked:
    """An open question, as subscribers receive it."""

    request_id: str
    session_id: str
    question: Question
    expires_at: float


@dataclass(frozen=True, slots=True)
class ResolvedQuestion:
    """A question with its outcome.

    `by` names the subscriber; `warnings` are for the person who answered. `asker` put the question; None for
    one that was never put."""

    request_id: str | None
    session_id: str
    allowed: bool
    outcome: Outcome
    scope: GrantScope | None = None
    by: str | None = None
    warnings: tuple[str, ...] = ()
    asker: str | None = None

    @property
    def why(self) -> str:
        return "it was allowed when asked" if self.allowed else WHY[self.outcome]


@dataclass(frozen=True, slots=True)
class UserAnswer:
    """The answer of one user."""

    allow: bool
    scope: GrantScope = GrantScope.ONCE
    ttl_s: float | None = None
    confirmed: bool = False
    """The user has confirmed a wide grant."""
    rule: str | None = None
    """The suggestion that `always` writes; None for the narrowest."""


def check(question: Question, verdict: UserAnswer) -> None:
    """Check an answer against its question. Raises CallerError.

    `scope_invalid`; `confirmation_needed` for a wide rule that was not confirmed."""
    usable = verdict.scope in question.scopes
    if not verdict.allow:  # a no is remembered for the session, whatever scope came with it
        usable = verdict.scope is not GrantScope.ALWAYS or question.suggestion(False) is not None
    suggestion = question.suggestion(verdict.allow, verdict.rule) if verdict.scope is GrantScope.ALWAYS else None
    if verdict.rule is not None and suggestion is None:
        raise CallerError(
            "scope_invalid", "a pattern is for the scope always, and one of the suggestions", hint="leave it out"
        )
    if not usable:
        raise CallerError(
            "scope_invalid",
            f"the scope {verdict.scope.value} is not possible for this question",
            hint=f"send one of the scopes: {', '.join(question.scopes)}",
        )
    wide = question.wide or (suggestion is not None and suggestion.wide)
    if verdict.allow and verdict.scope is GrantScope.ALWAYS and wide and not verdict.confirmed:
        raise CallerError(
            "confirmation_needed",
            f"a rule for {question.subject} allows very much: {'; '.join(question.warnings)}",
            hint="repeat the answer with confirm, if that is meant",
        )
    if verdict.ttl_s is None:
        return
    limited = verdict.scope in (GrantScope.COMMAND, GrantScope.SESSION) or not (
        verdict.allow or verdict.scope is GrantScope.ALWAYS
    )
    if not limited or not 0 < verdict.ttl_s <= LONGEST_TTL_S:
        raise CallerError(
            "scope_invalid",
            "ttl_s is for the scopes command and session, more than 0 and at most 30 days",
            hint="leave it out",
        )
