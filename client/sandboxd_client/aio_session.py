"""A session of the client: the client's methods, in one project."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from sandboxd_client.aio_process import AsyncProcess
from sandboxd_client.commands import Path
from sandboxd_client.errors import ConnectionLost, RpcError
from sandboxd_client.launching import Command, RunOptions, SpawnOptions
from sandboxd_client.process import Completed
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.methods import SESSION_OPEN
from sandboxd_client.wire.messages.policy import DescribeResult, EffectiveResult, ExplainKind, ExplainResult
from sandboxd_client.wire.messages.sessions import SessionOpenParams, SessionOpenResult
from sandboxd_client.wire.messages.settings import SettingsGetResult
from sandboxd_client.wire.messages.wrap import OverridesRecord, WrapResult

if TYPE_CHECKING:
    from sandboxd_client.aio import AsyncClient

R = TypeVar("R")
SESSION_GONE = frozenset(("session_unknown", "session_closed"))


class AsyncSession:
    """One agent in one project.

    It ends with the client's connection unless detached. After a restart of the daemon the next call opens it again,
    without the grants it had been given.
    """

    def __init__(self, client: AsyncClient, opening: SessionOpenParams) -> None:
        self._client = client
        self._opening = opening
        self._opened: SessionOpenResult | None = None
        self._connections = 0
        self.cwd: str = opening.cwd

    async def open(self) -> AsyncSession:
        """Open it, also anew."""
        self._opened = await self._client.call(SESSION_OPEN, self._opening)
        self._connections = self._client.connections
        return self

    @property
    def opened(self) -> SessionOpenResult:
        if self._opened is None:
            raise RuntimeError("the session is not open yet: use it in 'async with', or await its open()")
        return self._opened

    @property
    def id(self) -> str:
        return self.opened.session_id

    async def close(self) -> None:
        """End the session with its commands. Closing one that has ended does nothing."""
        try:
            await self._client.session_close(self.id)
        except RpcError as error:
            if error.slug not in SESSION_GONE:
                raise

    def _here(self, cwd: Path | None) -> str:
        return self.cwd if cwd is None else os.path.join(self.cwd, cwd)

    async def _in_session(self, ask: Callable[[str], Awaitable[R]]) -> R:
        try:
            return await ask(self.id)
        except RpcError as error:
            if error.slug not in SESSION_GONE or self._connections == self._client.connections:
                raise
        await self.open()
        return await ask(self.id)

    async def should_sandbox(
        self,
        command: str,
        *,
        cwd: Path | None = None,
        dangerously_disable_sandbox: bool = False,
        path: str | None = None,
    ) -> ShouldSandboxResult:
        return await self._in_session(
            lambda session_id: self._client.should_sandbox(
                command,
                cwd=self._here(cwd),
                session_id=session_id,
                dangerously_disable_sandbox=dangerously_disable_sandbox,
                path=path,
            )
        )

    async def wrap(
        self,
        command: str | None = None,
        *,
        argv: Sequence[Path] | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        shell: str | None = None,
        command_id: str | None = None,
        command_text: str | None = None,
        overrides: OverridesRecord | None = None,
    ) -> WrapResult:
        return await self._in_session(
            lambda session_id: self._client.wrap(
                command,
                argv=argv,
                cwd=self._here(cwd),
                env=env,
                shell=shell,
                session_id=session_id,
                command_id=command_id,
                command_text=command_text,
                overrides=overrides,
            )
        )

    async def policy_explain(
        self, kind: ExplainKind, target: str, *, write: bool = False, cwd: Path | None = None
    ) -> ExplainResult:
        return await self._in_session(
            lambda session_id: self._client.policy_explain(
                kind, target, write=write, session_id=session_id, cwd=self._here(cwd)
            )
        )

    async def policy_effective(self) -> EffectiveResult:
        return await self._in_session(
            lambda session_id: self._client.policy_effective(session_id=session_id, cwd=self.cwd)
        )

    async def policy_describe(self) -> DescribeResult:
        return await self._in_session(
            lambda session_id: self._client.policy_describe(session_id=session_id, cwd=self.cwd)
        )

    async def settings_get(self, key: str | None = None) -> SettingsGetResult:
        return await self._in_session(
            lambda session_id: self._client.settings_get(key, session_id=session_id, cwd=self.cwd)
        )

    async def spawn(self, command: Command, **options: Unpack[SpawnOptions]) -> AsyncProcess:
        """As AsyncClient.spawn, in this session; `cwd` is seen from the session's."""

        async def spawn_in(session_id: str) -> AsyncProcess:
            options["session_id"] = session_id
            return await self._client.spawn(command, **options)

        options["cwd"] = self._here(options.get("cwd"))
        return await self._in_session(spawn_in)

    async def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        """As AsyncClient.run, in this session; `cwd` is seen from the session's."""

        async def run_in(session_id: str) -> Completed:
            options["session_id"] = session_id
            return await self._client.run(command, **options)

        options["cwd"] = self._here(options.get("cwd"))
        return await self._in_session(run_in)

    async def __aenter__(self) -> AsyncSession:
        return self if self._opened is not None else await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ConnectionLost):
            await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSession {self._opened.session_id if self._opened else 'unopened'} in {self.cwd}>"
