"""Noticing that a client is gone while it is somebody else's turn to speak."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from sandboxd.proxy.fair_share import STEP
from sandboxd.proxy.streams.stream import HEAD_READ_SIZE, Stream

PROBES_S: Final = (0.02, 0.2, 1.0, 3.0, 6.0, 12.0, 24.0)
"""From one byte to the next; the answer to it is looked for before the next."""


class ClientGone(ConnectionResetError):
    """The client was reset, or closed its side and did not come back for so long that nobody can be waiting."""


class ClientWatch:
    """`async with ClientWatch(client, half_closed_s)`: inside, the client's socket is read in the background and what
    arrives is kept for the next reader. When it is reset the body is cancelled and ClientGone raised. The end of its
    sending alone may be a half-close by a client that waits for the answer, so that gets `half_closed_s`, anew with
    each `progress()`.

    Where the answer begins with `known` whatever happens, that is then sent byte by byte, ever more slowly: who is gone
    answers with a reset.

    Nothing else may read the client meanwhile; `pause()` and `watch()` switch. Costs no task."""

    def __init__(self, client: Stream, half_closed_s: float, *, paused: bool = False, known: bytes = b"") -> None:
        self._client = client
        self._half_closed_s = half_closed_s
        self._paused = paused
        self._known = known
        self._probes = iter(PROBES_S if known else ())
        self._probe: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._timeout = asyncio.timeout(None)
        self._half_closed = False
        self._closed = False
        self._received: list[bytes] = []
        self._size = 0

    async def __aenter__(self) -> ClientWatch:
        await self._timeout.__aenter__()
        if not self._paused:
            self.watch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise ClientGone("the client is gone") from None

    def watch(self) -> None:
        if not self._watching and not self._half_closed and not self._closed:
            self._loop.add_reader(self._client.socket.fileno(), self._readable)
            self._watching = True

    def pause(self) -> None:
        """Stop reading; what was read is the client's pending input."""
        if self._watching:
            self._loop.remove_reader(self._client.socket.fileno())
            self._watching = False
        if self._received:
            self._client.append_pending(b"".join(self._received))
            self._received.clear()

    def give_up(self) -> None:
        """Cancel the body: ClientGone is raised from it."""
        if not self._closed:
            self._timeout.reschedule(self._loop.time())

    def progress(self) -> None:
        """The client was served something: start its time anew."""
        if self._half_closed and not self._closed and not self._timeout.expired():
            self._timeout.reschedule(self._loop.time() + self._half_closed_s)

    def _readable(self) -> None:
        try:
            data = self._client.socket.recv(HEAD_READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.pause()
            self.give_up()
            return
        if not data:
            self.pause()
            self._half_closed = True
            self.progress()
            self._ask_whether_gone()
            return
        self._received.append(data)
        self._size += len(data)
        self._client.share.spend(STEP, len(data))
        if self._size >= HEAD_READ_SIZE:  # a pipelining client: enough for now
            self.pause()

    def _ask_whether_gone(self) -> None:
        delay = next(self._probes, None)
        try:
            if self._client.has_failed:
                self.give_up()
            elif delay is not None:
                self._client.send_ahead(self._known)
                self._probe = self._loop.call_later(delay, self._ask_whether_gone)
        except BlockingIOError:
            return
        except OSError:
            self.give_up()
