"""A bare client of the socket, which sends exactly the bytes a test wants, and a server of the test's own methods."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.log import LogFormat, make_logger
from sandboxd.rpc.call import CallSurroundings, Route
from sandboxd.rpc.connection import RpcConnection
from sandboxd.rpc.dispatch import Dispatcher
from sandboxd.rpc.server import Connections
from sandboxd.rpc.socket import listen

LIMIT = 64 << 20


CHILD = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [connection.fileno()])
sys.stdin.read()
"""


class RawClient:
    """One connection. `call` sends a request and waits for its answer; the rest is for sending odd things."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._ids = itertools.count(1)

    @classmethod
    @asynccontextmanager
    async def connected(cls, path: str | Path) -> AsyncIterator[RawClient]:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=LIMIT)
        client = cls(reader, writer)
        try:
            yield client
        finally:
            await client.close()

    @classmethod
    @asynccontextmanager
    async def connected_from_a_child(cls, path: str | Path) -> AsyncIterator[RawClient]:
        """As `connected`, but for the daemon the caller is a child of this process, which lives as long."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", "-c", CHILD, str(path), str(theirs.fileno())]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])
        try:
            theirs.close()
            _, (descriptor,), _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1, 1)
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LIMIT)
            client = cls(reader, writer)
            try:
                yield client
            finally:
                await client.close()
        finally:
            ours.close()
            child.kill()  # the end of its input may never come: a process that the daemon has forked can hold the pipe
            child.wait()
            if child.stdin is not None:
                child.stdin.close()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):  # the other end was faster
            await self.writer.wait_closed()

    def send(self, message: object) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    def request(self, method: str, params: object = None, **more: Any) -> int:
        """Send a request without waiting; returns its id."""
        number = next(self._ids)
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method, **more}
        if params is not None:
            message["params"] = params
        self.send(message)
        return number

    async def receive(self) -> Any:
        """The next message; None at the end of the stream."""
        line = await self.reader.readline()
        return json.loads(line) if line else None

    async def call(self, method: str, params: object = None) -> Any:
        """The whole answer to a request, whatever else arrives before it."""
        number = self.request(method, params)
        while (answer := await self.receive()) is not None:
            if isinstance(answer, dict) and answer.get("id") == number:
                return answer
        raise AssertionError(f"the connection ended before {method} was answered")

    async def result(self, method: str, params: object = None) -> Any:
        answer = await self.call(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: object = None) -> Any:
        answer = await self.call(method, params)
        assert "error" in answer, answer
        return answer["error"]


class Log:
    """A logger that keeps its records."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.logger: FilteringBoundLogger = make_logger(self._stream, LogFormat.JSON, logging.DEBUG)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


class Door:
    """A served socket. `lost` has the connections that ended, in order."""

    def __init__(self, path: str, log: Log) -> None:
        self.path = path
        self.log = log
        self.connections = Connections()
        self.lost: list[RpcConnection] = []

    def client(self) -> Any:
        return RawClient.connected(self.path)


@asynccontextmanager
async def open_door(
    path: Path | str,
    methods: Mapping[str, Route],
    on_lost: Callable[[RpcConnection], Awaitable[None]] | None = None,
) -> AsyncIterator[Door]:
    """Serve `methods` at `path`."""
    log = Log()
    door = Door(str(path), log)

    async def lost(connection: RpcConnection) -> None:
        if on_lost is not None:
            await on_lost(connection)
        door.lost.append(connection)

    dispatcher = Dispatcher(methods, cast(CallSurroundings, None), log.logger)
    async with door.connections.serving(listen(door.path), dispatcher, log.logger, lost):
        try:
            yield door
        finally:
            pass
    door.connections.hang_up()
