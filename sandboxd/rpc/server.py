"""Accepts connections, and ends them in two steps: no more calls when the daemon begins to stop, hanging up when it is
gone. A client that has asked for the end waits for the hang-up, and may start another daemon then."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from sandboxd.rpc.connection import Connection
from sandboxd.rpc.peer import Identity, identify
from sandboxd.rpc.socket import BACKLOG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from sandboxd.rpc.dispatch import Dispatcher
    from sandboxd.rpc.socket import ListeningSocket

# From 3.13 on asyncio removes the file of a socket it closes; ours has its own rules for that (rpc.socket).
_LEAVE_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
GRACE_S = 2.0
"""How long calls in flight may take when the daemon stops."""


class Connections:
    """The admitted connections. `hang_up` is the daemon's last act."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def hang_up(self) -> None:
        for connection in self._open:
            connection.hang_up()

    @contextlib.asynccontextmanager
    async def serving(
        self,
        listening: ListeningSocket,
        dispatcher: Dispatcher,
        log: FilteringBoundLogger,
        lost: Callable[[Connection], Awaitable[None]],
    ) -> AsyncIterator[None]:
        """Serve on `listening` as long as the context lasts. `lost` is awaited for each connection that has gone, after
        the last of its calls has ended."""
        own = Identity.own()

        def forget(connection: Connection) -> None:
            self._open.discard(connection)
            ending = asyncio.get_running_loop().create_task(end(connection), name=f"gone-{connection.caller.pid}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

        async def end(connection: Connection) -> None:
            await connection.calls_ended()
            try:
                await lost(connection)
            except Exception:
                log.exception("the end of a connection was not clean", peer=connection.caller.pid)

        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(dispatcher, lambda peer: identify(peer, own), log, self._open.add, forget),
            sock=listening.socket,
            backlog=BACKLOG,
            **_LEAVE_FILE,
        )
        try:
            yield
        finally:
            server.close()
            listening.close()
            await asyncio.gather(*(connection.finish(GRACE_S) for connection in self._open))
            while self._ending:
                await asyncio.wait(self._ending)
