"""Questions about limits: asked once for a limit, not for each connection, and a yes makes no rule for the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.runtime.prompts.connection_prompts import asking
from sandboxd.runtime.prompts.grants import GrantScope
from sandboxd.runtime.prompts.prompt_records import Outcome, Question, ResolvedQuestion


@pytest.mark.parametrize(
    ("reason", "of_limit"), [(Reason.UPLOAD_LIMIT, True), (Reason.NAME_LIMIT, True), (Reason.HOST_NOT_LISTED, False)]
)
async def test_a_question_about_a_limit(reason: Reason, of_limit: bool) -> None:
    asked: list[Question] = []
    outcomes = [
        ResolvedQuestion(None, "s", True, Outcome.ANSWERED),
        ResolvedQuestion(None, "s", False, Outcome.NO_SUBSCRIBER),
    ]

    class Prompts:
        async def ask(self, session_id: str, grants: Any, question: Question, *_: Any) -> ResolvedQuestion:
            asked.append(question)
            return outcomes[len(asked) - 1]

    session: Any = SimpleNamespace(id="s", closed=False, grants=None, cwd="/p")
    command: Any = SimpleNamespace(text="make", command_id=None, wrap_id="w")
    prompts: Any = Prompts()
    ask = asking(prompts, session, command)
    decisions = []
    for name in ("a.test", "b.test"):
        decisions.append(await ask(parse_host(name), 443, Decision(Behavior.ASK, reason, f"{name}: why", "*")))
    assert [one.reason for one in decisions] == [Reason.GRANTED, reason]
    assert (asked[0].key == asked[1].key) is of_limit and (asked[0].scopes == (GrantScope.ONCE,)) is of_limit
    assert all((not one.suggestions and one.rule is None) is of_limit for one in asked)
    assert asked[0].text == "a.test: why"
