"""Ends of HTTP/2 connections by the library `h2`, in the event loop of a test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from sandboxd.proxy.http2.frames import FrameSplitter, GoAway
from support.proxies import Wire, finish

Fields = list[tuple[str, str]]
Settings = Mapping[int, int]
EMPTY: Settings = {}


@dataclass(slots=True)
class Message:
    """What has come of one stream."""

    heads: list[dict[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str:
        return self.heads[-1][":status"]


class Peer:
    """One end. `takes` decides whether received content is acknowledged; `keeps`, whether it is kept."""

    def __init__(self, wire: Wire, *, serves: bool = False, takes: bool = True, settings: Settings = EMPTY) -> None:
        self.reader, self.writer = wire
        self.conn = H2Connection(
            H2Configuration(
                client_side=not serves, header_encoding="utf-8", validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )  # fmt: skip
        self.takes, self.keeps = takes, True
        self.streams: dict[int, Message] = {}
        self.gone: GoAway | None = None
        self.splitter = FrameSplitter(has_preface=serves)
        self.changed = asyncio.Condition()
        self.on: Callable[[int, Message, Event], Awaitable[None]] | None = None
        self.conn.initiate_connection()
        if settings:
            self.conn.update_settings(dict(settings))
        self.flush()
        self.task = asyncio.create_task(self._read())

    def flush(self) -> None:
        self.writer.write(self.conn.data_to_send())

    async def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self.reader.read(65536):
                for piece in self.splitter.split(data):  # the library takes nothing after GOAWAY
                    if isinstance(piece, GoAway):
                        self.gone = piece
                        continue
                    for event in self.conn.receive_data(piece):
                        await self._take(event)
                self.flush()
                async with self.changed:
                    self.changed.notify_all()
        self.gone = self.gone or GoAway(0, -1)
        async with self.changed:
            self.changed.notify_all()

    async def _take(self, event: Event) -> None:
        number = getattr(event, "stream_id", None)
        if not number:
            return
        message = self.streams.setdefault(number, Message())
        if isinstance(event, RequestReceived | ResponseReceived | InformationalResponseReceived):
            message.heads.append({str(name): str(value) for name, value in event.headers})
        elif isinstance(event, DataReceived):
            message.size += len(event.data)
            if self.keeps:
                message.body += event.data
            if self.takes:
                self.conn.acknowledge_received_data(event.flow_controlled_length, number)
        elif isinstance(event, TrailersReceived):
            message.trailers = {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, StreamEnded):
            message.ended = True
        elif isinstance(event, StreamReset):
            message.reset, message.ended = int(event.error_code), True
        if self.on is not None:
            await self.on(number, message, event)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(holds)

    def ask(self, method: str, path: str, authority: str, *more: tuple[str, str], end: bool = True) -> int:
        """Begin a request; return its stream."""
        return self.ask_raw(
            [(":method", method), (":scheme", "https"), (":authority", authority), (":path", path), *more], end=end
        )

    def ask_raw(self, fields: Fields, *, end: bool = True) -> int:
        number = self.conn.get_next_available_stream_id()
        self.conn.send_headers(number, fields, end_stream=end)
        self.streams[number] = Message()
        self.flush()
        return number

    async def answer(self, number: int) -> Message:
        message = self.streams[number]
        await self.until(lambda: message.ended or self.gone)
        return message

    async def send(self, number: int, body: bytes, *, end: bool = True) -> None:
        """Send a body as the windows allow."""
        view = memoryview(body)
        while view:
            await self.until(lambda: self.conn.local_flow_control_window(number) > 0 or self.gone)
            room = min(self.conn.local_flow_control_window(number), self.conn.max_outbound_frame_size)
            self.conn.send_data(number, bytes(view[:room]))
            view = view[room:]
            self.flush()
            await self.writer.drain()
        if end:
            self.conn.end_stream(number)
            self.flush()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await finish(self.writer)


def secure(context: ssl.SSLContext, *protocols: str) -> ssl.SSLContext:
    context.set_alpn_protocols(protocols or ("h2", "http/1.1"))
    return context


Serve = Callable[[Peer, int, Message, Event], Awaitable[None]]


@dataclass(slots=True)
class Http2Origin:
    port: int
    peers: list[Peer] = field(default_factory=list)

    @property
    def requests(self) -> list[str]:
        heads = (head for peer in self.peers for one in peer.streams.values() for head in one.heads)
        return [f"{head[':method']} {head[':path']}" for head in heads]


@contextlib.asynccontextmanager
async def http2_origin(
    serve: Serve,
    certificate: Path,
    *protocols: str,
    settings: Settings = EMPTY,
    authority: Path | None = None,
    takes: bool = True,
) -> AsyncIterator[Http2Origin]:
    """A server that calls `serve` with each event of a stream; it wants certificates of an `authority`."""
    context = secure(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *protocols)
    context.load_cert_chain(certificate)
    if authority is not None:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer((reader, writer), serves=True, takes=takes, settings=settings)

        async def on(number: int, message: Message, event: Event) -> None:
            await serve(peer, number, message, event)

        peer.on = on
        origin.peers.append(peer)
        await asyncio.wait([peer.task])

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    origin = Http2Origin(server.sockets[0].getsockname()[1])
    async with server:
        yield origin
        for peer in origin.peers:
            await peer.close()


async def echo(peer: Peer, number: int, message: Message, event: Event) -> None:
    """Answer a complete request with its method, path and body, and its size as a trailer."""
    if not isinstance(event, StreamEnded):
        return
    head = message.heads[0]
    peer.conn.send_headers(number, [(":status", "200"), ("x-path", head[":path"])])
    asyncio.create_task(_finish_echo(peer, number, message))  # noqa: RUF006


async def _finish_echo(peer: Peer, number: int, message: Message) -> None:
    with contextlib.suppress(Exception):
        await peer.send(number, bytes(message.body), end=False)
        peer.conn.send_headers(number, [("x-size", str(message.size))], end_stream=True)
        peer.flush()
