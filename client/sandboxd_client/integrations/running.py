"""Commands of one client: their output, kept within a limit, and those in the background."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import Callable
from typing import Any

from sandboxd_client.aio import AsyncSession
from sandboxd_client.errors import SandboxdError
from sandboxd_client.running.aio_process import AsyncProcess
from sandboxd_client.running.launching import Command

Tell = Callable[[str, str], Any]  # "stdout" or "stderr", and a piece of its text
_CHUNK = 65536


class BoundedOutput:
    """The text of a stream: its beginning and its end, at most `limit` bytes of it."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        over = len(self._tail) - self._half
        if over > 0:
            self._left_out += over
            del self._tail[:over]

    @property
    def cut(self) -> bool:
        """True where something is left out since the last call of `take`."""
        return self._left_out > 0

    def take(self) -> str:
        """Return what has been added since the last call."""
        text = self._head.decode(errors="replace")
        if self._left_out:
            text += f"\n[sandboxd: {self._left_out} bytes are left out here]\n"
        text += self._tail.decode(errors="replace")
        self._head.clear()
        self._tail.clear()
        self._left_out = 0
        return text


class Running:
    """A command, with the tasks that read its streams and wait for its end. `ended` has its status."""

    def __init__(self, process: AsyncProcess, limit: int, tell: Tell | None = None) -> None:
        self.process = process
        self.stdout = BoundedOutput(limit)
        self.stderr = BoundedOutput(limit)
        self.news = asyncio.Event()
        """Set when there is output, or the end."""
        self.timed_out = False
        streams = (("stdout", process.stdout, self.stdout), ("stderr", process.stderr, self.stderr))
        self._readers = [
            asyncio.create_task(self._read(name, stream, output, tell), name="sandboxd output")
            for name, stream, output in streams
            if stream is not None
        ]
        self.ended = asyncio.create_task(self._end(), name="sandboxd command")
        self._limit: asyncio.Task[None] | None = None

    def end_after(self, limit_s: float) -> None:
        """End the command after this time."""

        async def end() -> None:
            await asyncio.sleep(limit_s)
            self.timed_out = not self.ended.done()
            await self.process.stop()

        self._limit = asyncio.create_task(end(), name="sandboxd time limit")
        self.ended.add_done_callback(lambda _: self._limit.cancel() if self._limit is not None else None)

    async def wait_for_news(self, limit_s: float) -> None:
        """Wait for output or the end, at most this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.news.wait()
        self.news.clear()

    async def stop(self, grace_s: float | None = None) -> int:
        """End the command with all its processes."""
        await self.process.stop(grace_s)
        return await self.ended

    async def _read(self, name: str, stream: asyncio.StreamReader, output: BoundedOutput, tell: Tell | None) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        failure: Exception | None = None
        while data := await stream.read(_CHUNK):
            output.add(data)
            self.news.set()
            if tell is not None and failure is None and (text := decoder.decode(data)):
                try:
                    tell(name, text)
                except Exception as error:  # the command must not wait for a reader
                    failure = error
        if failure is not None:
            raise failure

    async def _end(self) -> int:
        status = await self.process.wait()
        await asyncio.gather(*self._readers)
        self.news.set()
        return status


async def start(
    session: AsyncSession, command: Command, limit: int, *, tell: Tell | None = None, **options: Any
) -> Running:
    """Start a command in the session. Raises SandboxdError."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await session.spawn(command, stdin=nothing, stdout=pipe, stderr=pipe, **options)
    return Running(process, limit, tell)


class Background:
    """Commands that run between the calls of a client."""

    MOST = 32

    def __init__(self) -> None:
        self._commands: dict[str, Running] = {}
        self._count = 0

    def add(self, running: Running) -> str:
        """Keep a command. Raises SandboxdError where too many run."""
        while len(self._commands) >= self.MOST:
            over = next((name for name, one in self._commands.items() if one.process.returncode is not None), None)
            if over is None:
                raise SandboxdError("too_many_commands", f"{self.MOST} commands are running", "stop one of them")
            del self._commands[over]
        self._count += 1
        name = str(self._count)
        self._commands[name] = running
        return name

    def get(self, name: str) -> Running:
        """Return a command. Raises SandboxdError for an unknown name."""
        if name not in self._commands:
            raise SandboxdError("command_unknown", f"there is no command {name[:60]!r}", "call start first")
        return self._commands[name]

    def remove(self, name: str) -> None:
        self._commands.pop(name, None)

    async def close(self) -> None:
        """End all commands."""
        commands, self._commands = list(self._commands.values()), {}
        await asyncio.gather(*(one.stop(1.0) for one in commands), return_exceptions=True)
