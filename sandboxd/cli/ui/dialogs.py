"""Dialogs: a yes or no, and a change of settings that is shown before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from sandboxd.cli.arguments import visible
from sandboxd.cli.ui.screen_app import ScreenApp
from sandboxd.screens.rules import text_of
from sandboxd_client import Change, RpcError, SandboxdError


class Confirm(ModalScreen[bool]):
    """A question with yes and no."""

    BINDINGS = [Binding("y", "answer(True)", "yes"), Binding("n,escape", "answer(False)", "no")]  # noqa: RUF012

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self._sentence = sentence

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._sentence, markup=False)
            with Horizontal(classes="buttons"):
                yield Button("y yes", id="yes", compact=True)
                yield Button("n no", id="no", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class ChangeSettings(ModalScreen[bool]):
    """The difference that changes make to local settings. One key writes it, twice where it opens very much."""

    BINDINGS = [Binding("w", "write", "write"), Binding("escape", "leave", "leave it")]  # noqa: RUF012

    def __init__(self, changes: Sequence[Change], cwd: str, notes: Sequence[str] = ()) -> None:
        super().__init__()
        self._changes, self._cwd, self._notes = tuple(changes), cwd, tuple(notes)
        self._sure = False
        self._shown = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static("", id="difference", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("w write", id="write", compact=True)
                yield Button("esc leave it", id="leave", compact=True)

    def on_mount(self) -> None:
        cast(ScreenApp, self.app).work(self._preview, "preview")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_write() if event.button.id == "write" else self.action_leave()

    def action_leave(self) -> None:
        self.dismiss(False)

    def action_write(self) -> None:
        if self._shown:
            cast(ScreenApp, self.app).work(self._write, "write")

    async def _preview(self) -> None:
        box = cast(ScreenApp, self.app).feed.box
        try:
            found = await box.settings_update(self._changes, cwd=self._cwd, preview=True)
        except SandboxdError as error:
            self._say([], [error.message, *([f"hint: {error.hint}"] if error.hint else [])])
            return
        self._shown = bool(found.difference)
        words = [f"{found.file}:"] if found.difference else [f"{found.file} has it already; nothing would change"]
        self._say(found.difference, [*words, *found.warnings, *self._notes])

    async def _write(self) -> None:
        screens = cast(ScreenApp, self.app)
        try:
            done = await screens.feed.box.settings_update(self._changes, cwd=self._cwd, confirm=self._sure)
        except RpcError as error:
            if error.slug == "confirmation_needed" and not self._sure:
                self._sure = True
                self._say((), [error.message, "press w again to write it all the same"])
                return
            self._say((), [error.message, error.hint])
            return
        except SandboxdError as error:
            self._say((), [error.message, error.hint])
            return
        screens.say(f"written to {done.file}")
        self.dismiss(True)

    def _say(self, difference: Sequence[str], sentences: Sequence[str]) -> None:
        text = Text()
        first, *others = sentences
        text.append(visible(first, 2000) + "\n", style="bold")
        for line in difference:
            text.append(f"  {line}\n", style="green" if line.startswith("+") else "red")
        for sentence in filter(None, others):
            text.append(visible(sentence, 2000) + "\n")
        if not difference:
            wanted = [f"{one.act} {one.key} {text_of(one.value)}" for one in self._changes]
            text.append("\n".join(wanted), style="dim")
        self.query_one("#difference", Static).update(text)
