"""Open questions: their subscribers, their answers, and their other outcomes.

A question is open from the moment it is put until the first of these, and only a yes allows anything:

| what happens | outcome |
| --- | --- |
| a subscriber answers; the first answer counts | `answered`, allow or deny |
| no answer in time | `timed_out`, deny |
| no client is subscribed, or the last subscriber goes away, and no program tells a user | `no_subscriber`, deny |
| no request waits for it any longer: the command or its connection has ended | `withdrawn`, deny |
| the session ends | `session_ended`, deny |
| the session has too many open, or asks too often | `too_many`, deny; it is not put at all |
| people said no to the same thing before in this session | `remembered`, deny; it is not put at all |

Identical questions of one session share one prompt. It names the command that asked first; who waits beside it from
another command takes a no, or a yes for the session, and asks for itself when the yes was for that other command only.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from sandboxd.errors import CallerError
from sandboxd.runtime.prompts.grants import Grants, GrantScope, Key
from sandboxd.runtime.prompts.prompt_records import (
    Asked,
    Outcome,
    Question,
    QuestionKind,
    ResolvedQuestion,
    Suggestion,
    UserAnswer,
    check,
)
from sandboxd_client.records import dataclass, field

TIMEOUT_S: Final = 300.0
MOST_OPEN: Final = 16
"""Open questions of one session."""
MOST_PUT: Final = 30
"""Questions that one session may put in `PUT_WINDOW_S`: more than people can read is a way of tiring them out."""
PUT_WINDOW_S: Final = 60.0
REQUEST_PREFIX: Final = "request-"
"""Beginning of the name of an asker that is one request, not a command."""
COME_BACK_S: Final = 10.0
"""Seconds that a question waits after a restart for its askers to ask again."""
REMEMBERED: Final = 256
"""How many closed questions are known by their id, so that a late answer is told what became of it."""


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """An open question between two daemons."""

    asked: Asked
    asker: str
    processes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionsRecord:
    """Open questions for the next daemon.

    `put` has for each session when it asked, `closed` what is known of questions that are over."""

    open: tuple[QuestionRecord, ...] = ()
    put: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    closed: tuple[ResolvedQuestion, ...] = ()


Tell = Callable[[Any, Asked | ResolvedQuestion], None]
"""Called with the subscriber; never waits."""
WriteRule = Callable[[str, Suggestion, bool], Awaitable[tuple[str, ...]]]
"""Write a rule to the local settings that count in this project directory; returns warnings. The last says whether the
person has confirmed what a wide one gives away. Raises CallerError, SettingsError."""


@dataclass(slots=True, eq=False)
class _Open:
    asked: Asked
    asker: str
    grants: Grants
    future: asyncio.Future[ResolvedQuestion]
    waiting: Counter[str] = field(default_factory=Counter)
    timer: asyncio.TimerHandle | None = None
    answering: bool = False
    """An answer has come and is being written to settings."""
    comes_back: bool = False
    """The asker asked before a restart, and has not asked again yet."""
    processes: set[tuple[int, int]] = field(default_factory=set)
    """Processes that asked by a request, by process id and start time: they may not answer."""
    present: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The askers whose request waits."""


@dataclass(slots=True)
class _Session:
    open: dict[Key, _Open] = field(default_factory=dict)
    put: deque[float] = field(default_factory=deque)


