"""One connection to the daemon on an event loop: requests are pipelined."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from sandboxd_client.errors import ConnectionLost, DaemonTimeout, SandboxdError, error_of_reply
from sandboxd_client.running.completed import Completed
from sandboxd_client.transport.answers import Notification, notification_record, result_record
from sandboxd_client.transport.connection import Connection, Message, refusal, request, result_of, usable_path
from sandboxd_client.transport.sharing import NOTIFICATIONS_KEPT
from sandboxd_client.transport.starting import connect_in_role
from sandboxd_client.wire.framing import FrameError, JsonTextError, LineDecoder
from sandboxd_client.wire.jsontext import loads
from sandboxd_client.wire.messages.hello import Role
from sandboxd_client.wire.messages.methods import Method
from sandboxd_client.wire.params import encode_params

P = TypeVar("P")
R = TypeVar("R")
_CHUNK = 65536


class AsyncConnection:
    """A connection of one event loop; a task reads the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._notifications: deque[tuple[str, Any]] = deque(maxlen=NOTIFICATIONS_KEPT)
        self._changed = asyncio.Event()
        self._broken: SandboxdError | None = None
        self._task = asyncio.get_running_loop().create_task(self._read(), name="sandboxd-answers")

    @classmethod
    async def adopt(cls, descriptor: int) -> AsyncConnection:
        sock = socket.socket(fileno=os.dup(descriptor))
        try:
            sock.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer)

    @property
    def usable(self) -> bool:
        return self._broken is None

    async def call(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result of a request. Raises SandboxdError."""
        if self._broken is not None:
            raise ConnectionLost(self._broken.message, sent=False)
        self._last_id += 1
        number = self._last_id
        frame = request(number, method, params)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(frame)
            with contextlib.suppress(OSError):  # `_read` gets the cause
                await self._writer.drain()
            return result_of(await answer)
        finally:
            self._waiting.pop(number, None)

    async def next_notification(self) -> tuple[str, Any]:
        """Return method and parameters of the next one. Raises ConnectionLost."""
        while not self._notifications:
            if self._broken is not None:
                raise ConnectionLost(self._broken.message)
            self._changed.clear()
            await self._changed.wait()
        return self._notifications.popleft()

    async def aclose(self) -> None:
        self._break(ConnectionLost("the client was closed"))
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        decoder = LineDecoder()
        try:
            while data := await self._reader.read(_CHUNK):
                decoder.feed(data)
                while (line := decoder.next_line()) is not None:
                    message = loads(line)
                    if not isinstance(message, dict):
                        raise ConnectionLost("sandboxd sent a message that is not an object")
                    self._take(message)
            self._break(ConnectionLost())
        except OSError:
            self._break(ConnectionLost())
        except (FrameError, JsonTextError) as error:
            self._break(ConnectionLost(f"sandboxd sent an invalid message: {error.message}"))
        except SandboxdError as error:
            self._break(error)

    def _take(self, message: Message) -> None:
        number = message.get("id")
        if "method" in message:
            if number is not None:
                self._writer.write(refusal(message))
            else:
                self._notifications.append((str(message["method"]), message.get("params")))
                self._changed.set()
        elif number is None and "error" in message:  # about the connection as a whole
            raise error_of_reply(message["error"])
        elif number in self._waiting and not self._waiting[number].done():
            self._waiting[number].set_result(message)

    def _break(self, reason: SandboxdError) -> None:
        if self._broken is not None:
            return
        self._broken = reason
        self._changed.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(reason)


def _close_unwanted(connecting: asyncio.Future[Connection]) -> None:
    """Close a connection that was made for a call that was cancelled meanwhile."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class AsyncConnector:
    """The connection of a client on one event loop: connects, repeats requests."""

    def __init__(
        self, socket: str | os.PathLike[str] | None, *, autostart: bool, timeout: float | None, role: Role
    ) -> None:
        self.path = os.fspath(socket) if socket is not None else None
        self._autostart = autostart
        self._timeout = timeout
        self._role = role
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self.connections = 0

    @property
    def socket(self) -> str:
        """The path of the socket. Raises PermissionDenied."""
        if self.path is None:
            self.path = usable_path()
        return self.path

    async def connect(self) -> None:
        """Connect now instead of at the first call."""
        await self._connected()

    async def close(self) -> None:
        """Close the connection; a later call connects anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    def remember(self, done: Completed[Any]) -> None:
        """Do nothing: the outcome of a command is fetched when the command ends."""

    async def _connected(self) -> tuple[AsyncConnection, bool]:
        """Return the connection, and whether this call made it."""
        async with self._lock:
            if self._connection is not None and self._connection.usable:
                return self._connection, False
            await self.close()
            connect = asyncio.to_thread(connect_in_role, self.socket, self._role, autostart=self._autostart)
            connecting = asyncio.ensure_future(connect)
            try:
                found = await asyncio.shield(connecting)
            except asyncio.CancelledError:  # the thread goes on
                connecting.add_done_callback(_close_unwanted)
                raise
            try:
                self._connection = await AsyncConnection.adopt(found.fileno())
            finally:
                found.close()
            self.connections += 1
            return self._connection, True

    async def call(self, method: Method[P, R], params: P) -> R:
        """Send a request and return the record of its result."""
        encoded = encode_params(params)
        while True:
            connection, fresh = await self._connected()
            try:
                async with asyncio.timeout(None if method.patient else self._timeout):
                    result = await connection.call(method.name, encoded)
            except TimeoutError:
                raise DaemonTimeout(method.name, self._timeout or 0) from None
            except ConnectionLost as error:
                if fresh or (error.sent and not method.repeatable):
                    raise
                continue
            return result_record(method, result)

    async def notifications(self, timeout: float | None) -> AsyncIterator[Notification]:  # noqa: ASYNC109
        """Yield notifications until `timeout` passes. Raises ConnectionLost."""
        connection = self._connection
        if connection is None:
            raise ConnectionLost("there is no subscription", sent=False)
        while True:
            try:
                async with asyncio.timeout(timeout):
                    method, params = await connection.next_notification()
            except TimeoutError:
                return
            found = notification_record(method, params)
            if found is not None:
                yield found
