"""The base of the screen: the feed, the views, and what is asked for in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

from rich.text import Text
from textual import events
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import Static, TabbedContent, TabPane
from textual.worker import WorkType

from sandboxd.cli.arguments import visible
from sandboxd.cli.ui.feed import ScreenFeed
from sandboxd.cli.ui.rows import Rows, wrapped
from sandboxd_client import SandboxdError

Job = Callable[[], Coroutine[Any, Any, None]]
"""Something to do in the background, begun there: one whose turn never comes leaves no coroutine behind."""
DRAW_S = 0.02
"""Seconds from one drawing of changes to the next; after one that took long, four times that, so that keys count."""
SETTLE_S = 0.4
"""Seconds for which keys do not answer a question that took the place of another one by itself."""


class ScreenApp(App[int]):
    """A screen whose views show a feed; the policy shown is that of `cwd`."""

    def __init__(
        self,
        cwd: str,
        socket: str | None = None,
        *,
        autostart: bool = True,
        clock: Callable[[], float] = time.time,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__()
        self.clock = clock
        self.cwd = cwd
        self.running = 0
        self.settle_s = settle_s
        self.feed = ScreenFeed(self.changed, socket, autostart=autostart, cwd=cwd)
        self._parts: set[str] = set()
        self._due = self._falling = False
        self._next = 0.0
        """The time at which changes may be drawn again."""

    def on_mount(self) -> None:
        self.show_bar()
        following: WorkType[None] = self.feed.run
        self.run_worker(following, name="feed", exit_on_error=True)

    # what is shown

    @property
    def active(self) -> View:
        return self.query_one(f"#{self.query_one(TabbedContent).active}", View)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        view = self.active
        view.table.focus()
        view.show()
        view.ask()

    def changed(self, part: str) -> None:
        """Draw a part of the feed at once, or soon after another drawing, together with what changes until then."""
        self._parts.add(part)
        if self._due:
            return
        self._due = True
        wait_s = self._next - time.monotonic()
        if wait_s > 0:
            self.set_timer(wait_s, self._draw)
        else:
            self.call_next(self._draw)

    def _draw(self) -> None:
        parts, self._parts, self._due = self._parts, set(), False
        if not self.query(TabbedContent):  # it ends
            return
        begun = time.monotonic()
        self.show_bar()
        view = self.active
        if parts & set(view.PARTS):
            view.show()
        now = time.monotonic()
        self._next = now + max(DRAW_S, 4 * (now - begun))
        asking = {view} if "policy" in parts and view.id == "policy" else set()
        if "link" in parts and not self.feed.trouble:
            asking |= {view, self.query_one("#now", View)}
        for one in asking:
            one.ask()

    def show_bar(self) -> None:
        feed = self.feed
        now = time.monotonic()
        words = Text(no_wrap=True, end="")
        if feed.trouble:
            words.append(f"NO CONNECTION: {visible(feed.trouble)}; trying again", style="bold red")
        else:
            questions = len(feed.questions.open)
            words.append(f"sandboxd · {self.running} running")
            if blocked := feed.badge.count(now):
                words.append(f" · ⛔ {blocked} blocked", style="bold red")
            if questions:
                words.append(f" · {questions} question{'' if questions == 1 else 's'} (key 2)", style="bold yellow")
        for bar in self.query("#bar").results(Static):  # none where it ends
            bar.update(words)
        if (falls := feed.badge.changes_in(now)) is not None and not self._falling:
            self._falling = True
            self.set_timer(falls + 0.01, self._fall)

    def _fall(self) -> None:
        self._falling = False
        self.show_bar()

    # what is asked for

    def work(self, job: Job, name: str) -> None:
        """Do a job in the background; a new one of its name takes its place. Errors are shown."""

        async def guarded() -> None:
            try:
                await job()
            except SandboxdError as error:
                self.say(f"{error.message}; {error.hint}" if error.hint else error.message, wrong=True)

        background: WorkType[None] = guarded
        self.run_worker(background, group=name, exclusive=True)

    def say(self, sentence: str, *, wrong: bool = False) -> None:
        self.notify(visible(sentence, 2000), severity="error" if wrong else "information", markup=False)


class View(TabPane):
    """A view: its table has the focus, and `details` are about the row with the cursor."""

    PARTS: tuple[str, ...] = ()
    """The parts of the feed that it shows."""

    @property
    def screens(self) -> ScreenApp:
        return cast(ScreenApp, self.app)

    @property
    def table(self) -> Rows:
        return self.query_one(Rows)

    def show(self) -> None:
        """Show the state that is known."""

    def ask(self) -> None:
        """Ask the daemon for what the feed does not tell; called when the view is chosen, and after changes."""

    def work(self, job: Job, name: str) -> None:
        """Do a job in the background, the latest of its name only."""
        self.screens.work(job, f"{self.id}-{name}")

    def detail(self, rows: Iterable[tuple[str, str]]) -> None:
        self.query_one("#details", Static).update(wrapped(rows))
        self.query_one(Details).scroll_home(animate=False)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        event.prevent_default()  # a late focus would choose this view again, after a key has chosen another one
        self.describe()

    def on_data_table_row_highlighted(self) -> None:
        self.describe()

    def describe(self) -> None:
        """Show the details of the chosen row."""


class Details(VerticalScroll):
    """The lower part of a view; long texts scroll."""

    def compose(self) -> Iterable[Static]:
        yield Static("", id="details", markup=False)
