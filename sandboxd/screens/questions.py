"""The view Questions: what commands ask, and the answers that each question may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sandboxd.policy.display import neutralise
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.prompts import Answer, PermissionRequest, PermissionResolved, Scope, SuggestionRecord

LONGEST: Final = 20000
"""Characters of a text of a question: it is shown in full."""
KEPT_OUTCOMES: Final = 20

# key: behavior, scope, words. `2` and `3` choose a wider rule than `a`.
ANSWERS: Final[dict[str, tuple[Answer, Scope, str]]] = {
    "y": ("allow", "once", "yes, once"),
    "c": ("allow", "command", "yes, for this command"),
    "s": ("allow", "session", "yes, for the session"),
    "a": ("allow", "always", "yes, always"),
    "2": ("allow", "always", "yes, always and more"),
    "3": ("allow", "always", "yes, always and more"),
    "n": ("deny", "once", "no"),
    "d": ("deny", "always", "no, never"),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that a question may have, and its rule where it writes one. `wide`: ask twice."""

    key: str
    words: str
    behavior: Answer
    scope: Scope
    rule: str = ""
    list: str = ""
    pattern: str | None = None
    wide: bool = False

    @property
    def label(self) -> str:
        return self.words + (f" (rule {self.rule} in {self.list})" if self.rule else "")


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """An open question: its sentence, rows of `(label, text)`, and its answers."""

    request_id: str
    session_id: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    choices: tuple[Choice, ...]
    expires_at: float

    def left(self, now: float) -> str:
        return f"no answer in {max(0, round(self.expires_at - now))} s means no"


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """A question that has ended, and how."""

    request_id: str
    sentence: str
    outcome: str


def question_row(request: PermissionRequest) -> QuestionRow:
    what = {
        "network": f"reach {request.host}:{request.port}",
        "path": f"{'write' if request.write else 'read'} {request.path}",
        "sandbox_override": "run OUTSIDE the sandbox",
        "command": "run",
        "trust": f"do what the changed settings of {request.project} say",
    }.get(request.kind, request.kind)
    ending = ":" if request.kind in ("sandbox_override", "command") else "?"
    facts = [("command", request.command)] if request.command else []
    facts.append(("project", f"{request.project} ({request.session_id})"))
    facts += [("because", request.text)] if request.text else []
    facts += [("careful", warning) for warning in request.warnings]
    return QuestionRow(
        request.request_id,
        request.session_id,
        neutralise(f"May a command {what}{ending}", LONGEST),
        tuple((label, neutralise(text or "", LONGEST)) for label, text in facts),
        tuple(choices_of(request)),
        request.expires_at,
    )


def choices_of(request: PermissionRequest) -> Iterable[Choice]:
    """Yield the answers that a question may have, in the order of their keys."""
    denying = any(one.behavior == "deny" for one in request.suggestions)
    for key, (behavior, scope, words) in ANSWERS.items():
        rule = suggestion_of(request, key)
        possible = scope in request.scopes if behavior == "allow" else scope == "once" or denying
        if not possible or (key in "23" and rule is None):
            continue
        wide = behavior == "allow" and (request.wide or (rule is not None and rule.wide))
        if rule is None:
            yield Choice(key, words, behavior, scope, wide=wide)
        else:
            texts = neutralise(rule.rule, LONGEST), rule.key
            yield Choice(key, words, behavior, scope, *texts, rule.pattern, wide)


def suggestion_of(request: PermissionRequest, key: str) -> SuggestionRecord | None:
    """Return the rule that a key writes: the narrowest, or a wider one by its number."""
    behavior, scope, _ = ANSWERS[key]
    rules = [one for one in request.suggestions if scope == "always" and one.behavior == behavior]
    number = int(key) - 1 if key in "23" else 0
    return rules[number] if number < len(rules) else None


class OpenQuestions:
    """The open questions in their order, and the last outcomes."""

    def __init__(self) -> None:
        self._open: dict[str, QuestionRow] = {}
        self.outcomes: tuple[OutcomeRow, ...] = ()

    @property
    def open(self) -> tuple[QuestionRow, ...]:
        return tuple(self._open.values())

    def get(self, request_id: str) -> QuestionRow | None:
        return self._open.get(request_id)

    def restart(self, asked: Iterable[PermissionRequest]) -> None:
        """Take the state of a new subscription."""
        self._open = {one.request_id: question_row(one) for one in asked}

    def take(self, event: PermissionRequest | PermissionResolved) -> None:
        """Take a notification: a question, or its end, wherever it was answered."""
        if isinstance(event, PermissionRequest):
            self._open[event.request_id] = question_row(event)
        elif (row := self._open.pop(event.request_id, None)) is not None:
            words = {"allow": "yes", "deny": "no"}[event.behavior]
            how = f"{words}, {event.scope}" if event.behavior == "allow" and event.scope else words
            why = ", ".join(filter(None, (event.text, event.by)))
            ended = OutcomeRow(row.request_id, row.sentence, neutralise(f"{how}: {why}" if why else how))
            self.outcomes = (ended, *self.outcomes)[:KEPT_OUTCOMES]
