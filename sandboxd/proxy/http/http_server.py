"""The HTTP proxy's client side: request heads, CONNECT, refusals.

`http_target.py` parses targets, `refusal_responses.py` renders refusals, `http_exchange.py` exchanges a plain request
with its origin. `http1.py` and `message_body.py` parse the bytes."""

from __future__ import annotations

import asyncio

from sandboxd.policy.decision import Decision
from sandboxd.policy.hosts.host_patterns import HostSyntaxError, quote, without_user
from sandboxd.policy.hosts.request_rules import HttpRequest
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.fair_share import CONNECTION
from sandboxd.proxy.http.credentials import Check, is_authorized
from sandboxd.proxy.http.http1 import BEGINNING, HttpSyntaxError, RequestHead, RequestReader
from sandboxd.proxy.http.http_exchange import Exchange
from sandboxd.proxy.http.http_heads import upgrade_of, wants_close
from sandboxd.proxy.http.http_origins import Origins, OriginStream, Tunnel
from sandboxd.proxy.http.http_target import Target, authority_of, parse_target, parse_tunnelled_target
from sandboxd.proxy.http.message_body import NO_BODY, BodyKind, Framing, request_framing
from sandboxd.proxy.http.refusal_responses import denied_response, error_response, password_response
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound, Refused
from sandboxd.proxy.streams.stream import HEAD_READ_SIZE, Stream

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def serve_http(client: Stream, outbound: Outbound, limits: ProxyLimits, check: Check | None = None) -> None:
    """Serve one client connection until it ends, and close it.

    Raises only cancellation and internal errors. With `check` a correct user name and password are required."""
    await _run(_HttpConnection(client, outbound, limits, check))


async def serve_requests(
    client: Stream, outbound: Outbound, limits: ProxyLimits, tunnel: Tunnel, origin: OriginStream | None = None
) -> None:
    """Serve the requests inside a tunnel until it ends, and close both sides. `origin` is as in `Origins`."""
    await _run(_HttpConnection(client, outbound, limits, None, tunnel, origin))


async def _run(connection: _HttpConnection) -> None:
    client = connection.client
    try:
        await connection.run()
    except OSError:
        client.reset()
    except BaseException:
        client.reset()
        raise
    finally:
        connection.close()


