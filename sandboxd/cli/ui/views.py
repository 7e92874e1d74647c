"""The views Now, Blocked and Layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from sandboxd.cli.ui.dialogs import ChangeSettings, Confirm
from sandboxd.cli.ui.rows import Rows, cut
from sandboxd.cli.ui.screen_app import Details, View
from sandboxd.screens.blocked import BlockedRow, Filter, blocked_row
from sandboxd.screens.layers import Layers, layers_of
from sandboxd.screens.now import CommandRow, Now, SessionRow, now_of
from sandboxd_client import Change

NOW_EVERY_S = 2.0
_GROUP_ROWS, _MOST_GROUPS = 4, 40
"""Rows of a group that is not unfolded, and groups: the table is made anew with each violation."""


class NowView(View):
    """Sessions and the commands that run."""

    PARTS = ("link",)
    BINDINGS = [Binding("k", "end", "End it"), Binding("r", "ask", "Refresh")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__("1 Now", id="now")
        self.now = Now((), ())

    def compose(self) -> ComposeResult:
        yield Rows("Running", "Age", "CPU", "Memory", "Conn", "Ports", "Session", id="running")
        yield Rows("Session", "Kind", "Mode", "Age", "Run", "Blocked", "Project", id="sessions")
        yield Details()

    def on_mount(self) -> None:
        self.set_interval(NOW_EVERY_S, self._tick)

    def _tick(self) -> None:
        if self.screens.active is self and self.screens.app_focus:
            self.ask()

    def action_ask(self) -> None:
        self.ask()

    def ask(self) -> None:
        self.work(self._ask, "list")

    async def _ask(self) -> None:
        box = self.screens.feed.box
        sessions, commands = await box.session_list(), await box.command_list()
        self.now = now_of(sessions.sessions, commands.commands, self.screens.clock())
        self.screens.running = len(self.now.commands)
        self.screens.show_bar()
        self.show()

    def show(self) -> None:
        def command(one: CommandRow) -> Sequence[str]:
            return cut(one.command, 32), one.age, one.cpu, one.memory, one.connections, one.ports, one.session

        def session(one: SessionRow) -> Sequence[str]:
            counts = str(one.commands), str(one.blocked)
            return one.name, one.kind, one.mode, one.age, *counts, one.project

        self.query_one("#running", Rows).fill((one.wrap_id, command(one), "") for one in self.now.commands)
        self.query_one("#sessions", Rows).fill((one.session_id, session(one), "") for one in self.now.sessions)
        self.describe()

    def describe(self) -> None:
        chosen = self._chosen()
        if isinstance(chosen, CommandRow):
            rows = [("command", chosen.command), ("in", f"{chosen.project}, {chosen.processes} processes")]
            rows += [("connected to", ", ".join(chosen.connected))] if chosen.connected else []
            self.detail(rows)
        elif chosen is not None:
            published = ", ".join(chosen.published) or "none"
            self.detail([("session", f"{chosen.session_id} in {chosen.project}"), ("published ports", published)])
        else:
            self.detail([("", "no command runs; start one with: sandboxd run -- make")])

    def _chosen(self) -> CommandRow | SessionRow | None:
        sessions, running = self.query_one("#sessions", Rows), self.query_one("#running", Rows)
        if sessions.has_focus:
            return next((one for one in self.now.sessions if one.session_id == sessions.chosen), None)
        return next((one for one in self.now.commands if one.wrap_id == running.chosen), None)

    def action_end(self) -> None:
        chosen = self._chosen()
        if chosen is None:
            return
        if isinstance(chosen, CommandRow):
            what, job = chosen.command, partial(self._kill, chosen.wrap_id)
        else:
            what, job = f"the session {chosen.name} and its commands", partial(self._close, chosen.session_id)

        def end(yes: bool | None) -> None:
            if yes:
                self.work(job, "end")

        self.app.push_screen(Confirm(f"End {what}?"), end)

    async def _kill(self, wrap_id: str) -> None:
        await self.screens.feed.box.command_kill(wrap_id)
        await self._ask()

    async def _close(self, session_id: str) -> None:
        await self.screens.feed.box.session_close(session_id)
        await self._ask()


class BlockedView(View):
    """The record of what was blocked, in groups."""

    PARTS = ("blocked",)
    BINDINGS = [  # noqa: RUF012
        Binding("o", "open", "Open it…"),
        Binding("slash", "text", "Filter"),
        Binding("s", "session", "Session"),
        Binding("k", "kind", "Kind"),
        Binding("enter", "unfold", "Unfold"),
        Binding("escape", "everything", "All", show=False),
    ]

    def __init__(self) -> None:
        super().__init__("3 Blocked", id="blocked")
        self.wanted = Filter()
        self._sessions: tuple[str, ...] = ()
        self._kinds: tuple[str, ...] = ()
        self._unfolded: set[tuple[str, str]] = set()

    def compose(self) -> ComposeResult:
        yield Input(placeholder="/ filters by text", id="text", compact=True)
        yield Rows("When", "N", "Target", "By", "Session", id="violations")
        yield Details()

    def show(self) -> None:
        view = self.screens.feed.history.view(
            self.wanted, self._unfolded, folded_rows=_GROUP_ROWS, most_groups=_MOST_GROUPS
        )
        self._sessions, self._kinds = view.sessions, view.kinds
        rows: list[tuple[str, Sequence[str], str]] = []
        for group in view.groups:
            key = f"{group.title}\n{group.place}"
            place = f" in {group.place}" if group.place else ""
            rows.append((key, (_clock(group.last), str(group.count), f"{group.title}{place}", "", ""), "bold"))
            rows += [(str(one.id), _cells(one), "") for one in group.rows]
            if group.more:
                rows.append((f"more {key}", ("", "", f"    and {group.more} more", "", ""), "dim"))
        if view.more_groups:
            rows.append(("more", ("", "", f"and {view.more_groups} more groups: filter to see them", "", ""), "dim"))
        self.table.fill(rows)
        chosen = [f"session {self.wanted.session_id}"] if self.wanted.session_id else []
        chosen += [f"kind {self.wanted.kind}"] if self.wanted.kind else []
        self.query_one("#text", Input).border_title = " ".join(chosen)
        self._counts = f"{view.shown} of {view.kept} shown, {view.total} blocked" + "".join(f", {c}" for c in chosen)
        self.describe()

    def describe(self) -> None:
        one = self._chosen()
        if one is None:
            self.detail([("", self._counts)])
            return
        by = f"{one.process or 'a process'} of {one.command}" if one.command else one.process
        rows = [(f"{one.kind} {one.operation}", one.target), ("by", by)]
        default = f"none, so the default refuses it ({one.outcome})"
        rows.append(("rule", f"{one.rule} in {one.place}" if one.rule else default))
        rows += [("hint", one.hint)] if one.hint else []
        self.detail([*rows, ("", self._counts)])

    def _chosen(self) -> BlockedRow | None:
        key = self.table.chosen
        found = self.screens.feed.history.get(int(key)) if key.isdigit() else None
        return None if found is None else blocked_row(found)

    def action_text(self) -> None:
        self.query_one("#text", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._choose(Filter(self.wanted.session_id, self.wanted.kind, event.value))

    def on_input_submitted(self) -> None:
        self.table.focus()

    def action_everything(self) -> None:
        self.query_one("#text", Input).value = ""
        self._choose(Filter())
        self.table.focus()

    def action_session(self) -> None:
        self._choose(Filter(_next(self.wanted.session_id, self._sessions), self.wanted.kind, self.wanted.text))

    def action_kind(self) -> None:
        self._choose(Filter(self.wanted.session_id, _next(self.wanted.kind, self._kinds), self.wanted.text))

    def _choose(self, wanted: Filter) -> None:
        self.wanted = wanted
        self.screens.changed("blocked")

    def on_data_table_row_selected(self) -> None:
        self.action_unfold()

    def action_unfold(self) -> None:
        title, _, place = self.table.chosen.removeprefix("more ").partition("\n")
        self._unfolded ^= {(title, place)}
        self.show()

    def action_open(self) -> None:
        if (one := self._chosen()) is not None:
            self.work(partial(self._suggest, one), "suggest")

    async def _suggest(self, one: BlockedRow) -> None:
        found = await self.screens.feed.box.violation_suggest(one.id)
        if not found.changes:
            self.screens.say(f"no rule is suggested: {found.why}" + (f"; {one.hint}" if one.hint else ""))
            return
        changes = [Change(change.act, change.key, change.value) for change in found.changes]
        self.screens.push_screen(ChangeSettings(changes, self.screens.cwd, found.notes))


def _cells(one: BlockedRow) -> Sequence[str]:
    return _clock(one.time), str(one.count), f"  {one.target}", one.process or one.operation, one.session_id


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _next(one: str, others: Sequence[str]) -> str:
    """Return the one behind in a ring that begins with "" for all."""
    ring = ["", *others]
    return ring[(ring.index(one) + 1) % len(ring)] if one in ring else ""


class LayersView(View):
    """The layers that are enforced here, those that are not, and the remedy."""

    BINDINGS = [Binding("r", "ask", "Check again")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__("5 Layers", id="layers")
        self.found = Layers("not checked yet", (), ())

    def compose(self) -> ComposeResult:
        yield Rows("Step", "State", "Detail", id="steps")
        yield Details()

    def action_ask(self) -> None:
        self.ask()

    def ask(self) -> None:
        self.work(self._ask, "check")

    async def _ask(self) -> None:
        self.found = layers_of(await self.screens.feed.box.check())
        self.show()

    def show(self) -> None:
        styles = {"enforced": "green", "degraded": "yellow", "missing": "red"}
        self.table.fill((row.name, (row.name, row.state, row.detail), styles[row.state]) for row in self.found.rows)
        self.describe()

    def describe(self) -> None:
        one = next((row for row in self.found.rows if row.name == self.table.chosen), None)
        rows = [("", self.found.sentence), ("layers of a command", ", ".join(self.found.layers) or "none")]
        if one is not None:
            rows = [(one.name, f"{one.state}: {one.detail}"), *([("remedy", one.remedy)] if one.remedy else []), *rows]
        self.detail(rows)
