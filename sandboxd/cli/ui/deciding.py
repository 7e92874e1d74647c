"""The views Questions and Policy, in which a user decides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from sandboxd.cli.ui.dialogs import ChangeSettings
from sandboxd.cli.ui.rows import Rows, cut
from sandboxd.cli.ui.screen_app import Details, View
from sandboxd.screens.questions import ANSWERS, Choice, QuestionRow
from sandboxd.screens.rules import LISTS, PolicyView, RuleRow, SwitchRow, explain_query, explained, policy_of
from sandboxd_client import Change

_WIDER: Final = {"2": "w", "3": "W"}
"""The keys of wider rules: digits choose views here."""


class QuestionsView(View):
    """The open questions, and the answers of the chosen one."""

    PARTS = ("questions",)
    BINDINGS = [Binding(_WIDER.get(key, key), f"answer('{key}')", show=False) for key in ANSWERS]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__("2 Questions", id="questions")
        self._shown = ""
        self._since = 0.0
        self._confirmed = ""

    def compose(self) -> ComposeResult:
        yield Rows("Question", "Left", "Session", id="open")
        yield Details()
        yield OptionList(id="choices", markup=False, compact=True)

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)

    def _tick(self) -> None:
        if self.screens.feed.questions.open and self.screens.active is self:
            self.show()

    def show(self) -> None:
        now = self.screens.clock()
        rows = self.screens.feed.questions.open
        self.table.fill(
            (row.request_id, (cut(row.sentence, 52), f"{max(0, round(row.expires_at - now))} s", row.session_id), "")
            for row in rows
        )
        self.describe()

    def _chosen(self) -> QuestionRow | None:
        return self.screens.feed.questions.get(self.table.chosen)

    def describe(self) -> None:
        row = self._chosen()
        choices = self.query_one("#choices", OptionList)
        if row is None:
            self._shown = ""
            choices.clear_options()
            ended = [("", f"{one.sentence} {one.outcome}") for one in self.screens.feed.questions.outcomes[:5]]
            self.detail([("", "no open question"), *ended])
            return
        if row.request_id == self._shown:
            return
        gone = bool(self._shown) and self.screens.feed.questions.get(self._shown) is None
        self._since = time.monotonic() if gone or not self._shown else 0.0
        self._shown, self._confirmed = row.request_id, ""
        # A long command hides no warning.
        facts = sorted(row.facts, key=lambda fact: (fact[0] != "careful", fact[0] == "command"))
        self.detail([("", row.sentence), *facts, ("", "no answer in time means no")])
        choices.clear_options()
        choices.add_options(
            Option(Text(f"[{_WIDER.get(one.key, one.key)}] {one.label}"), id=f"c{one.key}") for one in row.choices
        )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.action_answer((event.option_id or " ")[1:])

    def action_answer(self, key: str) -> None:
        row = self._chosen()
        choice = None if row is None else next((one for one in row.choices if one.key == key), None)
        if row is None or choice is None or row.request_id != self._shown:
            return  # of another question than the one whose facts are shown
        if time.monotonic() - self._since < self.screens.settle_s:
            return
        if choice.wide and self._confirmed != key:
            self._confirmed = key
            self.screens.say(f"this allows a great deal: press {_WIDER.get(key, key)} again to confirm")
            return
        self.work(partial(self._answer, row, choice), f"answer-{row.request_id}")

    async def _answer(self, row: QuestionRow, choice: Choice) -> None:
        result = await self.screens.feed.box.permission_respond(
            row.request_id, choice.behavior, scope=choice.scope, confirm=choice.wide, pattern=choice.pattern
        )
        for warning in result.warnings:
            self.screens.say(warning)


class PolicyTab(View):
    """Rules and switches with their origins, and the explain box."""

    PARTS = ("policy",)
    BINDINGS = [  # noqa: RUF012
        Binding("e", "explain", "Explain"),
        Binding("a", "add", "Add…"),
        Binding("delete,d", "remove", "Remove…"),
        Binding("t", "switch", "Toggle…"),
        Binding("escape", "table", "Table", show=False),
    ]

    def __init__(self) -> None:
        super().__init__("4 Policy", id="policy")
        self.view = PolicyView((), (), (), ())

    def compose(self) -> ComposeResult:
        yield Input(placeholder="e: path, host or command to explain", id="explain", compact=True)
        yield Input(placeholder="a: allow host H, deny read P, … to add", id="add", compact=True)
        yield Rows("", "Key", "Value", "From", id="rules")
        yield Details()

    def ask(self) -> None:
        self.work(self._ask, "get")

    async def _ask(self) -> None:
        box, cwd = self.screens.feed.box, self.screens.cwd
        got, locked = await box.settings_get(cwd=cwd), await box.settings_locked(cwd=cwd)
        lint = await box.settings_lint(cwd=cwd)
        self.view = policy_of(got, locked.locked, lint.problems)
        self.show()

    def show(self) -> None:
        rows: list[tuple[str, Sequence[str], str]] = []
        for number, problem in enumerate(self.view.problems):
            where = problem.place.rpartition("/")[2]
            rows.append((f"p{number}", (problem.severity, cut(problem.text, 22), "", cut(where, 23)), "yellow"))
        for number, one in enumerate(self._entries()):
            key, where = cut(one.key.removeprefix("sandbox."), 22), one.place.rpartition("/")[2] or one.source
            texts = ("locked" if one.locked else "", key, cut(one.text, 20), cut(where, 23))
            rows.append((f"r{number}", texts, "dim" if one.locked else ""))
        self.table.fill(rows)
        self.describe()

    def _chosen(self) -> RuleRow | SwitchRow | None:
        key = self.table.chosen
        return self._entries()[int(key[1:])] if key.startswith("r") else None

    def _entries(self) -> list[RuleRow | SwitchRow]:
        return [*self.view.rules, *self.view.switches]

    def describe(self) -> None:
        one = self._chosen()
        mode = ("mode", ", ".join(f"{words} {value}" for words, value in self.view.mode))
        if one is not None:
            locked = [("locked", one.locked)] if one.locked else []
            self.detail([(one.key, one.text), ("from", one.place or one.source), *locked, mode])
        elif self.table.chosen:
            problem = self.view.problems[int(self.table.chosen[1:])]
            more = [(label, text) for label, text in (("in", problem.place), ("hint", problem.hint)) if text]
            self.detail([(problem.severity, problem.text), *more, mode])

    def action_explain(self) -> None:
        self.query_one("#explain", Input).focus()

    def action_add(self) -> None:
        self.query_one("#add", Input).focus()

    def action_table(self) -> None:
        self.table.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if event.input.id == "explain" and text:
            self.work(partial(self._explain, text), "explain")
        elif text:
            self._add(text)
            event.input.clear()
            self.table.focus()

    async def _explain(self, text: str) -> None:
        kind, target, write = explain_query(text)
        found = await self.screens.feed.box.policy_explain(kind, target, write=write, cwd=self.screens.cwd)
        row = explained(found, write=write)
        self.detail([("", row.sentence), *row.facts])

    def _add(self, text: str) -> None:
        verb = next((verb for verb in LISTS if text.startswith(f"{verb} ")), None)
        if verb is None:
            self.screens.say(f"begin with one of: {', '.join(LISTS)}")
            return
        self._change(Change("add", LISTS[verb], text.removeprefix(verb).strip()))

    def action_remove(self) -> None:
        one = self._chosen()
        if isinstance(one, RuleRow) and one.removable:
            self._change(Change("remove", one.key, one.value))
        elif one is not None:
            why = one.locked or f"it stands in {one.place or 'the defaults'}, and only local settings are changed here"
            self.screens.say(f"not removed: {why}")

    def action_switch(self) -> None:
        one = self._chosen()
        if one is None or one.locked or not isinstance(one.value, bool):
            self.screens.say(f"not changed: {one.locked}" if one is not None and one.locked else "this is no switch")
            return
        self._change(Change("set", one.key, not one.value))

    def _change(self, change: Change) -> None:
        self.screens.push_screen(ChangeSettings([change], self.screens.cwd), lambda done: self.ask() if done else None)