class _HttpConnection:
    def __init__(
        self,
        client: Stream,
        outbound: Outbound,
        limits: ProxyLimits,
        check: Check | None,
        tunnel: Tunnel | None = None,
        origin: OriginStream | None = None,
    ) -> None:
        self.client = self._client = client
        self._outbound = outbound
        self._limits = limits
        self._check = check
        self._tunnel = tunnel
        self._origins = Origins(client, outbound, limits, tunnel, origin)

    def close(self) -> None:
        self._origins.close()
        self._client.close()

    async def run(self) -> None:
        limit = self._limits.head_s
        while True:
            reader, head = RequestReader(), None
            self._client.begin()
            try:
                head = await self._read_head(reader, limit)
            except HttpSyntaxError as error:
                refusal = error_response(error, error.status)
            else:
                refusal = b""
            self._client.share.spend(reader.take_cost())
            del reader  # frees its buffer during the answer
            if refusal:
                await self._answer_and_end(refusal)
                return
            if head is None or not await self._serve(head):
                return
            limit = self._limits.idle_s

    async def _read_head(self, reader: RequestReader, first_byte_s: float) -> RequestHead | None:
        """Return the next request, None at the end. Raises HttpSyntaxError."""
        try:
            async with asyncio.timeout(first_byte_s) as deadline:
                began = False
                while True:
                    data = await self._client.receive(HEAD_READ_SIZE)
                    if not data:
                        return None
                    if self._client.share.held > self._limits.held_bytes:
                        raise HttpSyntaxError(
                            "incomplete heads of the command's requests are too large", status=503, slug="too_busy"
                        )
                    head = reader.receive_request(data)
                    self._client.share.spend(reader.take_cost())
                    if head is not None:
                        self._client.unread(reader.rest)
                        return head
                    if not began and first_byte_s != self._limits.head_s:
                        began = True
                        deadline.reschedule(asyncio.get_running_loop().time() + self._limits.head_s)
        except TimeoutError:
            if reader.is_empty:
                return None
            raise HttpSyntaxError("request head did not arrive in time", status=408, slug="head_timeout") from None

    async def _serve(self, head: RequestHead) -> bool:
        """Serve one request. False ends the connection."""
        self._client.share.spend(CONNECTION + len(head.headers))
        if self._check is not None and not is_authorized(head.headers, self._check):
            await self._answer_and_end(password_response(with_body=head.method != "HEAD"))
            return False
        try:
            framing = request_framing(head)
            target = self._target_of(head)
        except HostSyntaxError as error:
            authority = authority_of(head)
            decision = self._outbound.refuse_invalid(head.method, authority, error)
            return await self._refuse(head, NO_BODY, quote(without_user(authority))[1:-1], decision, last=True)
        except HttpSyntaxError as error:
            await self._answer_and_end(error_response(error, error.status, with_body=head.method != "HEAD"))
            return False
        if head.method == "CONNECT":
            await self._connect(head, framing, target)
            return False
        names = [name for name, _ in head.headers]
        request = HttpRequest.of(head.method, target.path, names, upgrade_of(head.headers))
        known = b"" if self._client.is_secure else BEGINNING
        try:
            await self._outbound.admit_request(
                self._client, self._limits, target.host, target.port, request, known=known
            )
            injection = await self._outbound.injection(
                target.host, target.port, request, secure=self._tunnel is not None and self._tunnel.secure
            )
            exchange = Exchange(self._client, self._origins, self._outbound.tunnels, self._limits, injection)
            return await exchange.run(head, framing, target)
        except Refused as refused:
            return await self._refuse(head, framing, target.host.authority(target.port), refused.decision)
        except DialError as error:
            await self._answer_and_end(error_response(error, with_body=head.method != "HEAD"))
        except HttpSyntaxError as error:
            await self._answer_and_end(error_response(error, error.status, with_body=head.method != "HEAD"))
        return False

    def _target_of(self, head: RequestHead) -> Target:
        tunnel = self._tunnel
        if tunnel is None:
            return parse_target(head)
        return parse_tunnelled_target(head, tunnel.host, tunnel.port, secure=tunnel.secure)

    async def _connect(self, head: RequestHead, framing: Framing, target: Target) -> None:
        if framing.has_body or framing.kind is BodyKind.CHUNKED:
            # ambiguous: its bytes are a body, or the beginning of the tunnel
            await self._answer_and_end(error_response(HttpSyntaxError("CONNECT with a body"), 400))
            return
        try:
            connection = await self._outbound.open_for(
                self._client, self._limits, "CONNECT", target.host, target.port, known=BEGINNING
            )
        except Refused as refused:
            await self._refuse(head, framing, target.host.authority(target.port), refused.decision, last=True)
            return
        except DialError as error:
            await self._answer_and_end(error_response(error))
            return
        first = self._client.without_sent(ESTABLISHED)
        await self._outbound.join(self._client, connection, first)

    async def _refuse(
        self, head: RequestHead, framing: Framing, authority: str, decision: Decision, *, last: bool = False
    ) -> bool:
        """Answer with a denial.

        CONNECT and a request with a body end the connection, so that the body is never parsed as a request."""
        keep = not last and head.minor == 1 and not framing.has_body and not wants_close(head)
        answer = denied_response(authority, decision, with_body=head.method != "HEAD", close=not keep)
        if keep:
            self._client.commit()
            await self._client.send(answer)
        else:
            await self._answer_and_end(answer)
        return keep

    async def _answer_and_end(self, answer: bytes) -> None:
        self._client.commit()
        await self._client.send(answer)
        await self._client.linger(self._limits.linger_s)
