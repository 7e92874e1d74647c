"""The views of screens: rows from answers, one printable line each, and bounds."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any

import pytest

from sandboxd.screens.blocked import Filter, History
from sandboxd.screens.layers import layers_of
from sandboxd.screens.now import age_of, now_of
from sandboxd.screens.questions import OpenQuestions, question_row
from sandboxd.screens.rules import explain_query, explained, policy_of
from sandboxd_client.wire.messages.check import CheckResult, CheckStepRecord
from sandboxd_client.wire.messages.commands import RunningCommandRecord
from sandboxd_client.wire.messages.decisions import ReasonRecord
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.policy import ExplainResult
from sandboxd_client.wire.messages.prompts import PermissionRequest, PermissionResolved, SuggestionRecord
from sandboxd_client.wire.messages.sessions import SessionRecord
from sandboxd_client.wire.messages.settings import LockedKey, SettingsGetResult, SettingsProblem, SettingValue
from sandboxd_client.wire.messages.violations import ViolationRecord

EVIL = "a\x1b[2J\nb\u202e\x9b[red]<b>"
PLACE = OriginRecord("local", "sandbox.filesystem.denyRead", "/h/s.json", 3, 1)


def texts(value: Any) -> list[str]:
    """Every text in a record, but for values of settings as they are written back."""
    if isinstance(value, str):
        return [value]
    if dataclasses.is_dataclass(value):
        return [
            text
            for field in dataclasses.fields(value)
            if field.name != "value"
            for text in texts(getattr(value, field.name))
        ]
    return [text for one in value for text in texts(one)] if isinstance(value, tuple) else []


def violation(number: int, **more: Any) -> ViolationRecord:
    return dataclasses.replace(
        ViolationRecord(number, float(number), "s-1", "c", "write", "openat", f"/t/{number}", "pathNotWritable", "x"),
        **more,
    )


def question(number: int = 1, **more: Any) -> PermissionRequest:
    rules = (
        SuggestionRecord("allow", "always", "k", "a.test:443"),
        SuggestionRecord("allow", "always", "k", "*", wide=True),
    )
    asked = PermissionRequest(f"q-{number}", "s-1", "network", 9.0, "a.test", 443, suggestions=rules, project="/p")
    return dataclasses.replace(asked, scopes=("once", "always"), **more)


def rows_of_evil_texts() -> list[Any]:
    session = SessionRecord("s-1", EVIL, EVIL, False, "prompt", 0.0, 1, 2, 1, published=(EVIL,))
    command = RunningCommandRecord("w", "c", "s-1", EVIL, EVIL, EVIL, 1, 0.0, connected=(EVIL,))
    history = History()
    history.take(violation(1, target=EVIL, process=EVIL, rule=EVIL, command=EVIL, hint=EVIL, operation=EVIL))
    reason = ReasonRecord("denied", EVIL, EVIL, PLACE)
    got = SettingsGetResult(1, (SettingValue("k", [EVIL], (PLACE,)),), problems=(SettingsProblem("error", EVIL),))
    return [
        now_of([session], [command], 10.0),
        question_row(question(command=EVIL, text=EVIL, warnings=(EVIL,), host=EVIL)),
        history.view(),
        policy_of(got, [LockedKey("k", EVIL)]),
        explained(ExplainResult("path", EVIL, "deny", reason, EVIL)),
        layers_of(CheckResult(False, (CheckStepRecord("x", False, EVIL, EVIL),))),
    ]


@pytest.mark.parametrize("rows", rows_of_evil_texts(), ids=lambda rows: type(rows).__name__)
def test_texts_of_commands_are_one_printable_line(rows: Any) -> None:
    found = texts(rows)
    assert any("[red]<b>" in text for text in found), "a text is shown, as it is"
    assert not [text for text in found if any(unicodedata.category(c)[0] == "C" for c in text)]


def test_now_lists_busy_sessions_and_young_commands_first() -> None:
    sessions = [SessionRecord(f"s-{n}", None, "/p", n == 1, "prompt", 0.0, n, 0, 1, agent=n or None) for n in range(3)]
    commands = [
        RunningCommandRecord(
            "w", "c", "s-1", None, "/p", "make\n  all", 1, at, ("8080:80",), (80,), 2, 1.26, 3 << 20, 4
        )
        for at in (1.0, 5.0)
    ]
    view = now_of(sessions, commands, 130.0)
    assert [(row.session_id, row.kind) for row in view.sessions] == [
        ("s-2", "agent"), ("s-1", "agent"), ("s-0", "connection"),
    ]  # fmt: skip
    young, _ = view.commands
    shown = (young.command, young.age, young.cpu, young.memory, young.connections, young.ports)
    assert shown == ("make all", "2 min", "1.3 s", "3 MiB", "4", "80, 8080:80")
    assert [age_of(s) for s in (-1, 119, 120, 7200, 172800)] == ["0 s", "119 s", "2 min", "2 h", "2 d"]


def test_a_question_has_the_answers_that_it_may_have() -> None:
    row = question_row(question())
    assert row.sentence == "May a command reach a.test:443?"
    keys = [(choice.key, choice.scope, choice.rule, choice.wide) for choice in row.choices]
    assert keys == [
        ("y", "once", "", False), ("a", "always", "a.test:443", False), ("2", "always", "*", True),
        ("n", "once", "", False),
    ]  # fmt: skip


def test_a_question_answered_elsewhere_is_gone() -> None:
    questions = OpenQuestions()
    questions.restart([question(1), question(2)])
    questions.take(PermissionResolved("q-1", "allow", "session", "pid 7", "s-1", "answered", "allowed"))
    assert [row.request_id for row in questions.open] == ["q-2"]
    assert questions.outcomes[0].outcome == "yes, session: allowed, pid 7"
    questions.take(question(3))
    questions.restart([question(2)])  # after a restart of the daemon
    assert [row.request_id for row in questions.open] == ["q-2"]


def test_violations_are_grouped_by_rule_and_filtered() -> None:
    history = History()
    history.restart([violation(1), violation(2), violation(3, rule="~/.x", origin=PLACE, outcome="pathDenied")])
    history.take(violation(4, session_id="s-2", kind="network", target="EX.test:443", outcome="hostNotListed", count=3))
    history.take(violation(1, count=5, last_time=9.0))
    view = history.view()
    assert [(group.title, group.count, len(group.rows)) for group in view.groups] == [
        ("write: pathNotWritable", 6, 2), ("network: hostNotListed", 3, 1), ("write: rule ~/.x", 1, 1),
    ]  # fmt: skip
    assert view.groups[2].place == "/h/s.json:3 (sandbox.filesystem.denyRead)"
    assert (view.total, view.sessions, view.kinds) == (10, ("s-1", "s-2"), ("network", "write"))
    for wanted, count in ((Filter("s-2"), 1), (Filter(kind="write"), 3), (Filter(text="ex.TEST"), 1), (Filter("x"), 0)):
        assert history.view(wanted).shown == count
    history.clear("s-1")
    assert len(history) == 1


def test_a_hundred_thousand_violations_are_bounded() -> None:
    history = History(kept=1000)
    for number in range(100_000):
        history.take(violation(number, rule=f"r{number % 300}"))
    view = history.view()
    assert (view.kept, view.total, len(view.groups), view.more_groups) == (1000, 100_000, 200, 100)
    history.restart([violation(100_000)], complete=True)
    assert len(history) == 1000
    history.restart([violation(1)])
    assert history.view().total == 1


def test_policy_shows_origins_locks_and_what_can_be_removed() -> None:
    managed = OriginRecord("managed", "k", "/etc/m.json", 2)
    got = SettingsGetResult(
        1,
        (
            SettingValue("sandbox.filesystem.denyRead", ["~/.x", "~/.y"], (PLACE, managed)),
            SettingValue("sandbox.network.allowedDomains", ["a.test"], (PLACE,)),
            SettingValue("sandbox.enabled", True, (OriginRecord("default", "sandbox.enabled"),)),
            SettingValue("sandbox.network.onUnlisted", "ask", (managed,)),
        ),
    )
    locks = [LockedKey("sandbox.network.allowedDomains", "managed settings say so")]
    view = policy_of(got, locks)
    assert [(row.text, row.place, row.removable) for row in view.rules] == [
        ("~/.x", "/h/s.json:3", True), ("~/.y", "/etc/m.json:2", False), ("a.test", "/h/s.json:3", False),
    ]  # fmt: skip
    assert view.rules[2].locked == "managed settings say so"
    assert [(row.key, row.text) for row in view.switches] == [
        ("sandbox.network.onUnlisted", "ask"), ("sandbox.enabled", "on"),
    ]  # fmt: skip
    assert view.mode == (("sandbox", "on"), ("unlisted hosts", "ask"))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("~/.ssh", ("path", "~/.ssh", False)),
        ("write /etc/x y", ("path", "/etc/x y", True)),
        ("example.com:443", ("host", "example.com:443", False)),
        ("https://example.com", ("host", "https://example.com", False)),
        ("host localhost", ("host", "localhost", False)),
        ("socket /run/x", ("socket", "/run/x", False)),
        ("git push", ("command", "git push", False)),
        ("make", ("command", "make", False)),
    ],
)
def test_the_explain_box_is_read(text: str, query: tuple[str, str, bool]) -> None:
    assert explain_query(text) == query


def test_layers_show_what_is_missing_first() -> None:
    steps = (CheckStepRecord("a", True, "fine"), CheckStepRecord("b", False, "gone", "mend it"))
    view = layers_of(CheckResult(True, steps, ("seccomp",)))
    assert [(row.name, row.state) for row in view.rows] == [("b", "degraded"), ("a", "enforced")]
    assert layers_of(CheckResult(False, steps)).rows[0].state == "missing"
