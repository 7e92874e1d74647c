"""One plain HTTP request and its answer, between a client and an origin, streamed both ways.

Nothing is stored: a piece of a body goes out as soon as it has come in, and the next one is read when the kernel has
taken it (so server-sent events are not delayed, and a slow reader slows its sender). Heads are written anew from what
was understood. When an answer cannot be completed, the client is reset: it must not take a part for the whole.
"""

from __future__ import annotations

import asyncio

from sandboxd.proxy.body import (
    NO_BODY,
    BodyReader,
    Framing,
    Kind,
    chunk,
    last_chunk,
    response_framing,
)
from sandboxd.proxy.client_watch import ClientGone, ClientWatch
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.http1 import (
    BEGINNING,
    Headers,
    HttpSyntaxError,
    RequestHead,
    ResponseHead,
    ResponseReader,
    end_to_end,
    render_request,
    render_response,
    tokens,
    values,
)
from sandboxd.proxy.http_target import Target, host_header
from sandboxd.proxy.limits import Limits
from sandboxd.proxy.outbound import Connection, Outbound
from sandboxd.proxy.stream import Stream
from sandboxd.proxy.tunnel import Tunnels
from sandboxd.proxy.upstream import login_refused, proxy_authorization

SAFE_TO_REPEAT = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginStream(Stream):
    """A connection to an origin. `fresh` until an answer came over it."""

    __slots__ = ("connection", "fresh")

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection.socket, loop)
        self.connection = connection
        self.fresh = True


