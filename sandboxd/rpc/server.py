"""Accept connections, and end them in two steps.

No more calls when the daemon begins to stop, hanging up when it is gone. A client that has asked for the
end waits for the hang-up, and may start another daemon then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from weakref import WeakValueDictionary

from structlog.typing import FilteringBoundLogger

from sandboxd.errors import CallerError
from sandboxd.processes import Process
from sandboxd.proxy.fair_share import CONNECTION, Share, Timed
from sandboxd.rpc.connection import ConnectionRecord, RpcConnection
from sandboxd.rpc.dispatch import Dispatcher
from sandboxd.rpc.peer import Caller, Identity, identify
from sandboxd.rpc.room import ClientRoom
from sandboxd.rpc.shares import ClientShare, ClientTurns
from sandboxd.rpc.socket import ListeningSocket

GRACE_S = 2.0
"""How long calls in flight may take when the daemon stops."""
_AT_ONCE = 64
_RECENT = 256
_RETRY_S = 0.1
"""After running out of descriptors: who connects waits in the backlog."""


class Connections:
    """The admitted connections.

    `hang_up` is the daemon's last act. `hurry` is called when a request is taken. All connections of a process have
    one share of the event loop together."""

    def __init__(self, hurry: Callable[[], None] = lambda: None) -> None:
        self._hurry = hurry
        self._room = ClientRoom()
        self.turns = ClientTurns()
        self._shares: WeakValueDictionary[Process, ClientShare] = WeakValueDictionary()
        self._recent: deque[ClientShare] = deque(maxlen=_RECENT)
        """Kept, so that a process owes what it owed when it connects again."""
        self.admitted = 0
        """How many there have been."""
        self._open: set[RpcConnection] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._joining: set[asyncio.Task[None]] = set()
        self._acceptor: _Acceptor | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> tuple[RpcConnection, ...]:
        return tuple(self._open)

    def _share_of(self, caller: Caller) -> ClientShare:
        share = self._shares.get(caller.process)
        if share is None:
            share = self._shares[caller.process] = ClientShare(self.turns)
            self._recent.append(share)
        return share

    def _admit(self, connection: RpcConnection) -> None:
        self.admitted += 1
        self._open.add(connection)

    # from one daemon to the next (docs/restarts.md)

    def pause(self, paused: bool = True) -> None:
        """Take no further requests: they wait in their connections."""
        for connection in self._open:
            connection.pause(paused)

    @property
    def is_busy(self) -> bool:
        """Return whether a call is in progress that ends soon."""
        return any(connection.is_busy for connection in self._open) or bool(self._ending or self._joining)

    def stop_accepting(self) -> None:
        """Let later connections wait in the backlog."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def shed(self, most: int) -> int:
        """Cut connections of the processes with most, until there are at most so many; return their number."""
        cut = 0
        of_one: dict[object, list[RpcConnection]] = {}
        for connection in self._open:
            of_one.setdefault(connection.caller.process, []).append(connection)
        while len(self._open) - cut > most:
            max(of_one.values(), key=len).pop().cut("the service manager has no room for all connections")
            cut += 1
        return cut

    async def hand_over(self) -> list[tuple[RpcConnection, ConnectionRecord]]:
        """Release every connection to the next daemon.

        To be called after `stop_accepting`."""
        # All at once: one that is lost while others are waited for has no socket any more.
        given = {one: one.give_away() for one in self._open}
        self._open.clear()
        return [(one, await one.hand_over(f"c{number}", given[one])) for number, one in enumerate(given)]

    def hang_up(self) -> None:
        for connection in self._open:
            connection.hang_up()

    def make(
        self,
        dispatcher: Dispatcher,
        log: FilteringBoundLogger,
        lost: Callable[[RpcConnection], Coroutine[None, None, None]],
        admit: Callable[[socket.socket], Caller],
    ) -> RpcConnection:
        """Make a connection that is not connected yet.

        `lost` is awaited when it has gone, after the last of its calls."""

        def forget(connection: RpcConnection) -> None:
            self._open.discard(connection)
            ending = asyncio.get_running_loop().create_task(end(connection), name=f"gone-{connection.caller.pid}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

        async def end(connection: RpcConnection) -> None:
            await connection.calls_ended()
            try:
                await Timed(self._share_of(connection.caller), lost(connection))
            except Exception:
                log.exception("the end of a connection was not clean", peer=connection.caller.pid)

        return RpcConnection(dispatcher, admit, log, self._admit, forget, self._share_of, self._hurry, self._room)

    async def connect(self, connection: RpcConnection, record: ConnectionRecord) -> None:
        """Resume the connection of a client of an earlier daemon."""
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
        lost: Callable[[RpcConnection], Coroutine[None, None, None]],
    ) -> AsyncIterator[None]:
        """Serve on `listening` as long as the context lasts.

        `lost` is awaited for each connection that has gone, after the last of its calls has ended."""
        own = Identity.own()

        def accepted(sock: socket.socket) -> None:
            # At once, and not when it is this one's turn: the descriptor that this takes is there now.
            connection = self.make(dispatcher, log, lost, _settled(sock, own))
            joining = asyncio.get_running_loop().create_task(_join(connection, sock), name="accept")
            self._joining.add(joining)
            joining.add_done_callback(self._joining.discard)

        self._acceptor = _Acceptor(listening.socket, accepted, log, Share(self.turns))
        try:
            yield
        finally:
            self.stop_accepting()
            listening.close()
            await asyncio.gather(*(connection.finish(GRACE_S) for connection in self._open))
            while self._ending:
                await asyncio.wait(self._ending)


def _settled(sock: socket.socket, own: Identity) -> Callable[[socket.socket], Caller]:
    """Return a function that gives the identified caller, or raises its refusal."""
    try:
        caller = identify(sock, own)
    except CallerError as error:
        refused = error

        def refuse(_: socket.socket) -> Caller:
            raise refused

        return refuse
    return lambda _: caller


async def _join(connection: RpcConnection, sock: socket.socket) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
    except OSError:
        sock.close()


class _Acceptor:
    """The listening socket on the event loop, as long as it accepts.

    To stop that does not close it: clients may wait in its backlog for the next daemon.

    asyncio's own server would do, but for running out of descriptors: it then tries and logs once for each place in the
    backlog. No connection is accepted without a second descriptor, which identifying the caller takes. Only so
    many are accepted in one turn of the event loop as `share` allows."""

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket], None],
        log: FilteringBoundLogger,
        share: Share,
    ) -> None:
        self._share = share
        self._is_closed = False
        self._listener = listener
        self._accepted = accepted
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._waits = False
        self._accept_again()

    def close(self) -> None:
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _accept_again(self) -> None:
        self._retry = None
        if self._is_closed:
            return
        self._loop.add_reader(self._listener.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._share.has_some():
                self._loop.remove_reader(self._listener.fileno())
                self._share.later(self._accept_again)
                return
            begun = time.perf_counter()
            try:
                spare = os.dup(self._listener.fileno())  # for the look at who it is
                try:
                    connection, _address = self._listener.accept()
                finally:
                    os.close(spare)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._waits = False
                return
            except OSError as error:
                self._wait(error)
                return
            connection.setblocking(False)
            self._accepted(connection)
            self._share.spend_since(begun)
            self._share.spend(CONNECTION)

    def _wait(self, error: OSError) -> None:
        if not self._waits:  # told once, however long it lasts
            self._waits = True
            self._log.warning("clients wait to be accepted", reason=error.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._retry = self._loop.call_later(_RETRY_S, self._accept_again)
