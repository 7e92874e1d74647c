"""Detection of a client that left while it waits for an answer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from sandboxd.proxy.fair_share import STEP
from sandboxd.proxy.streams.stream import HEAD_READ_SIZE, Stream

PROBES_S: Final = (0.02, 0.2, 1.0, 3.0, 6.0, 12.0, 24.0)
"""Delays between probe bytes. The reaction to one is read before the next."""


class ClientGone(ConnectionResetError):
    """The client was reset, or half-closed its side longer than the limit."""


class ClientWatch:
    """Context manager that watches a client's socket in the background.

    Data that arrives is kept for the next reader. A reset cancels the body and raises ClientGone. The end of the
    client's sending may be a half-close by a client that waits for the answer. It ends the body after `half_closed_s`,
    counted anew from each `progress()`.

    If every possible answer begins with `known`, these bytes are then sent singly, ever more slowly: a client that is
    gone responds with a reset.

    Meanwhile the client's socket must have no other reader; `pause()` and `watch()` switch. Costs no task."""

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
            raise ClientGone("the client closed the connection") from None

    def watch(self) -> None:
        if not self._watching and not self._half_closed and not self._closed:
            self._loop.add_reader(self._client.socket.fileno(), self._readable)
            self._watching = True

    def pause(self) -> None:
        """Stop reading. The data read so far becomes the client's pending input."""
        if self._watching:
            self._loop.remove_reader(self._client.socket.fileno())
            self._watching = False
        if self._received:
            self._client.append_pending(b"".join(self._received))
            self._received.clear()

    def give_up(self) -> None:
        """Cancel the body, which then raises ClientGone."""
        if not self._closed:
            self._timeout.reschedule(self._loop.time())

    def progress(self) -> None:
        """Restart the client's time, because it received data."""
        if self._half_closed and not self._closed and not self._timeout.expired():
            self._timeout.reschedule(self._loop.time() + self._half_closed_s)

    def _readable(self) -> None:
        try:
            data = self._client.receive_now(HEAD_READ_SIZE)
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
            self._probe_client()
            return
        self._received.append(data)
        self._size += len(data)
        self._client.share.spend(STEP, len(data))
        if self._size >= HEAD_READ_SIZE:  # a pipelining client: enough for now
            self.pause()

    def _probe_client(self) -> None:
        delay = next(self._probes, None)
        try:
            if self._client.has_failed:
                self.give_up()
            elif delay is not None:
                self._client.send_ahead(self._known)
                self._probe = self._loop.call_later(delay, self._probe_client)
        except BlockingIOError:
            return
        except OSError:
            self.give_up()
