"""Requests of HTTP/2 between a client and a server, both inside TLS that ends here.

One connection of the client belongs to one of the server. Each request is decided on its own; a refused one is
answered, and the connection goes on. Frames about a connection end here, and those about streams are made anew."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.request_rules import HttpRequest
from sandboxd.proxy.credentials.injector import NOTHING, Injection
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.fair_share import CONNECTION
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestHead, ResponseReader
from sandboxd.proxy.http.http_origins import SAFE_TO_REPEAT, OriginStream, Tunnel, fault_of_tls
from sandboxd.proxy.http.http_target import Target, parse_tunnelled_target
from sandboxd.proxy.http.message_body import NO_BODY, Framing
from sandboxd.proxy.http.refusal_responses import denied_response, error_response
from sandboxd.proxy.http2.frames import BadFrames, GoAway
from sandboxd.proxy.http2.heads import (
    Fields,
    answer_fields,
    answer_head,
    framing_of,
    request_fields,
    request_head,
    trailer_fields,
)
from sandboxd.proxy.http2.sides import MOST_TABLE, WINDOW, Flow, Side, credit_connection, ended
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound, Refused
from sandboxd.proxy.streams.stream import Stream

MOST_RESETS: Final = 200
"""Unanswered requests that a client may take back, besides as many as were answered."""


_HEADS: Final = (events.ResponseReceived, events.InformationalResponseReceived, events.TrailersReceived)


async def serve_http2(
    client: Stream,
    outbound: Outbound,
    limits: ProxyLimits,
    tunnel: Tunnel,
    origin: OriginStream | None,
    fault: DialError | None,
) -> None:
    """Serve a connection until it ends, and close both sides. Without `origin`, `fault` answers what is allowed.

    Raises only cancellation and internal errors."""
    session = _Http2Session(client, outbound, limits, tunnel, origin, fault)
    try:
        await session.run()
    except (OSError, ProtocolError):
        client.reset()
    finally:
        await session.close()


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request and its answer."""

    number: int
    """Of the client's stream."""
    up: Flow
    down: Flow
    head: RequestHead | None = None
    target: Target | None = None
    framing: Framing = NO_BODY
    injection: Injection = NOTHING
    held: int = 0
    answered: bool = False
    interim: int = 0
    deciding: asyncio.Task[None] | None = None
    deadline: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Http2Session:
    client_stream: Stream
    outbound: Outbound
    limits: ProxyLimits
    tunnel: Tunnel
    origin: OriginStream | None
    fault: DialError | None
    client: Side = field(init=False)
    server: Side | None = field(init=False, default=None)
    exchanges: dict[int, _Exchange] = field(default_factory=dict)
    at_server: dict[int, _Exchange] = field(default_factory=dict)
    waiting: deque[_Exchange] = field(default_factory=deque)
    fed: dict[Flow, None] = field(default_factory=dict)
    """Flows with new content."""
    leaving: bool = False
    """No further request is taken."""
    newest: int = 0
    resets: int = 0
    answers: int = 0
    over: asyncio.Future[None] = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    idle: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.over = asyncio.get_running_loop().create_future()
        self.client = Side(self.client_stream, self._fail, serves=True)

    async def run(self) -> None:
        """Serve until the connection ends. Raises OSError, ProtocolError."""
        self.client.start()
        self._settle()
        self._read(self.client)
        await self.over
        await ended(self.tasks)
        self.client.flush()
        async with asyncio.timeout(self.limits.half_closed_s):
            await self.client.drained(0)
        await self.client.stream.linger(self.limits.linger_s)

    async def close(self) -> None:
        if self.idle is not None:
            self.idle.cancel()
        for exchange in tuple(self.exchanges.values()):
            self._forget(exchange)
        writers = [side.writer for side in (self.client, self.server) if side is not None and side.writer is not None]
        try:
            await ended([*self.tasks, *writers])
        finally:
            self._close_sockets()

    def _close_sockets(self) -> None:
        if self.origin is not None and not self.origin.is_kept:
            self.outbound.release(self.origin.connection)
            self.origin.close()
        self.client_stream.close()

    def _fail(self, error: BaseException) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _leave(self) -> None:
        """Take no further requests, and end once those present are answered."""
        if not self.leaving:
            self.leaving = True
            self.client.append(GoAway(self.newest, ErrorCodes.NO_ERROR).render())
        self._settle()

    def _settle(self) -> None:
        """End, or wait for requests, once no request is present."""
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None
        self.client_stream.rest(not self.exchanges)
        if not self.exchanges:
            if self.leaving:
                self._end()
            else:
                limit = self.limits.idle_s if self.newest else self.limits.head_s
                self.idle = asyncio.get_running_loop().call_later(limit, self._time_out)

    def _time_out(self) -> None:
        self._leave()
        self.client.flush()

    # reading

    def _read(self, side: Side) -> None:
        async def read() -> None:
            try:
                await self._read_all(side)
            except Exception as error:
                if isinstance(error, OSError | ProtocolError):
                    with contextlib.suppress(OSError):
                        if isinstance(error, BadFrames):
                            side.append(GoAway(self.newest if side is self.client else 0, error.code).render())
                        side.flush()
                        async with asyncio.timeout(self.limits.linger_s):
                            await side.drained(0)
                if side is self.server:
                    self._server_failed(error)
                elif side is self.client:
                    self._fail(error)

        self.tasks.append(asyncio.create_task(read(), name=f"HTTP/2 of {self.tunnel.host}"))

    async def _read_all(self, side: Side) -> None:
        share = self.client_stream.share
        handle = self._of_client if side is self.client else self._of_server
        while data := await side.stream.receive():
            for piece in side.splitter.split(data):
                await share.turn()
                begun = time.perf_counter()
                if isinstance(piece, GoAway):
                    self._gone_away(side, piece)
                else:
                    for event in side.conn.receive_data(piece):
                        handle(event)
                    self._pass_on()
                self._flush()
                share.spend_since(begun)
            if share.held > self.limits.held_bytes:
                raise ConnectionResetError("what the command's connections hold is too much")
            other = self.server if side is self.client else self.client
            if other is not None:
                await other.drained()
        if side is self.client:
            raise ConnectionResetError("the client closed the connection")
        raise ConnectionResetError("the server closed the connection")

    def _pass_on(self) -> None:
        """Pass on what a piece has brought: several small frames become one."""
        fed, self.fed = self.fed, {}
        for flow in fed:
            flow.pump()

    def _flush(self) -> None:
        if self.server is not None:
            credit_connection(self.client, self.server)
            credit_connection(self.server, self.client)
            self.server.flush()
        self.client.flush()

    def _gone_away(self, side: Side, frame: GoAway) -> None:
        if side is self.server:
            for number, exchange in tuple(self.at_server.items()):
                if number > frame.last:
                    self._reset(exchange, ErrorCodes.REFUSED_STREAM)
            for exchange in tuple(self.waiting):
                self._reset(exchange, ErrorCodes.REFUSED_STREAM)
        self._leave()

    def _server_failed(self, error: BaseException) -> None:
        """Answer for a server whose connection broke; any other fault ends the session."""
        host = self.tunnel.host
        if self.origin is not None and (fault := fault_of_tls(self.origin, error)) is not None:
            lost = fault
        elif isinstance(error, ProtocolError | BadFrames):
            lost = DialError("bad_answer", f"the answer of the server is not valid HTTP/2: {error}")
        elif isinstance(error, OSError):
            lost = DialError("connection_lost", f"{host} closed the connection without a complete answer")
        else:
            self._fail(error)
            return
        try:
            self._lose_server(lost)
            self._flush()
        except (OSError, ProtocolError) as fault:
            self._fail(fault)

    def _lose_server(self, lost: DialError) -> None:
        """Answer what the server has not, because it closed the connection."""
        again = lost.slug == "connection_lost"
        for exchange in tuple(self.exchanges.values()):
            if exchange.deciding is not None or exchange.down.ended:
                continue
            head = exchange.head
            if exchange.answered:
                self._reset(exchange, ErrorCodes.INTERNAL_ERROR)
            elif again and head is not None and head.method in SAFE_TO_REPEAT and not exchange.up.taken:
                self._reset(exchange, ErrorCodes.REFUSED_STREAM)  # so that clients send it again
            else:
                self._answer(exchange, error_response(lost))
        self.server, self.fault = None, self.fault or lost
        self._leave()

    # events of the client

    def _of_client(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            self._begin(event)
        elif isinstance(event, events.RemoteSettingsChanged):
            self._change_settings(self.client, event)
        elif isinstance(event, events.WindowUpdated):
            self._pump(event.stream_id, self.exchanges, "down", of_windows=True)
        elif (exchange := self.exchanges.get(getattr(event, "stream_id", 0) or 0)) is not None:
            if isinstance(event, events.DataReceived):
                exchange.up.take(event.data)
                self.fed[exchange.up] = None
            elif isinstance(event, events.TrailersReceived):
                try:
                    exchange.up.trailers = trailer_fields(event.headers)
                except HttpSyntaxError:
                    self._reset(exchange, ErrorCodes.PROTOCOL_ERROR)
            elif isinstance(event, events.StreamEnded):
                up, framing = exchange.up, exchange.framing
                if not up.done and framing is not NO_BODY and up.taken != framing.length:
                    self._reset(exchange, ErrorCodes.PROTOCOL_ERROR)  # the library only compares at content
                else:
                    self._end_flow(exchange, up)
            elif isinstance(event, events.StreamReset):
                self.resets += not exchange.answered
                self._reset(exchange, event.error_code)
                if self.resets > MOST_RESETS + self.answers:
                    self.client.append(GoAway(self.newest, ErrorCodes.ENHANCE_YOUR_CALM).render())
                    raise ConnectionResetError("the client takes back too many requests")

    def _begin(self, event: events.RequestReceived) -> None:
        share, number = self.client_stream.share, event.stream_id
        self.newest = max(self.newest, number)
        if self.leaving:
            self.client.reset(number, ErrorCodes.REFUSED_STREAM)
            return
        up = Flow(share, self.server or self.client, self.client, number)
        exchange = self.exchanges[number] = _Exchange(number, up, Flow(share, self.client, self.server))
        exchange.held = sum(len(name) + len(value) for name, value in event.headers)
        share.held += exchange.held
        share.spend(CONNECTION + len(event.headers))
        self._settle()
        try:
            if share.held > self.limits.held_bytes:
                raise HttpSyntaxError(
                    "incomplete heads of the command's requests are too large", status=503, slug="too_busy"
                )
            exchange.head = request_head(event.headers)
            exchange.framing = framing_of(exchange.head.headers)
            exchange.target = parse_tunnelled_target(
                exchange.head, self.tunnel.host, self.tunnel.port, secure=self.tunnel.secure
            )
        except HttpSyntaxError as error:
            self._answer(exchange, error_response(error, error.status))
            return
        exchange.deciding = asyncio.create_task(self._decide(exchange, exchange.head, exchange.target))

    async def _decide(self, exchange: _Exchange, head: RequestHead, target: Target) -> None:
        request = HttpRequest.of(head.method, target.path, [name for name, _ in head.headers])
        answer = b""
        try:
            await self.outbound.decide_request(self.client_stream.share, target.host, target.port, request)
            if self.fault is not None:
                raise self.fault
            exchange.injection = await self.outbound.injection(
                target.host, target.port, request, secure=self.tunnel.secure
            )
        except Refused as refused:
            answer = self._denied(target, refused.decision)
        except DialError as error:
            answer = error_response(error)
        except Exception as error:
            self._fail(error)
            return
        exchange.deciding = None
        try:
            if answer:
                self._answer(exchange, answer)
            else:
                self._open(exchange)
            self._flush()
        except (OSError, ProtocolError) as error:
            self._fail(error)

    def _denied(self, target: Target, decision: Decision) -> bytes:
        return denied_response(target.host.authority(target.port), decision)

    def _open(self, exchange: _Exchange) -> None:
        """Pass a request on, or let it wait until the server takes another one."""
        server, origin = self.server, self.origin
        assert exchange.head is not None and exchange.target is not None
        if server is None or origin is None or not self.outbound.may_reuse(origin.connection):
            self._reset(exchange, ErrorCodes.REFUSED_STREAM)
            self._leave()
            return
        if server.conn.open_outbound_streams >= server.conn.remote_settings.max_concurrent_streams:
            self.waiting.append(exchange)
            return
        number = server.conn.get_next_available_stream_id()
        up = exchange.up
        up.done = up.ended and not up.size and not up.trailers
        fields = request_fields(exchange.head, exchange.framing, exchange.target, exchange.injection)
        server.conn.send_headers(number, fields, end_stream=up.done)
        self.at_server[number] = exchange
        up.sink, exchange.down.source, exchange.down.source_id = server, server, number
        up.open(number)
        if up.ended:
            self._await_answer(exchange)

    def _await_answer(self, exchange: _Exchange) -> None:
        if not exchange.answered and exchange.deadline is None:
            loop = asyncio.get_running_loop()
            exchange.deadline = loop.call_later(self.limits.response_s, self._answer_late, exchange)

    def _answer_late(self, exchange: _Exchange) -> None:
        where = self.tunnel.host.authority(self.tunnel.port)
        late = DialError("response_timeout", f"{where} accepted the request but did not answer in time")
        self._answer(exchange, error_response(late))
        self._flush()

    # events of the server

    def _of_server(self, event: events.Event) -> None:
        assert self.server is not None
        number = getattr(event, "stream_id", 0) or 0
        exchange = self.at_server.get(number)
        if isinstance(event, events.RemoteSettingsChanged):
            self._change_settings(self.server, event)
        elif isinstance(event, events.WindowUpdated):
            self._pump(number, self.at_server, "up", of_windows=True)
        elif exchange is None:
            return
        elif isinstance(event, _HEADS):
            try:
                self._take_head(exchange, event)
            except HttpSyntaxError as error:
                bad = DialError("bad_answer", f"the answer of the server is not valid HTTP/2: {error.message}")
                self._answer(exchange, error_response(bad))
        elif isinstance(event, events.DataReceived):
            exchange.down.take(event.data)
            self.fed[exchange.down] = None
        elif isinstance(event, events.StreamEnded):
            self._end_flow(exchange, exchange.down)
        elif isinstance(event, events.StreamReset):
            if exchange.down.ended:  # what the server has answered is complete, and it wants no more of the request
                exchange.up.drop()
                self._end_flow(exchange, exchange.down)
            else:
                self._reset(exchange, event.error_code)

    def _take_head(
        self,
        exchange: _Exchange,
        event: events.ResponseReceived | events.InformationalResponseReceived | events.TrailersReceived,
    ) -> None:
        if isinstance(event, events.TrailersReceived):
            exchange.down.trailers = trailer_fields(event.headers, exchange.injection)
            return
        answer = answer_head(event.headers)
        if isinstance(event, events.InformationalResponseReceived):
            exchange.interim += 1
            if exchange.interim > self.limits.interim_answers:
                raise HttpSyntaxError(f"more than {self.limits.interim_answers} interim answers")
            self._send_head(exchange, answer_fields(answer, NO_BODY, exchange.injection))
            return
        exchange.down.ended = exchange.down.done = event.stream_ended is not None
        fields = answer_fields(answer, framing_of(answer.headers), exchange.injection)
        self._send_head(exchange, fields, end=exchange.down.done)
        self._answer_begins(exchange)

    def _send_head(self, exchange: _Exchange, fields: Fields, *, end: bool = False) -> None:
        self.client.conn.send_headers(exchange.number, fields, end_stream=end)

    def _answer_begins(self, exchange: _Exchange) -> None:
        exchange.answered = True
        self.answers += 1
        if exchange.deadline is not None:
            exchange.deadline.cancel()
        exchange.down.open(exchange.number)

    # both

    def _change_settings(self, side: Side, event: events.RemoteSettingsChanged) -> None:
        """Give the other side the same initial window, if it is a smaller one, and go on where a window has grown."""
        window = side.conn.remote_settings.initial_window_size
        side.conn.encoder.header_table_size = min(side.conn.remote_settings.header_table_size, MOST_TABLE)
        if side is self.client:
            if self.server is None and self.origin is not None and self.fault is None:
                self.server = Side(self.origin, self._server_failed, serves=False)
                self.server.start(min(window, WINDOW))
                self._read(self.server)
            self._pump(0, self.exchanges, "down")
            return
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings and window < WINDOW:
            self.client.conn.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._pump(0, self.at_server, "up")
        self._open_waiting()

    def _open_waiting(self) -> None:
        for _ in range(len(self.waiting)):
            self._open(self.waiting.popleft())

    def _pump(self, number: int | None, exchanges: dict[int, _Exchange], way: str, *, of_windows: bool = False) -> None:
        """Go on with one stream, or with all: `of_windows`, with those that wait for the window of the connection."""
        found = exchanges.get(number or 0)
        some = tuple(exchanges.values()) if not number else () if found is None else (found,)
        for exchange in some:
            flow = exchange.up if way == "up" else exchange.down
            if number or flow.size or not of_windows:
                flow.pump()
                self._finish(exchange)

    def _end_flow(self, exchange: _Exchange, flow: Flow) -> None:
        flow.ended = True
        flow.pump()
        if flow is exchange.up and flow.sink_id:
            self._await_answer(exchange)
        self._finish(exchange)

    def _finish(self, exchange: _Exchange) -> None:
        """Forget an exchange that is complete; a client that still sends is told to stop."""
        if exchange.down.done and exchange.up.done:
            if not exchange.up.ended:
                self.client.reset(exchange.number, ErrorCodes.NO_ERROR)
            self._forget(exchange)

    def _answer(self, exchange: _Exchange, rendered: bytes) -> None:
        """Answer instead of the server, which gets no more of the request."""
        if exchange.number not in self.exchanges:
            return
        if self.server is not None and exchange.down.source_id:
            self.server.reset(exchange.down.source_id)
            self.at_server.pop(exchange.down.source_id, None)
        if exchange.answered:
            self._reset(exchange, ErrorCodes.INTERNAL_ERROR)
            return
        reader = ResponseReader()
        answer = reader.receive_response(rendered)
        assert answer is not None
        body = b"" if exchange.head is not None and exchange.head.method == "HEAD" else reader.rest
        self._send_head(exchange, answer_fields(answer, framing_of(answer.headers)))
        exchange.up.drop()
        down = exchange.down
        down.source = None
        down.take(body)
        down.ended = True
        self._answer_begins(exchange)
        self._finish(exchange)

    def _reset(self, exchange: _Exchange, code: int) -> None:
        self.client.reset(exchange.number, code)
        if self.server is not None:
            self.server.reset(exchange.down.source_id, code)
        self._forget(exchange)

    def _forget(self, exchange: _Exchange) -> None:
        if self.exchanges.pop(exchange.number, None) is None:
            return
        self.at_server.pop(exchange.down.source_id, None)
        with contextlib.suppress(ValueError):
            self.waiting.remove(exchange)
        exchange.up.drop()
        exchange.down.drop()
        self.client_stream.share.held -= exchange.held
        if exchange.deadline is not None:
            exchange.deadline.cancel()
        if exchange.deciding is not None:
            exchange.deciding.cancel()
        if not self.over.done():
            self._open_waiting()
            self._settle()
