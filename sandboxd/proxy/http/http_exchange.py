"""One plain HTTP request and its answer, streamed between a client and an origin.

No body is stored. Each piece is sent as soon as it arrives, and the next one is read once the kernel has taken it. So
server-sent events have no delay, and a slow reader slows its sender. Heads are rendered anew. When an answer cannot be
completed the client is reset, so that it never takes a part for the whole."""

from __future__ import annotations

import asyncio

from sandboxd.proxy.credentials.injector import NOTHING, Injection
from sandboxd.proxy.credentials.request_heads import Headers
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.fair_share import STEP
from sandboxd.proxy.http.http1 import (
    HttpSyntaxError,
    RequestHead,
    ResponseHead,
    ResponseReader,
    render_request,
    render_response,
    values,
)
from sandboxd.proxy.http.http_heads import logs_in, origin_stays, to_client, to_origin, upgrade_of, wants_close
from sandboxd.proxy.http.http_origins import SAFE_TO_REPEAT, Origins, OriginStream, fault_of_tls
from sandboxd.proxy.http.http_target import Target, host_header
from sandboxd.proxy.http.message_body import BodyKind, BodyReader, Framing, chunk, last_chunk, response_framing
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Refused
from sandboxd.proxy.streams.client_watch import ClientGone, ClientWatch
from sandboxd.proxy.streams.connection import OutboundConnection
from sandboxd.proxy.streams.stream import Stream
from sandboxd.proxy.streams.tunnel import Tunnels
from sandboxd.proxy.upstream.parent_dialer import login_refused, proxy_authorization


class _StaleOrigin(Exception):
    """A kept connection that was closed before any byte of the answer."""


