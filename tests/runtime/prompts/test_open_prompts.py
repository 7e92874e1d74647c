"""Questions and grants by themselves: what the daemon's tests cannot time exactly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandboxd.errors import CallerError, SettingsError
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.runtime.prompts.connection_prompts import host_question
from sandboxd.runtime.prompts.grants import Grants, GrantScope
from sandboxd.runtime.prompts.open_prompts import MOST_PUT, PUT_WINDOW_S, Prompts
from sandboxd.runtime.prompts.prompt_records import Asked, Outcome, Question, ResolvedQuestion, UserAnswer
from sandboxd.runtime.wrap import NO_OVERRIDES
from support.waiting import wait_until_async


class Desk:
    """Prompts with one subscriber; `writing` holds the writer of rules up, `fault` makes it fail."""

    def __init__(self, **keywords: Any) -> None:
        self.now = 1000.0
        self.writing = asyncio.Event()
        self.writing.set()
        self.fault: Exception | None = None
        self.prompts = Prompts(self.write, clock=lambda: self.now, **keywords)
        self.grants = Grants(clock=lambda: self.now)
        self.events: list[Asked | ResolvedQuestion] = []
        self.prompts.subscribe(self, lambda desk, event: self.events.append(event))

    async def write(self, directory: str, suggestion: object, confirmed: bool) -> tuple[str, ...]:
        await self.writing.wait()
        if self.fault is not None:
            raise self.fault
        return ("be careful",)

    def ask(self, host: str = "ask.test", asker: str = "c-1", session: str = "s-1") -> asyncio.Task[ResolvedQuestion]:
        return asyncio.create_task(self.prompts.ask(session, self.grants, question(host), asker))

    async def asked(self, count: int = 1) -> list[str]:
        for _ in range(100):  # turns of the event loop, no time
            if len(self.prompts.open()) == count:
                break
            await asyncio.sleep(0)
        return [one.request_id for one in self.prompts.open()]

    async def answer(
        self, request_id: str, *, allow: bool = True, scope: GrantScope = GrantScope.ONCE
    ) -> ResolvedQuestion:
        return await self.prompts.answer(self, request_id, UserAnswer(allow, scope), "me")


def question(host: str) -> Question:
    return host_question(parse_host(host), 443, "/w")


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_a_rule_being_written_blocks_other_answers(desk: Desk) -> None:
    desk.prompts.timeout_s = 0.01
    desk.writing.clear()
    asking = desk.ask()
    [request_id] = await desk.asked()
    first = asyncio.create_task(desk.answer(request_id, scope=GrantScope.ALWAYS))
    await asyncio.sleep(0)
    with pytest.raises(CallerError) as caught:
        await desk.answer(request_id, allow=False)
    assert caught.value.slug == "question_closed"
    desk.prompts.unsubscribe(desk)
    timed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.02, timed.set_result, None)
    await timed
    assert not asking.done()
    desk.writing.set()
    assert (await first).warnings == ("be careful",)
    assert (await asking).allowed


@pytest.mark.parametrize(("late", "outcome"), [(False, Outcome.NO_SUBSCRIBER), (True, Outcome.TIMED_OUT)])
async def test_an_unwritable_rule_leaves_the_question_open(desk: Desk, late: bool, outcome: Outcome) -> None:
    desk.writing.clear()
    desk.fault = SettingsError("settings_unwritable", "no")
    asking = desk.ask()
    [request_id] = await desk.asked()
    answering = asyncio.create_task(desk.answer(request_id, scope=GrantScope.ALWAYS))
    await asyncio.sleep(0)
    if late:
        desk.now += 10_000
    else:
        desk.prompts.unsubscribe(desk)
    desk.writing.set()
    with pytest.raises(SettingsError):
        await answering
    assert ((await asking).allowed, (await asking).outcome) == (False, outcome)


async def test_withdrawn_while_its_rule_is_written(desk: Desk) -> None:
    """The person said so: the rule stands, and the answer is taken; it grants nothing else."""
    desk.writing.clear()
    asking = desk.ask()
    [request_id] = await desk.asked()
    answering = asyncio.create_task(desk.answer(request_id, scope=GrantScope.ALWAYS))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    desk.writing.set()
    assert (await answering).allowed
    assert [event.outcome for event in desk.events if isinstance(event, ResolvedQuestion)] == [Outcome.WITHDRAWN]
    assert desk.grants.list() == [] and desk.prompts.open() == ()


async def test_a_waiting_command_asks_for_itself_after_the_first_ends(desk: Desk) -> None:
    first = desk.ask(asker="c-1")
    [one] = await desk.asked()
    second = desk.ask(asker="c-2")
    await asyncio.sleep(0)
    first.cancel()
    await wait_until_async(lambda: [a.request_id for a in desk.prompts.open()] not in ([], [one]), "asked anew")
    [other] = await desk.asked()
    await desk.answer(other, scope=GrantScope.COMMAND)
    assert (await second).allowed
    assert [grant.asker for grant in desk.grants.list()] == ["c-2"]


async def test_another_session_is_asked_by_itself(desk: Desk) -> None:
    asking = [desk.ask(session="s-1"), desk.ask(session="s-2")]
    for request_id in await desk.asked(2):
        await desk.answer(request_id, allow=False)
    assert [outcome.allowed for outcome in await asyncio.gather(*asking)] == [False, False]


async def test_how_often_a_session_may_ask(desk: Desk) -> None:
    for number in range(MOST_PUT):
        asking = desk.ask(f"h{number}.test")
        [request_id] = await desk.asked()
        await desk.answer(request_id, allow=False)
        await asking
    assert (await desk.ask("one-more.test")).outcome is Outcome.TOO_MANY
    other = desk.ask("x.test", session="s-2")  # its own allowance
    await desk.asked()
    other.cancel()
    await asyncio.wait([other])
    desk.now += PUT_WINDOW_S
    again = desk.ask("one-more.test")
    [request_id] = await desk.asked()
    await desk.answer(request_id)
    assert (await again).allowed


async def test_a_remembered_no_ends_with_its_time(desk: Desk) -> None:
    key = question("ask.test").key
    desk.grants.deny(key, 10)
    assert (await desk.ask()).outcome is Outcome.REMEMBERED
    desk.now += 10
    asking = desk.ask()
    [request_id] = await desk.asked()
    await desk.answer(request_id)
    assert (await asking).allowed


async def test_a_grant_is_over_at_its_time_also_when_nothing_looks(desk: Desk) -> None:
    desk.grants.give("a", GrantScope.SESSION, None, "me", ttl_s=10, path="/a", write=True)
    assert desk.grants.widen(NO_OVERRIDES, None).granted_write == ("/a",)
    desk.now += 10
    assert desk.grants.widen(NO_OVERRIDES, None) is NO_OVERRIDES and desk.grants.list() == []
    desk.grants.close()


async def test_an_outcome_is_forgotten_in_the_end(desk: Desk) -> None:
    with pytest.raises(CallerError) as caught:
        await desk.answer("q-0")
    assert caught.value.slug == "question_unknown"


@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_path_granted_for_a_launch_holds_until_it_is_over(handed_over: bool) -> None:
    """Used up by the wrap, it is still what the launch rests on: also for the daemon that starts it."""
    now = 100.0
    grants = Grants(clock=lambda: now)
    once, session = (
        grants.give(f"/{scope}", scope, "c-1", "a person", ttl_s=60, path=f"/{scope}", write=True, uses=uses)
        for scope, uses in ((GrantScope.ONCE, 1), (GrantScope.SESSION, None))
    )
    widened = grants.widen(NO_OVERRIDES, "c-1")
    assert set(widened.granted_write) == {"/once", "/session"} and widened.grants == (once.id, session.id)
    assert grants.widen(NO_OVERRIDES, "c-1").granted_write == ("/session",), "once is once"
    if handed_over:
        record, grants = grants.record(), Grants(clock=lambda: now)
        grants.resume(record)
        assert grants.widen(NO_OVERRIDES, "c-1").granted_write == ("/session",)
    assert grants.check(widened) is widened and grants.check(NO_OVERRIDES) is NO_OVERRIDES
    now = 160.0
    with pytest.raises(CallerError, match="has ended"):
        grants.check(widened)
    now = 100.0
    grants.revoke(session.id)
    with pytest.raises(CallerError, match="has ended"):
        grants.check(widened)
    grants.close()
