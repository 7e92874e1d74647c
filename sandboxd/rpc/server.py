"""Accepts connections, and ends them in two steps: no more calls when the daemon begins to stop, hanging up when it is
gone. A client that has asked for the end waits for the hang-up, and may start another daemon then."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import TYPE_CHECKING, Any

from sandboxd.rpc.connection import Connection, ConnectionRecord
from sandboxd.rpc.peer import Identity, identify
from sandboxd.rpc.socket import BACKLOG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from sandboxd.rpc.dispatch import Dispatcher
    from sandboxd.rpc.peer import Caller
    from sandboxd.rpc.socket import ListeningSocket

# From 3.13 on asyncio removes the file of a socket it closes; ours has its own rules for that (rpc.socket).
_LEAVE_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
GRACE_S = 2.0
"""How long calls in flight may take when the daemon stops."""


class Connections:
    """The admitted connections. `hang_up` is the daemon's last act."""

    def __init__(self) -> None:
        self.admitted = 0
        """How many there have been."""
        self._open: set[Connection] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> tuple[Connection, ...]:
        return tuple(self._open)

    def _admit(self, connection: Connection) -> None:
        self.admitted += 1
        self._open.add(connection)

    # from one daemon to the next (docs/restarts.md)

    def pause(self, paused: bool = True) -> None:
        """Take no further requests: they wait in their connections."""
        for connection in self._open:
            connection.pause(paused)

    @property
    def is_busy(self) -> bool:
        """Whether a call is in flight that will soon be over."""
        return any(connection.is_busy for connection in self._open) or bool(self._ending)

    def stop_accepting(self) -> None:
        """Who connects from now on waits in the backlog."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def hand_over(self) -> list[tuple[Connection, ConnectionRecord]]:
        """Let go of every connection. To be called after `stop_accepting`."""
        connections = list(self._open)
        self._open.clear()
        return [(one, await one.hand_over(f"c{number}")) for number, one in enumerate(connections)]

    def hang_up(self) -> None:
        for connection in self._open:
            connection.hang_up()

    def make(
        self,
        dispatcher: Dispatcher,
        log: FilteringBoundLogger,
        lost: Callable[[Connection], Awaitable[None]],
        admit: Callable[[socket.socket], Caller],
    ) -> Connection:
        """A connection that is not connected yet. `lost` is awaited when it has gone, after the last of its calls."""

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

        return Connection(dispatcher, admit, log, self._admit, forget)

    async def connect(self, connection: Connection, record: ConnectionRecord) -> None:
        """Go on with a client of an earlier daemon."""
        sock = socket.socket(fileno=record.socket)
        sock.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        connection.resume(record)

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
        # A copy: to stop accepting must not close the socket, in whose backlog clients may wait for the next daemon.
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: self.make(dispatcher, log, lost, lambda peer: identify(peer, own)),
            sock=listening.socket.dup(),
            backlog=BACKLOG,
            **_LEAVE_FILE,
        )
        try:
            yield
        finally:
            self.stop_accepting()
            listening.close()
            await asyncio.gather(*(connection.finish(GRACE_S) for connection in self._open))
            while self._ending:
                await asyncio.wait(self._ending)