class Exchange:
    """One request and its answer; call `run` once.

    Before the answer begins, errors are raised for the caller to answer. Later the client is reset."""

    def __init__(
        self, client: Stream, origins: Origins, tunnels: Tunnels, limits: ProxyLimits, injection: Injection = NOTHING
    ) -> None:
        self._client = client
        self._injection = injection
        self._origins = origins
        self._tunnels = tunnels
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._upload: asyncio.Task[bool] | None = None
        self._deadline: asyncio.Timeout | None = None
        self._begun = False

    async def run(self, head: RequestHead, framing: Framing, target: Target) -> bool:
        """Serve the request; return whether the client may send another.

        Raises Refused, DialError and HttpSyntaxError before the answer begins, OSError when the client is gone or must
        be reset."""
        origin = await self._origins.get(head, framing, target)
        try:
            try:
                return await self._run(origin, head, framing, target)
            except _StaleOrigin:
                self._origins.drop(origin)
                origin = await self._origins.open(head, target)
                return await self._run(origin, head, framing, target)
        except (DialError, HttpSyntaxError, Refused) as error:
            if self._begun:
                raise ConnectionResetError(error.message) from error
            raise
        finally:
            await self._stop_upload()
            self._origins.drop_unless_kept(origin)

    async def _run(self, origin: OriginStream, head: RequestHead, framing: Framing, target: Target) -> bool:
        if head.method not in SAFE_TO_REPEAT or framing.has_body:
            self._client.commit()
        origin.is_bound = origin.is_bound or logs_in(head.headers)
        try:
            await origin.send(_render(origin.connection, head, framing, target, self._injection))
        except OSError as error:
            raise _lost(origin, error=error) from error
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

    # request body

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
        """Send the request body; return False when the origin stopped reading.

        It may have answered already. Raises HttpSyntaxError, and OSError when the client fails."""
        body = BodyReader(framing)
        chunked = framing.kind is BodyKind.CHUNKED
        while not body.done:
            data = await self._client.receive()
            if not data:
                raise ConnectionResetError("the client closed the connection within a request body")
            piece = body.receive(data)
            self._client.unread(body.take_unread())
            self._client.share.spend(body.cost)
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

    # answer

    async def _read_answer(self, origin: OriginStream, head: RequestHead) -> tuple[ResponseHead, bytes]:
        """Return the head of the final answer, or 101, after forwarding interim ones."""
        reader = ResponseReader()
        begun = False
        held = interim = 0
        share = self._client.share
        uploading = self._upload is not None and not self._upload.done()
        try:
            async with asyncio.timeout(None if uploading else self._limits.response_s) as self._deadline:
                while True:
                    try:
                        data = await origin.receive()
                    except OSError as error:
                        raise _lost(origin, begun, error) from error
                    if not data:
                        raise _lost(origin, begun)
                    begun = True
                    share.held += len(data)
                    held += len(data)
                    if share.held > self._limits.held_bytes:
                        raise _bad_answer("incomplete heads of the command's answers are too large")
                    answer = _parse_answer(reader, data)
                    share.spend(reader.take_cost())
                    while answer is not None:
                        if answer.status >= 200:
                            _check_login(origin.connection, answer)
                            return answer, reader.rest
                        if answer.status == 101:
                            if not upgrade_of(head.headers) or not self._upload_complete:
                                raise DialError("bad_answer", f"{origin.connection.host} switched protocols unasked")
                            return answer, reader.rest
                        interim += 1
                        if interim > self._limits.interim_answers:
                            raise _bad_answer(f"more than {self._limits.interim_answers} interim answers")
                        share.spend(STEP, len(reader.rest))
                        if head.minor == 1:
                            self._client.commit()
                            await self._client.send(self._rendered(answer, to_client(answer)))
                        rest, reader = reader.rest, ResponseReader()
                        answer = _parse_answer(reader, rest)
        except TimeoutError:
            where = origin.connection.host.authority(origin.connection.port)
            raise DialError("response_timeout", f"{where} accepted the request but did not answer in time") from None
        finally:
            self._deadline = None
            share.held -= held

    async def _pass_answer(
        self, origin: OriginStream, head: RequestHead, answer: ResponseHead, rest: bytes, watch: ClientWatch
    ) -> bool:
        try:
            framing = response_framing(answer, head.method)
        except HttpSyntaxError as error:
            raise _bad_answer(error.message) from error
        body = BodyReader(framing)
        chunked = framing.kind is BodyKind.CHUNKED and head.minor == 1
        delimited = chunked or framing.kind in (BodyKind.NONE, BodyKind.LENGTH)
        keep_client = delimited and not wants_close(head)
        headers = to_client(answer, framing, chunked=chunked, close=not keep_client)
        piece = self._rendered(answer, headers)
        self._begun = True
        self._client.commit()
        content = body.receive(rest) if rest and not body.done else b""
        while True:
            origin.unread(body.take_unread())
            self._client.share.spend(body.cost)
            if content:
                piece += chunk(content) if chunked else content
            if chunked and body.done:
                piece += last_chunk(tuple(self._injection.trailers(body.trailers)))
            if piece:
                await self._client.send(piece)
                watch.progress()
            if body.done:
                break
            data = await origin.receive()
            if not data:
                if not body.end():
                    raise ConnectionResetError("the origin closed the connection within an answer")
                break
            piece = b""
            content = body.receive(data)
        leftover = body.rest if framing.has_body else rest
        if self._upload_complete and delimited and not leftover and origin_stays(answer):
            self._origins.keep(origin)
        if keep_client and self._upload_complete:
            return True
        watch.pause()
        await self._client.linger(self._limits.linger_s)
        return False

    def _rendered(self, answer: ResponseHead, headers: Headers) -> bytes:
        """Render the head of an answer without values of credentials."""
        injection = self._injection
        return render_response(answer.status, injection.text(answer.reason), injection.answer(answer.status, headers))

    async def _switch(self, origin: OriginStream, answer: ResponseHead, rest: bytes) -> bool:
        """Forward a 101, and join the two sides, which then use another protocol."""
        headers = to_client(answer)
        headers += [(b"Connection", b"Upgrade")]
        headers += [(b"Upgrade", value) for value in values(answer.headers, b"upgrade")]
        self._begun = True
        first = self._client.without_sent(self._rendered(answer, headers))
        first += rest + origin.take_pending()
        await self._tunnels.run(self._client, origin.connection, first, origin=origin)
        return False


def _render(
    connection: OutboundConnection, head: RequestHead, framing: Framing, target: Target, injection: Injection
) -> bytes:
    """Render the head for the origin, or with the whole URL for a parent proxy."""
    path, headers = injection.request(target.path, to_origin(head, framing, target))
    if not connection.forward or connection.parent is None:
        return render_request(head.method, path, headers)
    login = proxy_authorization(connection.parent)
    url = b"http://" + host_header(target) + (b"" if target.path == b"*" else target.path)
    return render_request(head.method, url, [*headers, *([login] if login else [])])


def _check_login(connection: OutboundConnection, answer: ResponseHead) -> None:
    """Check for a parent proxy that requires a password. Raises DialError."""
    if answer.status == 407 and connection.forward and connection.parent is not None:
        raise login_refused(connection.parent)


def _parse_answer(reader: ResponseReader, data: bytes) -> ResponseHead | None:
    try:
        return reader.receive_response(data)
    except HttpSyntaxError as error:
        raise _bad_answer(error.message) from error


def _bad_answer(why: str) -> DialError:
    return DialError("bad_answer", f"the answer of the server is not valid HTTP/1.1: {why}")


def _lost(origin: OriginStream, begun: bool = False, error: OSError | None = None) -> Exception:
    if not begun and (fault := fault_of_tls(origin, error)) is not None:
        return fault
    if not origin.fresh and not begun:
        return _StaleOrigin()
    where = origin.connection.host.authority(origin.connection.port)
    return DialError("connection_lost", f"{where} closed the connection without a complete answer")
