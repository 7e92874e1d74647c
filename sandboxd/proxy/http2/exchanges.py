"""Requests of an HTTP/2 session and their answers: how each begins, is decided, passed on, answered and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.request_rules import HttpRequest
from sandboxd.proxy.credentials.injector import NOTHING, Injection
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.fair_share import CONNECTION
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestHead, ResponseReader
from sandboxd.proxy.http.http_origins import SAFE_TO_REPEAT, OriginStream, Tunnel
from sandboxd.proxy.http.http_target import Target, parse_tunnelled_target
from sandboxd.proxy.http.message_body import NO_BODY, Framing
from sandboxd.proxy.http.refusal_responses import denied_response, error_response
from sandboxd.proxy.http2.frames import GoAway
from sandboxd.proxy.http2.heads import (
    Fields,
    answer_fields,
    answer_head,
    framing_of,
    request_fields,
    request_head,
    trailer_fields,
)
from sandboxd.proxy.http2.sides import Flow, Side, credit_connection
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound, Refused
from sandboxd.proxy.streams.stream import Stream
from sandboxd_client.records import dataclass, field


@dataclass(slots=True, eq=False)
class StreamExchange:
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
class Exchanges:
    """The exchanges of one session, with the two connections that they use."""

    client_stream: Stream
    outbound: Outbound
    limits: ProxyLimits
    tunnel: Tunnel
    origin: OriginStream | None
    fault: DialError | None
    client: Side = field(init=False)
    server: Side | None = field(init=False, default=None)
    exchanges: dict[int, StreamExchange] = field(default_factory=dict)
    """By the client's streams."""
    at_server: dict[int, StreamExchange] = field(default_factory=dict)
    """By the server's streams."""
    waiting: deque[StreamExchange] = field(default_factory=deque)
    """Until the server takes another request."""
    leaving: bool = False
    """No further request is taken."""
    newest: int = 0
    answers: int = 0
    over: asyncio.Future[None] = field(init=False)
    idle: asyncio.TimerHandle | None = None

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

    def _flush(self) -> None:
        if self.server is not None:
            credit_connection(self.client, self.server)
            credit_connection(self.server, self.client)
            self.server.flush()
        self.client.flush()

    # their course

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

    def _begin(self, event: events.RequestReceived) -> None:
        share, number = self.client_stream.share, event.stream_id
        self.newest = max(self.newest, number)
        if self.leaving:
            self.client.reset(number, ErrorCodes.REFUSED_STREAM)
            return
        up = Flow(share, self.server or self.client, self.client, number)
        exchange = self.exchanges[number] = StreamExchange(number, up, Flow(share, self.client, self.server))
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

    async def _decide(self, exchange: StreamExchange, head: RequestHead, target: Target) -> None:
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

    def _open(self, exchange: StreamExchange) -> None:
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

    def _await_answer(self, exchange: StreamExchange) -> None:
        if not exchange.answered and exchange.deadline is None:
            loop = asyncio.get_running_loop()
            exchange.deadline = loop.call_later(self.limits.response_s, self._answer_late, exchange)

    def _answer_late(self, exchange: StreamExchange) -> None:
        where = self.tunnel.host.authority(self.tunnel.port)
        late = DialError("response_timeout", f"{where} accepted the request but did not answer in time")
        self._answer(exchange, error_response(late))
        self._flush()

    def _take_head(
        self,
        exchange: StreamExchange,
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

    def _send_head(self, exchange: StreamExchange, fields: Fields, *, end: bool = False) -> None:
        self.client.conn.send_headers(exchange.number, fields, end_stream=end)

    def _answer_begins(self, exchange: StreamExchange) -> None:
        exchange.answered = True
        self.answers += 1
        if exchange.deadline is not None:
            exchange.deadline.cancel()
            exchange.deadline = None
        exchange.down.open(exchange.number)

    def _open_waiting(self) -> None:
        for _ in range(len(self.waiting)):
            self._open(self.waiting.popleft())

    def _pump(
        self, number: int | None, exchanges: dict[int, StreamExchange], way: str, *, of_windows: bool = False
    ) -> None:
        """Go on with one stream, or with all: `of_windows`, with those that wait for the window of the connection."""
        found = exchanges.get(number or 0)
        some = tuple(exchanges.values()) if not number else () if found is None else (found,)
        for exchange in some:
            flow = exchange.up if way == "up" else exchange.down
            if number or flow.size or not of_windows:
                flow.pump()
                self._finish(exchange)

    def _end_flow(self, exchange: StreamExchange, flow: Flow) -> None:
        flow.ended = True
        flow.pump()
        if flow is exchange.up and flow.sink_id:
            self._await_answer(exchange)
        self._finish(exchange)

    def _finish(self, exchange: StreamExchange) -> None:
        """Forget an exchange that is complete.

        A client that still sends is told to stop, but not at once: curl 7.88 looks at no answer that comes with the end
        of its stream. It can send as much as the window of the stream has room for."""
        if not (exchange.down.done and exchange.up.done):
            return
        stream = self.client.find(exchange.number)
        if exchange.up.ended or stream is None or stream.inbound_flow_control_window <= 0:
            self._stop(exchange)
        elif exchange.deadline is None:
            self.at_server.pop(exchange.down.source_id, None)
            loop = asyncio.get_running_loop()
            exchange.deadline = loop.call_later(self.limits.linger_s, self._stop_and_flush, exchange)

    def _stop(self, exchange: StreamExchange) -> None:
        if not exchange.up.ended:
            self.client.reset(exchange.number, ErrorCodes.NO_ERROR)
        self._forget(exchange)

    def _stop_and_flush(self, exchange: StreamExchange) -> None:
        try:
            self._stop(exchange)
            self._flush()
        except (OSError, ProtocolError) as error:
            self._fail(error)

    def _answer(self, exchange: StreamExchange, rendered: bytes) -> None:
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

    def _reset(self, exchange: StreamExchange, code: int) -> None:
        self.client.reset(exchange.number, code)
        if self.server is not None:
            self.server.reset(exchange.down.source_id, code)
        self._forget(exchange)

    def _forget(self, exchange: StreamExchange) -> None:
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
