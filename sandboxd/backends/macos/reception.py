"""The daemon's end of supervisors: one connection per launch.

The protocol is in `supervise.py`. A ticket is good once. When a supervisor's connection ends, every process that is
left in the sandbox is ended, and only then is the launch over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable

from sandboxd.backends.base import LONGEST_GRACE_S, Listeners, Observer
from sandboxd.errors import DaemonError

GRACE_MS = int(LONGEST_GRACE_S * 1000)
LONGEST_LINE = 4096
TICKET_S = 10.0


EndTree = Callable[[str], Awaitable[object]]
"""Ends all members of a sandbox by its member name."""


class Reception:
    """The listening socket at `path`, and the expected launches.

    `identify` returns the peer's process and raises SandboxdError for one of another user. `settle` may wait a moment
    for the log's denials of a launch with that exit status."""

    def __init__(
        self,
        path: str,
        identify: Callable[[socket.socket], int],
        end_tree: EndTree,
        log: Callable[..., None],
        settle: Callable[[str, int | None], Awaitable[None]] | None = None,
    ) -> None:
        self.path = path
        self._identify = identify
        self._end_tree = end_tree
        self._log = log
        self._settle = settle
        self._server: asyncio.Server | None = None
        self._expected: dict[str, SeatbeltLaunch] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen at `path`. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._accepted, self.path, limit=LONGEST_LINE)
        finally:
            os.umask(mask)

    async def close(self) -> None:
        """Stop listening and drop every connection: running commands lose their network."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for launch in list(self._expected.values()):
            launch.cancel()
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def expect(self, ticket: str, launch: SeatbeltLaunch) -> None:
        self._expected[ticket] = launch

    async def end_tree(self, member: str) -> None:
        await self._end_tree(member)

    async def settle(self, ticket: str, status: int | None) -> None:
        if self._settle is not None:
            await self._settle(ticket, status)

    def forget(self, ticket: str) -> None:
        self._expected.pop(ticket, None)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="supervisor")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pid = self._identify(writer.get_extra_info("socket"))
            async with asyncio.timeout(TICKET_S):
                words = (await reader.readuntil(b"\n")).split()
            launch = self._expected.pop(words[1].decode("ascii"), None) if len(words) == 2 else None
            if launch is not None:
                await launch.serve(pid, reader, writer)
        except DaemonError as error:
            self._log("supervisor_refused", error=error.slug)
        except (OSError, TimeoutError, UnicodeDecodeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it ended, or was no supervisor
        finally:
            writer.close()


class SeatbeltLaunch:
    """One launch and its handle. Owns the listeners until they are handed over.

    `terminal`: its supervisor relays a pseudo-terminal."""

    def __init__(
        self,
        ticket: str,
        member: str,
        listeners: Listeners,
        observer: Observer,
        reception: Reception,
        *,
        terminal: bool = False,
    ) -> None:
        self.ticket = ticket
        self.member = member
        self.observer = observer
        self._listeners: Listeners | None = listeners
        self._reception = reception
        self._writer: asyncio.StreamWriter | None = None
        self._supervisor = 0
        self._status: int | None = None
        self._go = b"go %d terminal\n" % GRACE_MS if terminal else b"go %d\n" % GRACE_MS
        self._killing: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self._reception.forget(self.ticket)
        self._close_listeners()

    def terminate(self) -> None:
        self._tell(b"term\n")

    def kill(self) -> None:
        if self._writer is not None and self._killing is None:
            self._tell(b"kill\n")
            self._killing = asyncio.get_running_loop().create_task(self._kill_tree(), name=f"kill {self.ticket}")

    async def _kill_tree(self) -> None:
        """Kill without the supervisor, which may be stopped."""
        await self._reception.end_tree(self.member)
        if self._writer is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._supervisor, signal.SIGKILL)

    def _tell(self, message: bytes) -> None:
        if self._writer is not None:
            self._writer.write(message)

    def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            for listener in (listeners.http, listeners.socks):
                if listener is not None:
                    listener.close()

    async def serve(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve from ticket to end of the tree. Cancelled, it lets the command run."""
        self._supervisor = pid
        self._writer = writer
        self.observer.claimed(pid)
        if not await self._may_start():
            self._close_listeners()
            self._writer = None
            self.observer.ended(None)
            return
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            self.observer.listening(listeners)
        writer.write(self._go)
        try:
            while line := await reader.readline():
                self._hear(line.decode("utf-8", "replace").rstrip("\n"))
        except (OSError, ValueError):
            pass  # its end comes next, whatever happened to the connection
        finally:
            self._writer = None
        await self._reception.end_tree(self.member)
        await self._reception.settle(self.ticket, self._status)
        self.observer.ended(self._status)

    async def _may_start(self) -> bool:
        """Return whether the observer lets the command start.

        The supervisor sees the connection close otherwise."""
        try:
            checking = self.observer.starting()
            if checking is not None:
                await checking
        except DaemonError as error:
            self.observer.failed(error.message)
            return False
        return True

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "started":
            self.observer.started()
        elif word == "failed":
            self.observer.failed(rest)
        elif word in ("exit", "signal") and rest.isdigit():
            self._status = int(rest) if word == "exit" else -int(rest)
