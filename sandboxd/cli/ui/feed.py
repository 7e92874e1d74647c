"""The state behind a screen: questions and violations as the daemon tells of them, also over its restarts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from sandboxd.screens.state import ScreenState
from sandboxd_client import AsyncClient, DaemonNotRunning, SandboxdError
from sandboxd_client.badge import Badge
from sandboxd_client.transport.activation import only_a_connection_is_missing
from sandboxd_client.wire.messages.violations import ViolationHappened

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class ScreenFeed(ScreenState):
    """The state and the badge, kept by one connection. `changed` is called with the part that changed.

    The parts are `link`, `questions`, `blocked` and `policy`. `trouble` says why there is no connection, else empty."""

    def __init__(self, changed: Callable[[str], None], socket: str | None = None, *, autostart: bool, cwd: str) -> None:
        super().__init__()
        self._changed = changed
        self._cwd = cwd
        self.box = AsyncClient(socket, autostart=autostart)
        self.badge = Badge()
        self.trouble = "connecting"

    async def run(self) -> None:
        """Follow the daemon until cancelled. Only the first connection starts one."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._subscribe()
                    pause_s = FIRST_PAUSE_S
                    async for event in self.box.notifications():
                        if isinstance(event.params, ViolationHappened):
                            self.badge.take(event.params.violation, time.monotonic())
                        self._changed(self.take(event.params))
                except SandboxdError as error:
                    self._say(error.message)
                await self.box.close()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                self.box = AsyncClient(self.box.socket, autostart=False)
        finally:
            with contextlib.suppress(SandboxdError):
                await self.box.close()

    async def _subscribe(self) -> None:
        if self.cursor is not None and await asyncio.to_thread(only_a_connection_is_missing, self.box.socket):
            raise DaemonNotRunning(self.box.socket)  # a connection would start one that was stopped
        asked = await self.box.permission_subscribe()
        found = await self.box.violation_subscribe(since=self.cursor)
        await self.box.settings_subscribe(cwd=self._cwd)
        self.questions.restart(asked.open)
        self.restart(found)
        self.badge.know(found.violations)
        self._say("")
        for part in ("questions", "blocked", "policy"):
            self._changed(part)

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed("link")
