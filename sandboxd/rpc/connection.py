"""A client's connection: bytes to messages, messages to calls, answers back.

Requests are pipelined and answered out of order, each in its own task. The daemon holds a bounded amount for a client:
- a line may have 4 MiB, a batch 256 calls;
- `MOST_IN_FLIGHT` calls are worked on at once, and what more a batch has; what follows is not read until one of them is
  answered; nor is it while these requests have `MOST_SIZE_IN_FLIGHT` together;
- answers that the client does not take stop the reading of its further requests;
- all connections of a process do so much in one turn of the event loop, measured by the clock, then others are first;
- notifications that it does not take end the connection: the daemon never waits for a subscriber;
- unfinished lines, large requests, calls and unread answers of all connections have bounds as well (`rpc.room`).

When the client goes away its calls are cancelled. The daemon hears of it only when the last of them has ended, so that
a session that was just being opened cannot outlive its owner. A client that closes no more than its sending half (a
shell pipeline does) gets its answers first."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from structlog.typing import FilteringBoundLogger

from sandboxd.errors import CallerError
from sandboxd.handover.record import Descriptor
from sandboxd.proxy.fair_share import CONNECTION
from sandboxd.rpc.dispatch import PATIENT, Dispatcher, answer_to
from sandboxd.rpc.handlers.hello import may_be_hello
from sandboxd.rpc.jsonrpc import (
    DEEPEST,
    MOST_VALUES,
    Json,
    error_message,
    has_too_many_values,
    is_response,
    is_too_deep,
)
from sandboxd.rpc.peer import AGENT, Caller
from sandboxd.rpc.room import LARGE, MOST_HELD, MOST_LARGE, ClientRoom, InFlight
from sandboxd.rpc.shares import ClientShare
from sandboxd_client.records import dataclass
from sandboxd_client.wire import codes
from sandboxd_client.wire.framing import FrameError, JsonTextError, LineDecoder, encode_line
from sandboxd_client.wire.jsontext import loads

MOST_IN_FLIGHT = 64
MOST_SIZE_IN_FLIGHT = 1 << 20
"""Characters of the requests of a connection that are worked on: each is kept several times, with its answer."""
MOST_UNTAKEN = 4 << 20
"""Bytes that may wait for the client before a notification ends the connection."""
_PAUSE_ABOVE, _RESUME_BELOW = 256 << 10, 64 << 10
_READ = 40
"""Cost of a read besides that of the system call: to stop and to go on."""
_ONE_LINE = "one JSON text a line, UTF-8, at most 4 MiB"


@dataclass(frozen=True, slots=True)
class ConnectionRecord:
    """A client's connection between two daemons.

    It holds bytes read and not parsed, answers not sent, and unanswered requests, which are put again. `key` names it
    as the owner of sessions; the rest are its subscriptions."""

    key: str
    socket: Descriptor
    uid: int
    gid: int
    pid: int
    incoming: bytes = b""
    dropping: bool = False
    outgoing: bytes = b""
    half_closed: bool = False
    waiting: tuple[str, ...] = ()
    questions: bool = False
    original_names: bool = False
    watching: bool = False
    violations: tuple[str | None, ...] = ()
    settings: tuple[tuple[str | None, str | None], ...] = ()
    closed_ports: tuple[int, ...] = ()
    page: str = ""
    restricted: bool = False
    started: int = 0
    more_groups: tuple[int, ...] = ()

    @property
    def caller(self) -> Caller:
        known = Caller(self.uid, self.gid, self.pid, more_groups=self.more_groups, started=self.started)
        return replace(known, access=AGENT) if self.restricted else known


class RpcConnection(asyncio.BufferedProtocol):
    """A connection of a client, and the owner of the sessions opened over it.

    `admit` identifies the caller (`rpc.peer.identify`) or raises CallerError; `opened` and `lost` tell of an
    admitted one."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        admit: Callable[[socket.socket], Caller],
        log: FilteringBoundLogger,
        opened: Callable[[RpcConnection], None],
        lost: Callable[[RpcConnection], None],
        share_of: Callable[[Caller], ClientShare],
        hurry: Callable[[], None],
        room: ClientRoom,
    ) -> None:
        self._room = room
        self._holds = 0
        self._share_of = share_of
        self._hurry = hurry
        self._share: ClientShare = cast(ClientShare, None)
        self._waits = False
        """Set while the connection waits for its turn, or for room."""
        self._read_begun = 0.0
        self._dispatcher = dispatcher
        self._admit = admit
        self._log = log
        self._opened = opened
        self._lost = lost
        self._caller: Caller | None = None
        self._lines = LineDecoder()
        self._calls: dict[asyncio.Task[None], object] = {}
        self._sizes: dict[asyncio.Task[None], int] = {}
        self._size_in_flight = 0
        self._in_flight = 0
        self._untaken = bytearray()
        self._paused = False
        self._given_away = False
        self._handed_over = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._half_closed = False
        self._reading = True
        self._writable = True
        self._is_connected = False
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)

    @property
    def caller(self) -> Caller:
        assert self._caller is not None, "only an admitted connection has calls"
        return self._caller

    def restrict(self) -> None:
        self._caller = replace(self.caller, access=AGENT)

    # what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_connected = True
        self._transport.set_write_buffer_limits(_PAUSE_ABOVE, _RESUME_BELOW)
        try:
            caller = self._admit(transport.get_extra_info("socket"))
            self._share = self._share_of(caller)
            self._share.connect()
        except CallerError as error:
            self._log.warning("caller refused", reason=error.slug)
            self._send(answer_to(error))
            self._transport.close()
            return
        self._caller = caller
        self._share.spend(CONNECTION)
        self._log = self._log.bind(peer=self._caller.pid)
        self._opened(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        self._read_begun = time.perf_counter()
        return self._room.buffer

    def buffer_updated(self, size: int) -> None:
        if self._caller is not None:
            self._share.spend_since(self._read_begun)
            self._share.spend(_READ)
            with memoryview(self._room.buffer)[:size] as data:
                self._lines.feed(data)
            self._take_lines()

    def eof_received(self) -> bool:
        if self._caller is None or self._is_gone():
            return False
        if self._lines.partial:
            self._send(error_message(codes.PARSE_ERROR, "the last line has no end", "parse_error", _ONE_LINE))
        self._half_closed = True
        self._close_when_answered()
        return True  # keeps the sending half open

    def connection_lost(self, error: Exception | None) -> None:
        self._hold(0)
        self._room.note_unread(self, 0)
        if self._caller is None:
            return
        self._share.connections -= 1
        if self._given_away:
            return
        for call in self._calls:
            call.cancel()
        self._lost(self)

    def pause_writing(self) -> None:
        self._writable = False
        self._read_or_not()

    def resume_writing(self) -> None:
        self._writable = True
        self._room.note_unread(self, self.unread)
        self._untaken = bytearray(self._unwritten)
        self._take_lines()

    def _is_gone(self) -> bool:
        """Return whether the client has closed both halves (poll(2), POLLHUP).

        An end of file alone does not tell (unix(7))."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return bool(poll.poll(0))

    # requests in

    def _take_lines(self) -> None:
        while self._ready():
            place = self._share.in_flight.place_for(len(self._lines))
            if place is not None or not self._share.has_some():
                self._waits = True
                self._share.later(self._go_on) if place is None else place.append(self._go_on)
                break
            begun = time.perf_counter()
            line: str | None = ""
            try:
                line = self._lines.next_line()
                if line is None:
                    break
                self._check_room(line)
                if has_too_many_values(line):
                    raise JsonTextError("parse_error", f"more than {MOST_VALUES:,} values")
                message = loads(line)
                if is_too_deep(line, message):
                    raise JsonTextError("parse_error", f"nested deeper than {DEEPEST} levels")
                self._dispatcher.take_role(message, line, self)
                self._take(message, len(line))
            except (FrameError, JsonTextError) as error:
                if error.slug == "not_utf8" or may_be_hello(line or ""):
                    self._dispatcher.restrict(self)
                self._send(error_message(codes.number_of(error.slug), error.message, error.slug, _ONE_LINE))
            except _NoRoom as error:
                if may_be_hello(line or ""):
                    self._dispatcher.restrict(self)
                self._send(_no_room(str(error)))
            finally:
                self._share.spend_since(begun)
        if not self._waits:
            self._hold(len(self._lines))
        self._read_or_not()

    def _hold(self, size: int) -> None:
        """Count the kept bytes of an unfinished line."""
        more = max(size - LARGE, 0) - self._holds
        if more > 0 and self._room.held + more > MOST_HELD:
            self._lines.drop()
            self._send(_no_room("requests that are not complete"))
            more = -self._holds
        self._holds += more
        self._room.held += more

    def _check_room(self, line: str) -> None:
        if len(line) > LARGE and self._room.large + len(line) > MOST_LARGE:
            raise _NoRoom("large requests")

    def _go_on(self) -> None:
        self._waits = False
        if not self._given_away and not self._transport.is_closing():
            self._take_lines()
            self._close_when_answered()

    def _ready(self) -> bool:
        few = self._in_flight < MOST_IN_FLIGHT and self._size_in_flight < MOST_SIZE_IN_FLIGHT
        free = not self._waits and few
        return self._writable and not self._paused and free

    def _read_or_not(self) -> None:
        reading = self._ready()
        if reading is self._reading or self._half_closed or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _take(self, message: object, size: int = 0) -> None:
        self._hurry()
        if is_response(message):
            self._log.debug("answer to nothing we asked")
        elif self._stopping:
            self._answer_stopping(message)
        else:
            call = asyncio.get_running_loop().create_task(self._answer(message), name=f"rpc-{self.caller.pid}")
            self._calls[call] = message
            self._sizes[call] = size
            self._count(_size(message), size)
            self._idle.clear()
            call.add_done_callback(self._answered)

    def _count(self, calls: int, size: int) -> None:
        """Record that calls have begun, or (negative) have been answered."""
        self._in_flight += calls
        self._size_in_flight += size
        large = size if abs(size) > LARGE else 0
        self._room.large += large
        self._share.in_flight.add(calls, large)

    async def _answer(self, message: object) -> None:
        try:
            answer = await self._dispatcher.respond(message, self, self._share)
        except asyncio.CancelledError:
            if self._stopping and not self._given_away:
                self._answer_stopping(message)
            raise
        if answer is not None:
            begun = time.perf_counter()
            self._send(answer)
            self._share.spend_since(begun)

    def _answered(self, call: asyncio.Task[None]) -> None:
        if self._given_away:
            return
        was_full = not self._ready()
        self._count(-_size(self._calls.pop(call, None)), -self._sizes.pop(call, 0))
        if not call.cancelled() and (error := call.exception()) is not None:
            self._log.error("connection failed", exc_info=error)
            self._transport.abort()
        if was_full:
            self._take_lines()
        if not self._calls:
            self._idle.set()
            self._close_when_answered()

    def _close_when_answered(self) -> None:
        if self._half_closed and not self._calls and not self._waits:
            self._transport.close()

    # answers and notifications out

    def _send(self, message: Json | list[Json]) -> None:
        if self._handed_over or (self._is_connected and self._transport.is_closing()):
            return
        try:
            line = encode_line(message)
        except (FrameError, JsonTextError) as error:
            line = encode_line(_unsendable(message, error))
        self._write(line)

    def _write(self, data: bytes) -> None:
        if not self._is_connected:  # one that was taken over and is only just being connected
            self._untaken += data
            return
        self._transport.write(data)
        waiting = self.unread
        self._room.note_unread(self, waiting)
        if not waiting:
            self._untaken.clear()
            return
        self._untaken += data
        if len(self._untaken) > 2 * waiting + _RESUME_BELOW:  # a client may be late for ever, and take it all
            del self._untaken[: len(self._untaken) - waiting]

    @property
    def unread(self) -> int:
        """Return the number of bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    @property
    def in_flight(self) -> InFlight:
        return self._share.in_flight

    @property
    def _unwritten(self) -> bytes:
        size = self.unread
        return bytes(self._untaken[len(self._untaken) - size :]) if size else b""

    def _answer_stopping(self, message: object) -> None:
        if isinstance(message, dict) and "id" in message:
            hint = "start it again with: sandboxd serve"
            self._send(error_message(codes.BUSY, "the daemon is stopping", "stopping", hint, message["id"]))

    def notify(self, method: str, params: Json) -> None:
        """Send a notification.

        A client that does not take them is cut off: it reconnects and asks for a snapshot."""
        if self._is_connected and self.unread > MOST_UNTAKEN:
            self.cut("the client does not read")
            return
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def cut(self, reason: str) -> None:
        self._log.warning(f"connection cut: {reason}")
        self._transport.abort()

    # from one daemon to the next (docs/restarts.md)

    def pause(self, paused: bool = True) -> None:
        """Take no further requests: they wait."""
        self._paused = paused
        if self._caller is not None and not self._given_away:
            self._take_lines()

    @property
    def is_busy(self) -> bool:
        """Return whether a call in progress ends soon and should not be repeated."""
        return any(not _is_patient(message) for message in self._calls.values())

    def give_away(self) -> Descriptor:
        """Cancel what is in flight and return the descriptor of the socket.

        The next daemon notices the end of the connection. To be followed by `hand_over`."""
        self._given_away = True
        for call in self._calls:
            call.cancel()
        return Descriptor(os.dup(self._transport.get_extra_info("socket").fileno()))

    async def hand_over(self, key: str, socket: Descriptor) -> ConnectionRecord:
        """Wait until the calls in flight have ended; their requests go along.

        `socket` is what `give_away` returned."""
        if self._calls:
            await asyncio.wait(self._calls)
        incoming, dropping = self._lines.state
        record = ConnectionRecord(
            key=key,
            socket=socket,
            uid=self.caller.uid,
            gid=self.caller.gid,
            pid=self.caller.pid,
            restricted=self.caller.restricted,
            started=self.caller.started,
            more_groups=self.caller.more_groups,
            incoming=incoming,
            dropping=dropping,
            outgoing=self._unwritten,
            half_closed=self._half_closed,
            waiting=tuple(json.dumps(message) for call, message in self._calls.items() if call.cancelled()),
        )
        self._handed_over = True
        self._transport.abort()
        return record

    def resume(self, record: ConnectionRecord) -> None:
        """Resume the state of an earlier daemon. Called once, on construction."""
        early, self._untaken = bytes(self._untaken), bytearray()
        self._write(record.outgoing)
        self._write(early)
        self._lines = LineDecoder.resumed(record.incoming, record.dropping)
        for text in record.waiting:
            self._take(json.loads(text))
        self._take_lines()
        if record.half_closed:
            self._half_closed = True
            self._close_when_answered()

    # the end

    async def calls_ended(self) -> None:
        """Return when no call is in flight."""
        await self._idle.wait()

    async def finish(self, grace_s: float) -> None:
        """Answer calls in flight for at most `grace_s`, and later ones with `stopping`."""
        self._stopping = True
        try:
            async with asyncio.timeout(grace_s):
                await self.calls_ended()
        except TimeoutError:
            for call in self._calls:
                call.cancel()
            await self.calls_ended()

    def hang_up(self) -> None:
        """Close the connection after what has been written."""
        if self._is_connected:
            self._transport.close()


def _unsendable(message: Json | list[Json], error: FrameError | JsonTextError) -> Json:
    slug = "response_too_long" if error.slug == "line_too_long" else "internal_error"
    request_id = message.get("id") if isinstance(message, dict) else None
    if isinstance(request_id, str) and not request_id.isascii():
        request_id = None  # it may be what cannot be sent
    return error_message(codes.INTERNAL_ERROR, f"the answer cannot be sent: {error.message}", slug, "", request_id)


class _NoRoom(Exception):
    """A lack of room for a request; the text is what takes it."""


def _no_room(what: str) -> Json:
    hint = "send it again when other requests are answered"
    return error_message(codes.BUSY, f"{what} take too much room", "too_many_requests", hint)


def _size(message: object) -> int:
    """Return the number of calls in a message."""
    return len(message) if isinstance(message, list) else 1


def _is_patient(message: object) -> bool:
    """Return whether all calls of a message may be repeated."""
    requests = message if isinstance(message, list) else [message]
    return all(isinstance(one, dict) and one.get("method") in PATIENT for one in requests)
