"""Child processes of the daemon, each in a session of its own.

Not those of asyncio: `wait` there waits for the pipes too, which another process may hold, or which are full of what is
not read any more, so it can wait for ever; so does a cancelled start; and a thread takes the status, so that a signal
may reach another process that has got the number. Here an ended child stays a zombie, and its number reserved, until
its process group has been killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

from sandboxd_client.records import dataclass

DEVNULL: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE
MOST: Final = 1 << 20
"""Bytes that are read of a program."""
_CHUNK: Final = 1 << 16

Take = Callable[[bytes], object]
"""Receives what a child prints, as it comes."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a program; the status is None where it did not come to one in its time."""

    status: int | None
    output: bytes
    errors: bytes


class Child:
    """A running program. Raises OSError where it does not start; then no process is left.

    `output` and `errors` receive what it prints. Nothing of it is read any more after `end`."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = "/",
        stdin: int | IO[bytes] = DEVNULL,
        output: Take | None = None,
        errors: Take | None = None,
    ) -> None:
        self._popen = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=stdin, start_new_session=True,
            stdout=DEVNULL if output is None else PIPE, stderr=DEVNULL if errors is None else PIPE,
        )  # fmt: skip
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._streams = {
            stream: take
            for stream, take in ((self._popen.stdout, output), (self._popen.stderr, errors))
            if stream is not None and take is not None
        }
        try:
            self._watch = _watch(self._popen.pid)
        except OSError:
            self._kill()
            self._close()
            self._popen.wait()
            raise
        self._loop.add_reader(self._watch, self._notice)
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
            self._loop.add_reader(stream.fileno(), self._read, stream)

    async def over(self) -> None:
        """Wait for the end of the program itself, also while another holds its streams."""
        await self._gone.wait()

    async def end(self) -> int:
        """Kill what is left of the process group, and return the program's status. A second call is no error.

        Raises CancelledError only then, so that a cancelled caller leaves no process."""
        self._kill()
        cancelled: asyncio.CancelledError | None = None
        while not self._gone.is_set():
            try:
                await self._gone.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        for stream in tuple(self._streams):  # what is still in the pipe
            while self._read(stream):
                pass
        self._close()
        self._watch.close()
        status = self._popen.wait()
        if cancelled is not None:
            raise cancelled
        return status

    def _kill(self) -> None:
        if self._popen.returncode is None:  # macOS: EPERM for a group of zombies
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def _notice(self) -> None:
        self._loop.remove_reader(self._watch)
        self._gone.set()

    def _read(self, stream: IO[bytes]) -> bool:
        """Hand on what there is; return whether there may be more."""
        try:
            text = os.read(stream.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if text:
            self._streams[stream](text)
        else:
            self._drop(stream)
        return bool(text)

    def _drop(self, stream: IO[bytes]) -> None:
        if self._streams.pop(stream, None) is not None:
            self._loop.remove_reader(stream.fileno())

    def _close(self) -> None:
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if stream is not None and not stream.closed:
                self._drop(stream)
                stream.close()


async def run_program(
    argv: Sequence[str],
    within_s: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = "/",
    stdin: int | bytes = DEVNULL,
    output: bool = True,
    errors: bool = False,
    most: int = MOST,
) -> Finished:
    """Run a program and return what it prints, `most` bytes and a little more: what prints more is ended.

    So is what is left of its process group. Raises OSError where it does not start."""
    texts = bytearray(), bytearray()
    full = asyncio.Event()

    def take(into: bytearray) -> Take:
        def add(text: bytes) -> None:
            if len(into) <= most:
                into.extend(text)
            if len(into) > most:
                full.set()

        return add

    with contextlib.ExitStack() as stack:
        given = stdin if isinstance(stdin, int) else stack.enter_context(_file_of(stdin))
        child = Child(
            argv, env=env, cwd=cwd, stdin=given, output=take(texts[0]) if output else None,
            errors=take(texts[1]) if errors else None,
        )  # fmt: skip
    ends = [asyncio.ensure_future(one) for one in (child.over(), full.wait())]
    is_over = False
    try:
        is_over = bool((await asyncio.wait(ends, timeout=within_s, return_when=asyncio.FIRST_COMPLETED))[0])
    finally:
        for one in ends:
            one.cancel()
        status = await child.end()
    return Finished(status if is_over else None, bytes(texts[0]), bytes(texts[1]))


def _file_of(text: bytes) -> IO[bytes]:
    """Return a file to be read: writing into a pipe could have to wait."""
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text)
    file.seek(0)
    return file


def _watch(pid: int) -> Any:
    """Return an object with a descriptor that becomes readable when the child ends: pidfd_open(2), kqueue(2)."""
    if sys.platform == "darwin":
        queue = select.kqueue()
        queue.control([select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)], 0)
        return queue
    return open(os.pidfd_open(pid), "rb", buffering=0)
