"""The daemon as the page sees it: what is watched now, and calls for all sessions together.

Four connections: one keeps the port closed for commands (`policy.close_ports`), and the page serves exactly as long as
it lasts. The others exist only while a watcher needs them: for the feeds of violations and settings with all calls, for
questions while a session that may answer watches, and none else. So without a watcher the daemon has nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final, Protocol

from sandboxd.screens.blocked import Filter
from sandboxd.screens.layers import Layers, layers_of
from sandboxd.screens.now import now_of
from sandboxd.screens.questions import Choice
from sandboxd.screens.rules import LISTS, explain_query, explained, policy_of
from sandboxd.screens.state import ScreenState
from sandboxd.web.access import Role
from sandboxd_client import AsyncClient, RpcError, SandboxdError
from sandboxd_client.records import dataclass
from sandboxd_client.transport.answers import Notification
from sandboxd_client.wire.messages.methods import METHODS
from sandboxd_client.wire.params import decode, encode

AWAY_S: Final = 30.0
"""Seconds that the page waits for another daemon before it ends."""
AGAIN_S: Final = 0.2
FRESH_S: Final = 1.0
"""Seconds that an answer for the view Now serves all watchers."""
CHECKED_S: Final = 60.0
"""The same for the view Layers, whose check starts sandboxes."""


class Watcher(Protocol):
    """A channel as the hub sees it."""

    @property
    def role(self) -> Role: ...

    def changed(self, view: str) -> None:
        """Hear that a view has changed."""

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Hear of a notification of the daemon."""

    def cut(self) -> None:
        """End, since the daemon is away."""


@dataclass(slots=True)
class _Shared:
    value: Any
    until: float


