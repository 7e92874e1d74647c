"""The state that subscriptions keep: questions and violations, and where the next subscription goes on."""

from __future__ import annotations

from sandboxd.screens.blocked import History
from sandboxd.screens.questions import OpenQuestions
from sandboxd_client.wire.messages.prompts import PermissionRequest, PermissionResolved
from sandboxd_client.wire.messages.violations import ViolationHappened, ViolationListResult, ViolationsCleared


class ScreenState:
    """Questions and violations of a daemon, also over its restarts. `cursor` is None before the first subscription."""

    def __init__(self) -> None:
        self.questions = OpenQuestions()
        self.history = History()
        self.cursor: str | None = None

    def restart(self, found: ViolationListResult) -> None:
        """Take the violations of a new subscription."""
        self.history.restart(found.violations, complete=self.cursor is not None and found.complete)
        self.cursor = found.cursor

    def take(self, event: object) -> str:
        """Take a notification; return the view that it changes."""
        match event:
            case PermissionRequest() | PermissionResolved():
                self.questions.take(event)
                return "questions"
            case ViolationHappened(cursor, violation):
                self.cursor = cursor
                self.history.take(violation)
                return "blocked"
            case ViolationsCleared(cursor, session_id):
                self.cursor = cursor
                self.history.clear(session_id)
                return "blocked"
        return "policy"  # the settings have changed
