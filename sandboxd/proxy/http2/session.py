"""Requests of HTTP/2 between a client and a server, both inside TLS that ends here.

One connection of the client belongs to one of the server. Each request is decided on its own; a refused one is
answered, and the connection goes on. Frames about a connection end here, and those about streams are made anew."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from sandboxd.proxy.dial import DialError
from sandboxd.proxy.http.http1 import HttpSyntaxError
from sandboxd.proxy.http.http_origins import OriginStream, Tunnel, fault_of_tls
from sandboxd.proxy.http.message_body import NO_BODY
from sandboxd.proxy.http.refusal_responses import error_response
from sandboxd.proxy.http2.exchanges import Exchanges
from sandboxd.proxy.http2.frames import BadFrames, GoAway
from sandboxd.proxy.http2.heads import trailer_fields
from sandboxd.proxy.http2.sides import MOST_TABLE, WINDOW, Flow, Side, ended
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound
from sandboxd.proxy.streams.stream import Stream
from sandboxd_client.records import dataclass, field

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


@dataclass(slots=True)
class _Http2Session(Exchanges):
    """The connections of a session: what comes in on them, as events of its exchanges."""

    fed: dict[Flow, None] = field(default_factory=dict)
    """Flows with new content."""
    resets: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

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
                self._finish(exchange)
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

    # events of both

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
