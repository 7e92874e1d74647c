"""The screen: five views, a bar and the keys."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Static, TabbedContent

from sandboxd.cli.ui.deciding import PolicyTab, QuestionsView
from sandboxd.cli.ui.screen_app import ScreenApp
from sandboxd.cli.ui.views import BlockedView, LayersView, NowView

VIEWS = ("now", "questions", "blocked", "policy", "layers")


class Screens(ScreenApp):
    """The screen of `sandboxd ui`."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "sandboxd"
    CSS = """
    #bar { height: 1; background: $panel; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; padding: 0; }
    Rows { height: 1fr; scrollbar-size-horizontal: 0; }
    #sessions { max-height: 8; height: auto; }
    Details { height: auto; max-height: 9; border-top: solid $panel; }
    QuestionsView Details { height: 1fr; max-height: 100%; }
    #choices { height: auto; max-height: 9; }
    #open { height: auto; max-height: 8; min-height: 3; }
    ChangeSettings, Confirm { align: center middle; }
    .dialog { width: 90%; max-height: 80%; height: auto; border: thick $primary; padding: 0 1; background: $surface; }
    .buttons { height: 1; }
    .buttons Button { margin-right: 2; }
    """
    BINDINGS = [  # noqa: RUF012
        *(Binding(str(number), f"view('{name}')", name, show=False) for number, name in enumerate(VIEWS, 1)),
        Binding("question_mark", "show_help_panel", "Keys"),
        Binding("q", "quit", "End"),
    ]

    def compose(self) -> ComposeResult:
        yield Static("", id="bar", markup=False)
        with TabbedContent(initial="now"):
            yield NowView()
            yield QuestionsView()
            yield BlockedView()
            yield PolicyTab()
            yield LayersView()
        yield Footer()

    def action_view(self, name: str) -> None:
        self.query_one(TabbedContent).active = name
