"""Two connected sockets joined: splice() on Linux, recv() and send() elsewhere.

Promises:

- every byte that one side sent before its end reaches the other side, in whatever order and how fast they close;
- each direction ends separately: the end of one side's sending becomes a half-close of the other socket after the last
  byte, and the opposite direction goes on;
- only a reset is passed on as a reset, after the bytes under way to the healthy side;
- a slow reader stops the reading of its sender; the relay buffers no more than one pipe, and nothing in memory: without
  a pipe it takes from the sender only what the reader has taken.

The sockets must be non-blocking and have no other reader."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sandboxd.handover.record import Descriptor
from sandboxd.proxy.fair_share import STEP, Share
from sandboxd.proxy.session_bounds import Meter
from sandboxd.proxy.streams.pipes import SHARED, Pipe, PipePool
from sandboxd.proxy.streams.stream import reset
from sandboxd_client.records import dataclass

Inspect = Callable[[bytes], bool | None]
"""Receives bytes as they come: True lets all pass, False ends the tunnel, None waits for more."""

CAN_SPLICE: Final = sys.platform == "linux"
COPY_SIZE: Final = 1 << 16
MOST_HELD: Final = 4 << 20
"""Bytes that await inspection in all tunnels of a command. A further tunnel is reset."""
TURN: Final = 16
"""Steps of one direction before other directions get a turn."""
FLUSH_CHECK_S: Final = 0.02
FLUSH_LIMIT_S: Final = 5.0
_NOTHING, _SOURCE, _SINK, _TURN = range(4)


@dataclass(frozen=True, slots=True)
class DirectionRecord:
    """One direction in the hand-over document; `inspected` after the inspection.

    `piped` bytes are in flight in `pipe`, its two ends, after those that are `held`."""

    held: bytes = b""
    source_ended: bool = False
    ended: bool = False
    ends_in_error: bool = False
    inspected: bool = True
    taken: int = 0
    pipe: tuple[Descriptor, ...] = ()
    piped: int = 0


class SocketRelay:
    """Two sockets joined into one stream.

    `run()` returns when both directions have ended, and closes both sockets. Cancelling it resets them, so that a
    truncated stream never looks complete."""

    def __init__(
        self,
        left: socket.socket,
        right: socket.socket,
        *,
        pipes: PipePool = SHARED,
        splice: bool = CAN_SPLICE,
        share: Share | None = None,
        meter: Meter | None = None,
    ) -> None:
        """The work is charged to `share`, the bytes to the right socket to `meter`."""
        self.share = share or Share()
        self._loop = asyncio.get_running_loop()
        self._left = left
        self._right = right
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._detached = False
        self._directions = (
            _SocketDirection(self, left, right, pipes if splice else None, meter),
            _SocketDirection(self, right, left, pipes if splice else None),
        )

    @property
    def moved(self) -> tuple[int, int]:
        """Return the bytes read from the left and from the right socket."""
        rightward, leftward = self._directions
        return rightward.taken, leftward.taken

    async def run(self, to_right: bytes = b"", to_left: bytes = b"", inspect: Inspect | None = None) -> None:
        """Relay until both directions have ended. Never raises OSError.

        `to_right` was read from the left socket before and goes first; `to_left` likewise. `inspect` receives the first
        bytes from the left side, which are held back until it decides."""
        await self._run(DirectionRecord(to_right, inspected=inspect is None), DirectionRecord(to_left), inspect)

    async def resume(
        self, rightward: DirectionRecord, leftward: DirectionRecord, inspect: Inspect | None = None
    ) -> None:
        """Continue a relay that another process detached."""
        await self._run(rightward, leftward, inspect)

    def detach(self) -> tuple[DirectionRecord, DirectionRecord] | None:
        """Stop without touching the sockets, so that another process can continue.

        Returns the state of both directions, None when the tunnel is ending anyway. `run` returns."""
        if self._done.done() or any(direction.failing for direction in self._directions):
            return None
        rightward, leftward = (direction.detach() for direction in self._directions)
        self._detached = True
        self._done.set_result(None)
        return rightward, leftward

    async def _run(self, rightward: DirectionRecord, leftward: DirectionRecord, inspect: Inspect | None) -> None:
        to_right, to_left = self._directions
        try:
            to_right.start(rightward, None if rightward.inspected else inspect)
            to_left.start(leftward)
            await self._done
        finally:
            for direction in self._directions:
                direction.stop()
            if self._detached:
                pass
            elif self._done.done() and not self._done.cancelled():
                self._left.close()
                self._right.close()
            else:
                reset(self._left)
                reset(self._right)

    def ended(self) -> None:
        """Finish once both directions have ended."""
        if all(direction.ended for direction in self._directions) and not self._done.done():
            self._done.set_result(None)

    def refused(self) -> None:
        """Reset both sides after a negative inspection."""
        for direction in self._directions:
            direction.stop()
        reset(self._left)
        reset(self._right)
        if not self._done.done():
            self._done.set_result(None)

    def sink_failed(self, broken: socket.socket) -> None:
        """Handle a side that accepts no more data.

        Data that it sent before, such as an early answer to an upload, may still wait to be read. So the direction from
        it continues to its end, which is then an error."""
        for direction in self._directions:
            if direction.goes_to(broken):
                direction.stop()
            elif direction.ended:
                self.failed(broken)
            else:
                direction.ends_in_error = True

    def failed(self, broken: socket.socket) -> None:
        """Handle a reset side: flush the other side, then reset it."""
        for direction in self._directions:
            direction.stop()
            direction.failing = True
        healthy = self._right if broken is self._left else self._left
        reset(broken)
        self._reset_when_flushed(healthy, self._loop.time() + FLUSH_LIMIT_S)

    def _reset_when_flushed(self, sock: socket.socket, deadline: float) -> None:
        """Reset after the send queue is empty, because a reset discards unsent bytes."""
        if self._done.done():
            return
        if _unsent(sock) and self._loop.time() < deadline:
            self._loop.call_later(FLUSH_CHECK_S, self._reset_when_flushed, sock, deadline)
            return
        reset(sock)
        self._done.set_result(None)


def _unsent(sock: socket.socket) -> int:
    """Return the bytes not yet acknowledged (tcp(7), SIOCOUTQ), 0 if unknown."""
    with contextlib.suppress(OSError):
        return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    return 0


class _SocketDirection:
    """The direction from one socket to the other.

    Bytes in flight are in `_held` (read into memory), then in `_pipe` (`_in_pipe` of them). Either the source is
    watched for reading or the sink for writing, never both."""

    __slots__ = (
        "_held",
        "_in_pipe",
        "_inspect",
        "_loop",
        "_meter",
        "_peeked",
        "_pipe",
        "_pipes",
        "_relay",
        "_share",
        "_sink",
        "_sink_fd",
        "_source",
        "_source_ended",
        "_source_fd",
        "_uninspected",
        "_watching",
        "ended",
        "ends_in_error",
        "failing",
        "taken",
    )

    def __init__(
        self,
        relay: SocketRelay,
        source: socket.socket,
        sink: socket.socket,
        pipes: PipePool | None,
        meter: Meter | None = None,
    ) -> None:
        self._relay = relay
        self._meter = meter
        self._loop = relay._loop
        self._source = source
        self._sink = sink
        self._source_fd = source.fileno()
        self._sink_fd = sink.fileno()
        self._share = relay.share
        self._pipes = pipes
        self._pipe: Pipe | None = None
        self._in_pipe = 0
        self._held = memoryview(b"")
        self._peeked = 0
        """How many of the bytes held are still in the source's queue."""
        self._inspect: Inspect | None = None
        self._uninspected = 0
        """Bytes held for the inspection, counted in the share."""
        self._source_ended = False
        self._watching = _NOTHING
        self.taken = 0
        """Bytes read from the source."""
        self.ended = False
        self.ends_in_error = False
        self.failing = False

    def goes_to(self, sock: socket.socket) -> bool:
        return self._sink is sock

    def start(self, before: DirectionRecord, inspect: Inspect | None = None) -> None:
        if before.pipe:
            self._pipes = self._pipes or SHARED
            self._pipe, self._in_pipe = self._pipes.resume(before.pipe), before.piped
        if self.ended:  # the other direction failed at once
            self._return_pipe()
            return
        self.ends_in_error = before.ends_in_error
        self.taken = before.taken
        if before.ended:
            self.ended = True
            self._relay.ended()
            return
        self._source_ended = before.source_ended
        self._held = memoryview(before.held)
        self._inspect = inspect
        if inspect is not None:
            self._count(len(before.held))
        if self._in_pipe or (before.held and self._passes(before.held)):
            self._sink_writable()
        elif not self.ended:
            self._watch_source()

    def detach(self) -> DirectionRecord:
        """Stop the callbacks, and return the state with the bytes in flight."""
        self._watch_nothing()
        self._count(-self._uninspected)
        record = DirectionRecord(
            bytes(self._held), self._source_ended, self.ended, self.ends_in_error, self._inspect is None, self.taken
        )
        if not self._in_pipe or self._pipe is None or self._pipes is None:
            return record
        reader, writer = self._pipes.hand_over(self._pipe)
        record = replace(record, pipe=(Descriptor(reader), Descriptor(writer)), piped=self._in_pipe)
        self._pipe, self._in_pipe = None, 0
        return record

    def stop(self) -> None:
        """Stop the callbacks, and drop the bytes in flight."""
        self._watch_nothing()
        self._count(-self._uninspected)
        self.ended = True
        self._return_pipe()
        self._held, self._peeked = memoryview(b""), 0

    # callbacks of the event loop

    def _source_readable(self) -> None:
        if not self._share.has_some():
            self._wait_for_turn(self._watch_source, self._source_readable)
            return
        if self._inspect is not None and not self._look():
            return
        for _ in range(TURN):
            try:
                count = self._fill()
            except (BlockingIOError, InterruptedError):
                self._share.spend()
                self._return_pipe()
                return
            except OSError:
                self._relay.failed(self._source)
                return
            if count == 0:
                self._source_ended = True
                self._finish()
                return
            self._share.spend(STEP, count)
            if not self._drain():
                return
            if not self._share.has_some():
                break
        self._return_pipe()

    def _sink_writable(self) -> None:
        if not self._share.has_some():
            self._wait_for_turn(self._watch_sink, self._sink_writable)
            return
        self._share.spend()
        if not self._drain():
            return
        self._return_pipe()
        if self._source_ended:
            self._finish()
        else:
            self._watch_source()

    # inspection of the first bytes

    def _look(self) -> bool:
        """Return whether the inspection is over and the held bytes were passed on."""
        try:
            data = self._source.recv(COPY_SIZE)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._relay.failed(self._source)
            return False
        self._share.spend(STEP, len(data))
        self.taken += len(data)
        self._held = memoryview(bytes(self._held) + data)
        self._count(len(data))
        if self._share.held > MOST_HELD:
            self._relay.refused()
            return False
        if not data:
            self._end_inspection()
            self._source_ended = True
            if self._drain():
                self._finish()
            return False
        return self._passes(data) and self._drain()

    def _passes(self, data: bytes) -> bool:
        if self._inspect is None:
            return True
        verdict = self._inspect(data)
        if verdict is None:
            return False
        self._end_inspection()
        if not verdict:
            self._relay.refused()
        return verdict

    def _end_inspection(self) -> None:
        self._inspect = None
        self._count(-self._uninspected)

    def _count(self, size: int) -> None:
        self._uninspected += size
        self._share.held += size

    # one step each

    def _fill(self) -> int:
        """Read from the source; return the count, 0 at its end. Raises BlockingIOError."""
        if self._pipes is not None:
            if self._pipe is None:
                with contextlib.suppress(OSError):  # out of descriptors: copy instead
                    self._pipe = self._pipes.borrow()
            if self._pipe is not None:
                self._in_pipe = _splice(self._source_fd, self._pipe.writer, self._pipe.size)
                self.taken += self._in_pipe
                return self._in_pipe
        self._held = memoryview(self._source.recv(COPY_SIZE, socket.MSG_PEEK))
        self._peeked = len(self._held)
        return self._peeked

    def _drain(self) -> bool:
        """Write all bytes in flight. False when the sink is full or a side has failed."""
        is_full = False
        try:
            while self._held:
                if (most := self._within_limits(len(self._held))) == 0:
                    return False
                sent = self._sink.send(self._held[:most])
                self._held = self._held[sent:]
                if self._meter is not None:
                    self._meter.count(sent)
            while self._in_pipe and self._pipe is not None and not is_full:
                if (most := self._within_limits(self._in_pipe)) == 0:
                    return False
                sent = _splice(self._pipe.reader, self._sink_fd, most)
                self._in_pipe -= sent
                is_full = sent < most  # asking again would cost a call and an exception
                if self._meter is not None:
                    self._meter.count(sent)
        except (BlockingIOError, InterruptedError):
            is_full = True
        except OSError:
            self._relay.sink_failed(self._sink)
            return False
        if self._peeked and not self._take_sent():
            self._relay.failed(self._source)
            return False
        if is_full:
            self._watch_sink()
        return not is_full

    def _within_limits(self, size: int) -> int:
        """Return how many of these bytes may be sent. At a limit the tunnel is reset, after all that it allows."""
        if self._meter is None or (left := self._meter.left) >= size:
            return size
        if left <= 0:
            self._meter.refuse()
            self._relay.failed(self._source)
            return 0
        return left

    def _take_sent(self) -> bool:
        """Read what was sent of the bytes peeked at, and leave the others in the source's queue."""
        sent, self._peeked, self._held = self._peeked - len(self._held), 0, memoryview(b"")
        with contextlib.suppress(OSError):  # another process reads there as well
            while sent and (data := self._source.recv(sent)):
                self.taken += len(data)
                sent -= len(data)
        return not sent

    def _finish(self) -> None:
        """End the direction after the last byte was passed on."""
        self._watch_nothing()
        self._return_pipe()
        self.ended = True
        if self.ends_in_error:
            self._relay.failed(self._source)
            return
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._relay.sink_failed(self._sink)
            return
        self._relay.ended()

    def _return_pipe(self) -> None:
        if self._pipe is not None and self._pipes is not None:
            self._pipes.give_back(self._pipe, empty=self._in_pipe == 0)
            self._pipe = None
            self._in_pipe = 0

    # watching

    def _watch_source(self) -> None:
        if self._watching != _SOURCE:
            self._watch_nothing()
            self._loop.add_reader(self._source_fd, self._source_readable)
            self._watching = _SOURCE

    def _watch_sink(self) -> None:
        if self._watching != _SINK:
            self._watch_nothing()
            self._loop.add_writer(self._sink_fd, self._sink_writable)
            self._watching = _SINK

    def _wait_for_turn(self, watch: Callable[[], None], work: Callable[[], None]) -> None:
        """Wait without watching, because a ready socket would wake the loop each turn."""

        def go_on() -> None:
            if self._watching == _TURN:
                watch()
                work()

        self._watch_nothing()
        self._watching = _TURN
        self._share.later(go_on)

    def _watch_nothing(self) -> None:
        if self._watching == _SOURCE:
            self._loop.remove_reader(self._source_fd)
        elif self._watching == _SINK:
            self._loop.remove_writer(self._sink_fd)
        self._watching = _NOTHING


def _splice(source: int, sink: int, count: int) -> int:
    return os.splice(source, sink, count, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)