class Prompts:
    """All questions of a daemon.

    `write_rule` makes an `always` true. `clock` gives seconds since the epoch. `observe` hears of everything
    and cannot answer. `can_notify` returns whether a program tells a user of a question, who may then subscribe."""

    def __init__(
        self,
        write_rule: WriteRule,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.time,
        observe: Callable[[Asked | ResolvedQuestion], None] = lambda event: None,
        can_notify: Callable[[], bool] = lambda: False,
    ) -> None:
        self._write_rule = write_rule
        self.timeout_s = timeout_s
        self._clock = clock
        self._observe = observe
        self.can_notify = can_notify
        self._subscribers: dict[Any, Tell] = {}
        self._watchers: dict[Any, Tell] = {}
        self._open: dict[str, _Open] = {}
        self._sessions: dict[str, _Session] = {}
        self._closed: OrderedDict[str, ResolvedQuestion] = OrderedDict()
        self._suspended = False

    # from one daemon to the next (docs/restarts.md)

    def suspend(self) -> None:
        """Change nothing from now on: requests wait on in the next daemon."""
        self._suspended = True

    @property
    def is_answering(self) -> bool:
        """Return whether an answer is being written to settings."""
        return any(one.answering for one in self._open.values())

    def hand_over(self) -> QuestionsRecord:
        """Let go of everything.

        To be called after `suspend`."""
        for one in self._open.values():
            if one.timer is not None:
                one.timer.cancel()
        record = QuestionsRecord(
            tuple(QuestionRecord(one.asked, one.asker, tuple(one.processes)) for one in self._open.values()),
            {session_id: tuple(session.put) for session_id, session in self._sessions.items()},
            tuple(self._closed.values()),
        )
        self._open.clear()
        self._sessions.clear()
        self._subscribers.clear()
        self._watchers.clear()
        return record

    def resume(self, record: QuestionsRecord, grants: Callable[[str], Grants | None]) -> None:
        """Resume the state of an earlier daemon.

        `grants` are those of a session that was taken over. A request that waited asks again and joins the question;
        it is withdrawn unless that happens."""
        loop = asyncio.get_running_loop()
        for session_id, put in record.put.items():
            if grants(session_id) is not None:
                self._sessions[session_id] = _Session(put=deque(put))
        self._closed.update((str(one.request_id), one) for one in record.closed)
        for question in record.open:
            asked = question.asked
            known = grants(asked.session_id)
            if known is None:
                continue
            one = _Open(asked, question.asker, known, loop.create_future(), comes_back=True)
            one.processes.update(question.processes)
            one.timer = loop.call_later(max(asked.expires_at - self._clock(), 0), self._timed_out, one)
            session = self._sessions.setdefault(asked.session_id, _Session())
            session.open[asked.question.key] = self._open[asked.request_id] = one
        if self._open:
            loop.call_later(COME_BACK_S, self._withdraw_lost)

    def _withdraw_lost(self) -> None:
        for one in list(self._open.values()):
            if one.comes_back and not one.answering:
                self._close(one, Outcome.WITHDRAWN)

    # subscribers

    def subscribe(self, subscriber: object, tell: Tell, *, watch: bool = False) -> tuple[Asked, ...]:
        """Tell `subscriber` of every later question and outcome; return the open ones.

        One that only watches cannot answer, and no question waits for it."""
        if not watch:
            self._watchers.pop(subscriber, None)
            self._subscribers[subscriber] = tell
        elif subscriber not in self._subscribers:
            self._watchers[subscriber] = tell
        return self.open()

    def is_watching(self, subscriber: object) -> bool:
        return subscriber in self._watchers

    def is_subscribed(self, subscriber: object, tell: Tell | None = None) -> bool:
        """Return whether a client is subscribed, and told by `tell` if that is given."""
        told = self._subscribers.get(subscriber) or self._watchers.get(subscriber)
        return told is not None and tell in (None, told)

    def unsubscribe(self, subscriber: object) -> None:
        """Remove a subscriber.

        When it was the last one, and no program tells a user, every open question is denied."""
        self._watchers.pop(subscriber, None)
        if self._subscribers.pop(subscriber, None) is None or self.can_ask():
            return
        for one in list(self._open.values()):
            if not one.answering:
                self._close(one, Outcome.NO_SUBSCRIBER)

    def open(self) -> tuple[Asked, ...]:
        return tuple(one.asked for one in self._open.values())

    def unseen(self, request_id: str) -> None:
        """Deny a question that no program could tell of, and no subscriber sees."""
        one = self._open.get(request_id)
        if one is not None and not self._subscribers and not one.answering:
            self._close(one, Outcome.NO_SUBSCRIBER)

    def can_ask(self) -> bool:
        """Return whether a question put now could be answered."""
        return bool(self._subscribers) or self.can_notify()

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    # asking

    async def ask(
        self,
        session_id: str,
        grants: Grants,
        question: Question,
        asker: str,
        process: tuple[int, int] | None = None,
    ) -> ResolvedQuestion:
        """Put a question, or join the same one that is open, and wait for the outcome.

        `asker` is the command that a yes for one command is for, `process` the process that asks by a request.
        Cancelling it withdraws the question when no other caller waits for it."""
        while True:
            if grants.denied(question.key):
                return ResolvedQuestion(None, session_id, False, Outcome.REMEMBERED)
            if not self.can_ask():
                return ResolvedQuestion(None, session_id, False, Outcome.NO_SUBSCRIBER)
            session = self._sessions.setdefault(session_id, _Session())
            one = session.open.get(question.key)
            if one is not None and one.comes_back:
                if asker.startswith(REQUEST_PREFIX) and one.asker.startswith(REQUEST_PREFIX):
                    asker = one.asker  # such a name lasts no longer than a daemon
                one.comes_back = asker != one.asker
            if one is None:
                if not self._may_put(session):
                    return ResolvedQuestion(None, session_id, False, Outcome.TOO_MANY)
                one = self._put(session_id, session, grants, question, asker)
            if process is not None:
                one.processes.add(process)
                one.present[process] += 1
            try:
                outcome = await self._wait(one, asker)
            finally:
                if process is not None:
                    one.present[process] -= 1
            if one.asker == asker or _holds_for_others(outcome):
                return outcome

    def _may_put(self, session: _Session) -> bool:
        now = self._clock()
        while session.put and session.put[0] <= now - PUT_WINDOW_S:
            session.put.popleft()
        return len(session.open) < MOST_OPEN and len(session.put) < MOST_PUT

    def _put(self, session_id: str, session: _Session, grants: Grants, question: Question, asker: str) -> _Open:
        loop = asyncio.get_running_loop()
        now = self._clock()
        asked = Asked(f"q-{secrets.token_hex(8)}", session_id, question, now + self.timeout_s)
        one = _Open(asked, asker, grants, loop.create_future())
        one.timer = loop.call_later(self.timeout_s, self._timed_out, one)
        session.put.append(now)
        session.open[question.key] = self._open[asked.request_id] = one
        self._tell(asked)
        return one

    async def _wait(self, one: _Open, asker: str) -> ResolvedQuestion:
        one.waiting[asker] += 1
        try:
            return await asyncio.shield(one.future)
        finally:
            one.waiting[asker] -= 1
            if not self._suspended and not one.future.done() and not one.waiting[one.asker] and not one.comes_back:
                self._close(one, Outcome.WITHDRAWN)

    def end_session(self, session_id: str) -> None:
        """Deny what the session still asks, and forget how often it asked."""
        session = self._sessions.pop(session_id, None)
        for one in [] if session is None else list(session.open.values()):
            self._close(one, Outcome.SESSION_ENDED)

    # answering

    def askers(self, request_id: str, *, present: bool = False) -> frozenset[tuple[int, int]]:
        """Return the processes that asked an open question by a request.

        By process id and start time; with `present` those whose request waits now."""
        one = self._open.get(request_id)
        if one is None:
            return frozenset()
        return frozenset(+one.present if present else one.processes)

    async def answer(self, subscriber: object, request_id: str, verdict: UserAnswer, by: str) -> ResolvedQuestion:
        """Take one answer.

        The first one counts; when `always` cannot be written, the question stays open.

        Raises CallerError: `not_permitted` for a client that is not subscribed, `question_unknown`, `question_closed`
        for a late or second answer, `scope_invalid`; and what `write_rule` raises."""
        if subscriber not in self._subscribers:
            raise CallerError(
                "not_permitted", "only a subscriber to questions can answer them", hint="call permission.subscribe"
            )
        one = self._open.get(request_id)
        if one is None:
            raise self._not_open(request_id)
        if one.answering:
            raise CallerError("question_closed", "another client has answered this question", hint=_FIRST)
        check(one.asked.question, verdict)
        warnings: tuple[str, ...] = ()
        if verdict.scope is GrantScope.ALWAYS:
            warnings = await self._write(one, verdict)
        self._apply(one, verdict, by)
        return self._close(one, Outcome.ANSWERED, verdict, by, warnings)

    async def _write(self, one: _Open, verdict: UserAnswer) -> tuple[str, ...]:
        question = one.asked.question
        suggestion = question.suggestion(verdict.allow, verdict.rule)
        assert suggestion is not None, "checked before"
        one.answering = True
        try:
            return await self._write_rule(question.project, suggestion, verdict.confirmed)
        except BaseException:
            one.answering = False
            if not self.can_ask():
                self._close(one, Outcome.NO_SUBSCRIBER)
            elif one.asked.expires_at <= self._clock():
                self._close(one, Outcome.TIMED_OUT)
            raise

    def _apply(self, one: _Open, verdict: UserAnswer, by: str) -> None:
        question, grants = one.asked.question, one.grants
        if not verdict.allow:
            grants.deny(question.key, verdict.ttl_s)
            return
        if verdict.scope is GrantScope.ALWAYS or question.kind is QuestionKind.TRUST or one.future.done():
            return
        of_request = question.kind is QuestionKind.NETWORK and question.rule is None
        if of_request or question.kind in (QuestionKind.SANDBOX_OVERRIDE, QuestionKind.COMMAND):
            if verdict.scope is GrantScope.SESSION:
                grants.give(question.subject, verdict.scope, None, by, ttl_s=verdict.ttl_s, key=question.key)
            return
        command_id = question.command_id if verdict.scope is GrantScope.COMMAND else None
        if question.rule is not None and verdict.scope is not GrantScope.ONCE:
            asker = None if verdict.scope is GrantScope.SESSION else one.asker
            grants.give(
                question.subject, verdict.scope, asker, by,
                ttl_s=verdict.ttl_s, rule=question.rule, command_id=command_id,
            )  # fmt: skip
        elif question.path is not None:
            uses = 1 if verdict.scope is GrantScope.ONCE else None
            grants.give(
                question.subject, verdict.scope, command_id, by,
                ttl_s=verdict.ttl_s, path=question.path, write=question.write, uses=uses, command_id=command_id,
            )  # fmt: skip

    def _not_open(self, request_id: str) -> CallerError:
        closed = self._closed.get(request_id)
        if closed is None:
            return CallerError("question_unknown", f"there is no question {request_id[:40]!r}")
        what = "allowed" if closed.allowed else "denied"
        return CallerError("question_closed", f"this question is {what} already: {closed.why}", hint=_FIRST)

    # the end of a question

    def _timed_out(self, one: _Open) -> None:
        if not one.answering:
            self._close(one, Outcome.TIMED_OUT)

    def _close(
        self,
        one: _Open,
        outcome: Outcome,
        verdict: UserAnswer | None = None,
        by: str | None = None,
        warnings: tuple[str, ...] = (),
    ) -> ResolvedQuestion:
        allowed = verdict is not None and verdict.allow
        resolved = ResolvedQuestion(
            one.asked.request_id,
            one.asked.session_id,
            allowed,
            outcome,
            None if verdict is None else verdict.scope,
            by,
            warnings,
            one.asker,
        )
        if one.future.done():  # it was withdrawn while its answer was being written
            return resolved
        one.future.set_result(resolved)
        if one.timer is not None:
            one.timer.cancel()
        self._open.pop(one.asked.request_id, None)
        session = self._sessions.get(one.asked.session_id)
        if session is not None and session.open.get(one.asked.question.key) is one:
            del session.open[one.asked.question.key]
        self._closed[one.asked.request_id] = resolved
        while len(self._closed) > REMEMBERED:
            self._closed.popitem(last=False)
        self._tell(resolved)
        return resolved

    def _tell(self, event: Asked | ResolvedQuestion) -> None:
        self._observe(event)
        for subscriber, tell in (*self._subscribers.items(), *self._watchers.items()):
            tell(subscriber, event)


_FIRST: Final = "the first answer counts; sandbox_permission_resolved told of it"


def _holds_for_others(outcome: ResolvedQuestion) -> bool:
    """Return whether an outcome also answers the waiters of other commands."""
    if outcome.outcome is Outcome.WITHDRAWN:
        return False
    return not outcome.allowed or outcome.scope in (GrantScope.SESSION, GrantScope.ALWAYS)
