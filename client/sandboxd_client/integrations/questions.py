"""Questions of the sandbox, put to a function of the program."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sandboxd_client.aio import AsyncClient, AsyncSession
from sandboxd_client.errors import SandboxdError
from sandboxd_client.running.launching import Command, command_line
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.prompts import PermissionRequest

Ask = Callable[[str], Any]  # a function, or a coroutine function, of a question; only True is a yes


class ShellQuestions:
    """Questions of the session, put to a function of the program.

    They have a connection of their own: that of the commands has given its powers up, and may not answer."""

    def __init__(self, client: AsyncClient, ask: Ask) -> None:
        self._client = client
        self._ask = ask
        self._reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def about(self, command: Command) -> Callable[[ShouldSandboxResult], Coroutine[Any, Any, bool]]:
        """Return the function that puts a decision about a command."""

        async def approve(decision: ShouldSandboxResult) -> bool:
            where = "" if decision.sandboxed else " outside the sandbox"
            return await asked(self._ask, f"Run {command_line(command)!r}{where}? ({decision.reason.text})")

        return approve

    async def watch(self, session: AsyncSession) -> None:
        """Subscribe, again after a restart of the daemon. Raises SandboxdError."""
        if self._reader is None or self._reader.done():
            waiting = (await self._client.permission_subscribe()).open
            self._reader = self._begin(self._read(session, waiting))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _read(self, session: AsyncSession, waiting: Sequence[PermissionRequest]) -> None:
        for question in waiting:
            self._put(session, question)
        with contextlib.suppress(SandboxdError):
            async for said in self._client.notifications():
                if isinstance(said.params, PermissionRequest):
                    self._put(session, said.params)

    def _put(self, session: AsyncSession, question: PermissionRequest) -> None:
        if question.session_id == session.id:
            self._begin(self._answer(question))

    async def _answer(self, question: PermissionRequest) -> None:
        allowed = await asked(self._ask, "\n".join(filter(None, (question.text, *question.warnings))))
        with contextlib.suppress(SandboxdError):  # answered elsewhere, or withdrawn
            await self._client.permission_respond(question.request_id, "allow" if allowed else "deny", scope="once")

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="sandboxd question")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def asked(ask: Ask, text: str) -> bool:
    if inspect.iscoroutinefunction(ask):
        return await ask(text) is True
    return await asyncio.to_thread(ask, text) is True
