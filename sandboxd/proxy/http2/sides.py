"""The two connections of an HTTP/2 session, and the flow of one body from one to the other.

No body is stored: a side may send what the other side's windows have room for (`Flow.credit`). Then a slow reader slows
its sender, stream by stream, as without the proxy. Only what comes before its stream is admitted waits here."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream

from sandboxd.errors import DaemonError
from sandboxd.proxy.fair_share import Share
from sandboxd.proxy.http2.frames import MOST_BLOCK, BadFrames, FrameSplitter
from sandboxd.proxy.http2.heads import Fields
from sandboxd.proxy.streams.stream import Stream
from sandboxd_client.records import dataclass, field

WINDOW: Final = 65535
"""Initial window of a connection and of streams (RFC 9113, section 6.9.2)."""
MOST_WINDOW: Final = 4 << 20
MOST_UNSENT: Final = 256 << 10
"""Unsent bytes of a side at which the other side is no longer read."""
MOST_REPLIES: Final = 1 << 20
"""Unsent bytes of a side at which its connection ends: answers to frames of a peer that reads none."""
MOST_TABLE: Final = 4096
"""Bytes of the table of sent headers. A peer may allow, not demand, more."""
MOST_STREAMS: Final = 100


class _Connection(H2Connection):
    MAX_CLOSED_STREAMS = 256
    """Ended streams that are remembered; the library would keep 65,536 for each connection."""


class Side:
    """One connection. `failed` is called once sending fails."""

    def __init__(self, stream: Stream, failed: Callable[[BaseException], None], *, serves: bool) -> None:
        self.stream = stream
        self.serves = serves
        self.splitter = FrameSplitter(has_preface=serves)
        self.conn = _Connection(
            H2Configuration(
                client_side=not serves,
                header_encoding=None,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
            )
        )
        self.queued = 0
        """Bytes of bodies that wait for this side's windows."""
        self._failed = failed
        self._out = bytearray()
        self._sending = 0
        self.writer: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()

    def start(self, window: int = WINDOW) -> None:
        """Send the preface, with the initial window of streams."""
        values = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_HEADER_LIST_SIZE: MOST_BLOCK}
        values |= {SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS} if self.serves else {SettingCodes.ENABLE_PUSH: 0}
        self.conn.local_settings = Settings(client=not self.serves, initial_values=values)
        self.conn.initiate_connection()

    def append(self, data: bytes) -> None:
        """Add bytes of a frame that the library does not send."""
        self._collect()
        self._out += data

    def _collect(self) -> None:
        self._out += self.conn.data_to_send()

    @property
    def unsent(self) -> int:
        return len(self._out) + self._sending

    def flush(self) -> None:
        """Begin to send what the library has made. Raises BadFrames for a peer that reads no answers."""
        self._collect()
        if self.unsent > MOST_REPLIES:
            raise BadFrames("the peer reads no answers")
        if self._out and self.writer is None:
            self.writer = asyncio.create_task(self._write(), name="HTTP/2 writer")

    async def _write(self) -> None:
        try:
            while self._out:
                data, self._out = bytes(self._out), bytearray()
                self._sending = len(data)
                await self.stream.send(data)
                self._sending = 0
                if len(self._out) < MOST_UNSENT:
                    self._drained.set()
        except Exception as error:
            self._failed(error)
        except DaemonError as error:  # a limit for uploads
            self._failed(ConnectionResetError(error.message))
        finally:
            self.writer = None
            self._drained.set()

    async def drained(self, most: int = MOST_UNSENT) -> None:
        """Wait until at most so many bytes are unsent, or sending has failed."""
        while self.unsent > most and self.writer is not None:
            self._drained.clear()
            await self._drained.wait()

    def find(self, number: int) -> H2Stream | None:
        found: H2Stream | None = self.conn.streams.get(number)
        return None if found is None or found.closed else found

    def reset(self, number: int, code: int = ErrorCodes.CANCEL) -> None:
        """Reset a stream, unless it has ended."""
        with contextlib.suppress(ProtocolError):
            if self.find(number) is not None:
                self.conn.reset_stream(number, code)


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and return when they have ended: until then they watch sockets. Raises CancelledError only then."""
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while waiting := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


@dataclass(slots=True, eq=False)
class Flow:
    """One direction of a stream. `sink_id` is 0 until the head has been passed on."""

    share: Share
    sink: Side
    source: Side | None = None
    source_id: int = 0
    sink_id: int = 0
    ended: bool = False
    done: bool = False
    trailers: Fields = field(default_factory=list)
    size: int = 0
    taken: int = 0
    """Bytes from the source so far."""
    _queue: deque[bytes] = field(default_factory=deque)

    def take(self, data: bytes) -> None:
        """Take content from the source."""
        if not data or self.done:
            return
        self.taken += len(data)
        self._queue.append(data)
        self._count(len(data))
        if self.sink_id:
            self.sink.queued += len(data)

    def open(self, number: int) -> None:
        """Begin to pass content on, to this stream of the sink."""
        self.sink_id = number
        self.sink.queued += self.size
        self.pump()

    def drop(self) -> None:
        """Forget the content that has not been passed on."""
        if self.sink_id:
            self.sink.queued -= self.size
        self._count(-self.size)
        self._queue.clear()
        self.done = True

    def _count(self, change: int) -> None:
        self.size += change
        self.share.held += change

    def pump(self) -> None:
        """Pass on what the windows of the sink have room for, and let the source send as much again."""
        if self.done or not self.sink_id or self.sink.find(self.sink_id) is None:
            return
        conn = self.sink.conn
        if len(self._queue) > 1 and self.size <= MOST_UNSENT:
            self._queue = deque((b"".join(self._queue),))
        while self._queue:
            room = min(conn.local_flow_control_window(self.sink_id), conn.max_outbound_frame_size)
            if room <= 0:
                break
            piece = self._queue.popleft()
            if len(piece) > room:
                self._queue.appendleft(piece[room:])
                piece = piece[:room]
            self._count(-len(piece))
            self.sink.queued -= len(piece)
            self.done = self.ended and not self._queue and not self.trailers
            conn.send_data(self.sink_id, piece, end_stream=self.done)
        if self.ended and not self._queue and not self.done:
            self.done = True
            if self.trailers:
                conn.send_headers(self.sink_id, self.trailers, end_stream=True)
            else:
                conn.end_stream(self.sink_id)
        self.credit()

    def credit(self) -> None:
        """Open the window of the source as far as that of the sink is open."""
        if self.source is None or self.ended:
            return
        stream, sink = self.source.find(self.source_id), self.sink.find(self.sink_id)
        if stream is not None and sink is not None:
            room = sink.outbound_flow_control_window - self.size
            _raise(self.source, stream.inbound_flow_control_window, room, self.source_id)


def credit_connection(source: Side, sink: Side) -> None:
    """Open the window of a connection as far as that of the other is open."""
    room = sink.conn.outbound_flow_control_window - sink.queued
    _raise(source, source.conn.inbound_flow_control_window, room, None)


def _raise(side: Side, present: int, wanted: int, number: int | None) -> None:
    missing = min(wanted, MOST_WINDOW) - present
    if missing > 0 and missing > present // 2:
        side.conn.increment_flow_control_window(missing, number)