class Hub:
    """The state that all channels share. `lost` is the reason why the daemon is away, empty while it serves."""

    def __init__(self, socket: str | None = None) -> None:
        self._guard = AsyncClient(socket, autostart=False)
        self._box = AsyncClient(socket, autostart=False)
        self._asker = AsyncClient(socket, autostart=False)
        self._watchers: set[Watcher] = set()
        self._feeds: dict[str, asyncio.Task[None]] = {}
        self._state = ScreenState()
        self._has_questions = False
        self._kept: dict[str, _Shared] = {}
        self.serving = False
        self.warnings: tuple[str, ...] = ()

    # the life of the page

    @contextlib.asynccontextmanager
    async def closing(self, port: int, page: str) -> AsyncIterator[asyncio.Task[None]]:
        """Close a port for commands and tell the address of the page; the task ends when no daemon keeps it closed.

        Raises SandboxdError when the daemon does not answer."""
        await self._close(port, page)
        following = asyncio.get_running_loop().create_task(self._follow(port, page), name="daemon")
        try:
            yield following
        finally:
            self.serving = False
            following.cancel()
            for task in self._feeds.values():
                task.cancel()
            for box in (self._guard, self._box, self._asker):
                await box.close()

    async def _close(self, port: int, page: str) -> None:
        self.warnings = (await self._guard.policy_close_ports((port,), page=page)).warnings
        self.serving = True

    async def _follow(self, port: int, page: str) -> None:
        while True:
            with contextlib.suppress(SandboxdError):
                async for _ in self._guard.notifications():  # there are none; it raises at the end of the connection
                    pass
            self.serving = False
            self._kept.clear()
            self._state.cursor = None
            for watcher in tuple(self._watchers):
                watcher.cut()
            async with asyncio.timeout(AWAY_S):
                await self._again(port, page)

    async def _again(self, port: int, page: str) -> None:
        while not self.serving:
            try:
                await self._close(port, page)
            except SandboxdError:
                await asyncio.sleep(AGAIN_S)

    # watchers and feeds

    def enter(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        self._follow_feeds()

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        self._follow_feeds()

    def _follow_feeds(self) -> None:
        """Begin the feeds that have a watcher, and end the others."""
        answers = any(watcher.role >= Role.ANSWER for watcher in self._watchers)
        rows = (
            ("blocked", bool(self._watchers), self._box, self._begin_blocked),
            ("questions", answers, self._asker, self._begin_questions),
        )
        for name, wanted, box, begin in rows:
            if wanted and name not in self._feeds:
                self._feeds[name] = asyncio.get_running_loop().create_task(self._hear(box, begin), name=name)
            elif not wanted and (task := self._feeds.pop(name, None)) is not None:
                task.cancel()

    async def _hear(self, box: AsyncClient, begin: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                try:
                    await begin()
                    async for event in box.notifications():
                        self._take(event)
                except SandboxdError:
                    await asyncio.sleep(AGAIN_S)
        finally:
            await box.close()
            if box is self._asker:
                self._state.questions.restart(())
                self._has_questions = False

    async def _begin_blocked(self) -> None:
        self._state.restart(await self._box.violation_subscribe(since=self._state.cursor))
        await self._box.call(METHODS["settings.subscribe"], METHODS["settings.subscribe"].params())
        self._changed("blocked", "policy")

    async def _begin_questions(self) -> None:
        self._state.questions.restart((await self._asker.permission_subscribe()).open)
        self._has_questions = True
        self._changed("questions")

    def _take(self, event: Notification) -> None:
        view = self._state.take(event.params)
        if view == "policy":
            self._kept.clear()
        told = encode(event.params)
        for watcher in tuple(self._watchers):
            watcher.tell(event.method, told)
        self._changed(view)

    def _changed(self, *views: str) -> None:
        for watcher in tuple(self._watchers):
            for view in views:
                watcher.changed(view)

    # calls

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request of the daemon's interface. Raises SandboxdError, ParamsError."""
        row = METHODS[method]
        if method == "violation.subscribe":  # the feed tells; what was before is listed
            row = METHODS["violation.list"]
        asking = method in ("permission.subscribe", "sandbox_permission_response")
        record = decode(row.params, params)
        return encode(await (self._asker if asking else self._box).call(row, record))

    async def answer(self, request_id: str, key: str, role: Role, *, confirm: bool) -> dict[str, Any]:
        """Answer a question by the key of a choice. Raises RpcError."""
        row = self._state.questions.get(request_id)
        choice = None if row is None else next((one for one in row.choices if one.key == key), None)
        if choice is None:
            raise RpcError("question_closed", "this question was answered or has ended", "look at the other questions")
        if not _may(choice, role):
            raise RpcError("not_permitted", "an answer for always writes a rule, which needs the role administer")
        if choice.wide and not confirm:
            raise RpcError("confirmation_needed", "this allows a great deal", "confirm it")
        result = await self._asker.permission_respond(
            request_id, choice.behavior, scope=choice.scope, confirm=choice.wide, pattern=choice.pattern
        )
        return encode(result)

    async def explain(self, text: str, cwd: str | None) -> dict[str, Any]:
        """Return a decision in words. Raises SandboxdError."""
        kind, target, write = explain_query(text)
        params = {"kind": kind, "target": target, "write": write, "cwd": cwd}
        row = METHODS["policy.explain"]
        return asdict(explained(await self._box.call(row, decode(row.params, params)), write=write))

    # views

    @property
    def badge(self) -> dict[str, int]:
        """Return the counts that every view shows."""
        return {"blocked": self._state.history.total, "questions": len(self._state.questions.open)}

    async def view(self, name: str, wanted: Filter, unfolded: frozenset[tuple[str, str]], role: Role) -> dict[str, Any]:
        """Return the rows of a view; of Blocked what passes a filter, and members of unfolded groups.

        Raises SandboxdError."""
        match name:
            case "questions":
                return self._question_rows(role)
            case "blocked":
                return asdict(self._state.history.view(wanted, unfolded))
            case "now":
                return asdict(await self._once("now", FRESH_S, self._now))
            case "policy":
                return {**asdict(await self._once("policy", CHECKED_S, self._policy)), "lists": dict(LISTS)}
            case "layers":
                return asdict(await self._once("layers", CHECKED_S, self._layers))
        raise RpcError("invalid_params", "there is no such view", "name now, questions, blocked, policy or layers")

    def _question_rows(self, role: Role) -> dict[str, Any]:
        now, rows = time.time(), []
        for one in self._state.questions.open:
            choices = [{**asdict(choice), "label": choice.label} for choice in one.choices if _may(choice, role)]
            rows.append({**asdict(one), "choices": choices, "left": max(0, round(one.expires_at - now))})
        outcomes = [asdict(one) for one in self._state.questions.outcomes]
        return {"open": rows, "outcomes": outcomes, "known": self._has_questions}

    async def _once(self, name: str, for_s: float, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return an answer that serves all watchers for a time."""
        kept, now = self._kept.get(name), time.monotonic()
        if kept is None or kept.until <= now:
            making = asyncio.ensure_future(make())
            kept = self._kept[name] = _Shared(making, now + for_s)
            making.add_done_callback(lambda done: self._forget(name, done))
        return await asyncio.shield(kept.value)

    def _forget(self, name: str, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._kept.pop(name, None)

    async def _now(self) -> Any:
        sessions, commands = await asyncio.gather(self._box.session_list(), self._box.command_list())
        return now_of(sessions.sessions, commands.commands, time.time())

    async def _policy(self) -> Any:
        def own(name: str) -> Awaitable[Any]:
            return self._box.call(METHODS[name], METHODS[name].params())  # the daemon's own, of no directory

        got, locked, lint = await asyncio.gather(own("settings.get"), own("settings.locked"), own("settings.lint"))
        return policy_of(got, locked.locked, lint.problems)

    async def _layers(self) -> Layers:
        return layers_of(await self._box.check())


def _may(choice: Choice, role: Role) -> bool:
    """Return whether a role may give an answer; `always` writes a rule."""
    return role >= (Role.ADMINISTER if choice.scope == "always" else Role.ANSWER)