class Origins:
    """The connection to an origin that one client connection keeps between requests: at most one."""

    def __init__(self, client: Stream, outbound: Outbound, limits: Limits) -> None:
        self._client = client
        self._outbound = outbound
        self._limits = limits
        self._kept: OriginStream | None = None

    async def get(self, head: RequestHead, framing: Framing, target: Target) -> OriginStream:
        """A connection for this request. Raises Refused, DialError.

        A kept one is used for requests that could be repeated should it turn out to be closed (RFC 9110, section
        9.2.2), and only while policy still allows it."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if (
                kept.connection.is_to(target.host, target.port)
                and head.method in SAFE_TO_REPEAT
                and not framing.has_body
                and not (kept.connection.forward and upgrade_of(head.headers))
                and not kept.is_stale()
                and self._outbound.may_reuse(kept.connection)
            ):
                return kept
            self.drop(kept)
        return await self.open(head, target)

    async def open(self, head: RequestHead, target: Target) -> OriginStream:
        """A new connection. Raises Refused, DialError."""
        connection = await self._outbound.open_for(
            self._client,
            self._limits,
            head.method,
            target.host,
            target.port,
            plain=not upgrade_of(head.headers),  # an upgrade needs a tunnel through every proxy on its way
            known=BEGINNING,
        )
        return OriginStream(connection, asyncio.get_running_loop())

    def keep(self, origin: OriginStream) -> None:
        origin.fresh = False
        self._kept = origin

    def drop_unless_kept(self, origin: OriginStream) -> None:
        if origin is not self._kept:
            self.drop(origin)

    def drop(self, origin: OriginStream) -> None:
        if origin.is_kept:
            return
        self._outbound.release(origin.connection)
        origin.close()

    def close(self) -> None:
        if self._kept is not None:
            self.drop(self._kept)
            self._kept = None


class _StaleOrigin(Exception):
    """A kept connection turned out to be closed before it carried a byte of the answer."""


class Exchange:
    """`run` once. Until the answer has begun faults are raised for the caller to answer; later the client is reset."""

    def __init__(self, client: Stream, origins: Origins, tunnels: Tunnels, limits: Limits) -> None:
        self._client = client
        self._origins = origins
        self._tunnels = tunnels
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._upload: asyncio.Task[bool] | None = None
        self._deadline: asyncio.Timeout | None = None
        self._begun = False

    async def run(self, head: RequestHead, framing: Framing, target: Target) -> bool:
        """Whether the client may send another request. Raises Refused, DialError and HttpSyntaxError while nothing was
        answered; OSError when the client is gone or has to be reset."""
        origin = await self._origins.get(head, framing, target)
        try:
            try:
                return await self._run(origin, head, framing, target)
            except _StaleOrigin:
                self._origins.drop(origin)
                origin = await self._origins.open(head, target)
                return await self._run(origin, head, framing, target)
        except (DialError, HttpSyntaxError) as error:
            if self._begun:
                raise ConnectionResetError(error.message) from error
            raise
        finally:
            await self._stop_upload()
            self._origins.drop_unless_kept(origin)

    async def _run(self, origin: OriginStream, head: RequestHead, framing: Framing, target: Target) -> bool:
        if head.method not in SAFE_TO_REPEAT or framing.has_body:
            self._client.commit()
        try:
            await origin.send(_render(origin.connection, head, framing, target))
        except OSError as error:
            raise _lost(origin) from error
        watch = ClientWatch(self._client, self._limits.half_closed_s, paused=framing.has_body)
        try:
            async with watch:
                if framing.has_body:
                    self._start_upload(origin, framing, watch)
                answer, rest = await self._read_answer(origin, head)
                if answer.status != 101:
                    return await self._pass_answer(origin, head, answer, rest, watch)
        except ClientGone:
            self._raise_fault_of_upload()
            raise
        return await self._switch(origin, answer, rest)

    # the request's body

    def _start_upload(self, origin: OriginStream, framing: Framing, watch: ClientWatch) -> None:
        def ended(upload: asyncio.Task[bool]) -> None:
            if upload.cancelled():
                return
            if upload.exception() is not None:
                watch.give_up()
                return
            watch.watch()
            if self._deadline is not None:
                self._deadline.reschedule(self._loop.time() + self._limits.response_s)

        self._upload = asyncio.create_task(self._send_body(origin, framing), name=f"body for {origin.connection.host}")
        self._upload.add_done_callback(ended)

    async def _send_body(self, origin: OriginStream, framing: Framing) -> bool:
        """Whether the origin has all of it; False when it stopped listening, which may well be its answer. Raises
        OSError for a client that left, HttpSyntaxError for one that does not keep to the framing."""
        body = BodyReader(framing)
        chunked = framing.kind is Kind.CHUNKED
        while not body.done:
            data = await self._client.receive()
            if not data:
                raise ConnectionResetError("the client ended in the middle of a request body")
            piece = body.receive(data)
            if chunked:
                piece = (chunk(piece) if piece else b"") + (last_chunk(body.trailers) if body.done else b"")
            if piece:
                try:
                    await origin.send(piece)
                except OSError:
                    return False
        self._client.unread(body.rest)
        return True

    @property
    def _upload_complete(self) -> bool:
        upload = self._upload
        return upload is None or (
            upload.done() and not upload.cancelled() and upload.exception() is None and upload.result()
        )

    def _raise_fault_of_upload(self) -> None:
        upload = self._upload
        if upload is not None and upload.done() and not upload.cancelled():
            error = upload.exception()
            if error is not None:
                raise error

    async def _stop_upload(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
            await asyncio.wait([self._upload])

    # the answer

    async def _read_answer(self, origin: OriginStream, head: RequestHead) -> tuple[ResponseHead, bytes]:
        """The final answer's head, or a 101, and the bytes after it. Interim answers are passed on (RFC 9110, section
        15.2)."""
        reader = ResponseReader()
        begun = False
        uploading = self._upload is not None and not self._upload.done()
        try:
            async with asyncio.timeout(None if uploading else self._limits.response_s) as self._deadline:
                while True:
                    try:
                        data = await origin.receive()
                    except OSError as error:
                        raise _lost(origin, begun) from error
                    if not data:
                        raise _lost(origin, begun)
                    begun = True
                    answer = _parse_answer(reader, data)
                    while answer is not None:
                        if answer.status >= 200:
                            _check_login(origin.connection, answer)
                            return answer, reader.rest
                        if answer.status == 101:
                            if not upgrade_of(head.headers) or not self._upload_complete:
                                raise DialError("bad_answer", f"{origin.connection.host} switches protocols unasked")
                            return answer, reader.rest
                        if head.minor == 1:
                            self._client.commit()
                            await self._client.send(render_response(answer.status, answer.reason, _to_client(answer)))
                        rest, reader = reader.rest, ResponseReader()
                        answer = _parse_answer(reader, rest)
        except TimeoutError:
            where = origin.connection.host.authority(origin.connection.port)
            raise DialError("response_timeout", f"{where} accepted the request and did not answer in time") from None
        finally:
            self._deadline = None

    async def _pass_answer(
        self, origin: OriginStream, head: RequestHead, answer: ResponseHead, rest: bytes, watch: ClientWatch
    ) -> bool:
        try:
            framing = response_framing(answer, head.method)
        except HttpSyntaxError as error:
            raise _bad_answer(error) from error
        body = BodyReader(framing)
        chunked = framing.kind is Kind.CHUNKED and head.minor == 1
        delimited = chunked or framing.kind in (Kind.NONE, Kind.LENGTH)
        keep_client = delimited and not wants_close(head)
        headers = _to_client(answer, framing, chunked=chunked, close=not keep_client)
        piece = render_response(answer.status, answer.reason, headers)
        self._begun = True
        self._client.commit()
        content = body.receive(rest) if rest and not body.done else b""
        while True:
            if content:
                piece += chunk(content) if chunked else content
            if chunked and body.done:
                piece += last_chunk(body.trailers)
            if piece:
                await self._client.send(piece)
                watch.progress()
            if body.done:
                break
            data = await origin.receive()
            if not data:
                if not body.end():
                    raise ConnectionResetError("the origin ended in the middle of an answer")
                break
            piece = b""
            content = body.receive(data)
        leftover = body.rest if framing.has_body else rest
        if self._upload_complete and delimited and not leftover and _origin_stays(answer):
            self._origins.keep(origin)
        if keep_client and self._upload_complete:
            return True
        watch.pause()
        await self._client.linger(self._limits.linger_s)
        return False

    async def _switch(self, origin: OriginStream, answer: ResponseHead, rest: bytes) -> bool:
        """101: from here on the two ends speak something else."""
        headers = _to_client(answer)
        headers += [(b"Connection", b"Upgrade")]
        headers += [(b"Upgrade", value) for value in values(answer.headers, b"upgrade")]
        self._begun = True
        first = self._client.without_sent(render_response(answer.status, answer.reason, headers))
        first += rest + origin.take_pending()
        await self._tunnels.run(self._client, origin.connection, first, origin=origin)
        return False


def upgrade_of(headers: Headers) -> list[bytes]:
    """The protocols that a request offers to switch to: the Upgrade values, when Connection names Upgrade as well."""
    return values(headers, b"upgrade") if b"upgrade" in tokens(headers, b"connection") else []


def wants_close(head: RequestHead) -> bool:
    """Whether the client connection ends with this request."""
    return head.minor == 0 or b"close" in tokens(head.headers, b"connection") + tokens(
        head.headers, b"proxy-connection"
    )


def _origin_stays(answer: ResponseHead) -> bool:
    both = values(answer.headers, b"transfer-encoding") and values(answer.headers, b"content-length")
    return answer.minor == 1 and not both and b"close" not in tokens(answer.headers, b"connection")


def _render(connection: Connection, head: RequestHead, framing: Framing, target: Target) -> bytes:
    """The head as it goes on: to the origin, or with the whole URL to a parent proxy."""
    headers = _to_origin(head, framing, target)
    if not connection.forward or connection.parent is None:
        return render_request(head.method, target.path, headers)
    login = proxy_authorization(connection.parent)
    url = b"http://" + host_header(target) + (b"" if target.path == b"*" else target.path)
    return render_request(head.method, url, [*headers, *([login] if login else [])])


def _check_login(connection: Connection, answer: ResponseHead) -> None:
    """Raises DialError when a parent proxy asks for a password."""
    if answer.status == 407 and connection.forward and connection.parent is not None:
        raise login_refused(connection.parent)


def _to_origin(head: RequestHead, framing: Framing, target: Target) -> list[tuple[bytes, bytes]]:
    """The request's headers as they go on: hop-by-hop ones removed (credentials for a proxy among them), Host and the
    framing written anew."""
    drop = [b"host", b"content-length"] + ([b"expect"] if head.minor == 0 else [])
    headers = [(b"Host", host_header(target)), *end_to_end(head.headers, drop=drop)]
    if framing.kind is Kind.LENGTH:
        headers.append((b"Content-Length", b"%d" % framing.length))
    elif framing.kind is Kind.CHUNKED:
        headers.append((b"Transfer-Encoding", b"chunked"))
    connection = []
    if upgrades := upgrade_of(head.headers):
        connection.append(b"Upgrade")
        headers += [(b"Upgrade", value) for value in upgrades]
    if b"trailers" in tokens(head.headers, b"te"):
        connection.append(b"TE")
        headers.append((b"TE", b"trailers"))
    if connection:
        headers.append((b"Connection", b", ".join(connection)))
    return headers


_OURS = (b"x-sandboxd-decision", b"x-sandboxd-error")
"""An origin must not be able to speak in our name."""


def _to_client(
    answer: ResponseHead, framing: Framing = NO_BODY, *, chunked: bool = False, close: bool = False
) -> list[tuple[bytes, bytes]]:
    """The answer's headers as they go on. To HEAD and with 304 the length stays, as it tells about the content that a
    GET would give."""
    headers = end_to_end(answer.headers, drop=(*_OURS, b"content-length"))
    if framing.kind is Kind.LENGTH:
        headers.append((b"Content-Length", b"%d" % framing.length))
    elif chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
    elif framing.kind is Kind.NONE and answer.status >= 200 and answer.status != 204:
        headers += [(b"Content-Length", length) for length in tokens(answer.headers, b"content-length")[:1]]
    if close:
        headers.append((b"Connection", b"close"))
    return headers


def _parse_answer(reader: ResponseReader, data: bytes) -> ResponseHead | None:
    try:
        return reader.receive_response(data)
    except HttpSyntaxError as error:
        raise _bad_answer(error) from error


def _bad_answer(error: HttpSyntaxError) -> DialError:
    return DialError("bad_answer", f"the answer of the server is not valid HTTP/1.1: {error.message}")


def _lost(origin: OriginStream, begun: bool = False) -> Exception:
    if not origin.fresh and not begun:
        return _StaleOrigin()
    where = origin.connection.host.authority(origin.connection.port)
    return DialError("connection_lost", f"{where} closed the connection without a complete answer")
