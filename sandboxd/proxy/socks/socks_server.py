"""The SOCKS5 proxy's client side. `socks5.py` parses the bytes."""

from __future__ import annotations

import asyncio
from typing import Final

from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.fair_share import CONNECTION
from sandboxd.proxy.http.credentials import Check
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound, Refused
from sandboxd.proxy.socks.socks5 import Reply, Socks5Handshake, render_reply
from sandboxd.proxy.streams.stream import HEAD_READ_SIZE, Stream

VERSION: Final = b"\x05"
"""The beginning of every reply."""
REPLY_OF_SLUG: Final = {
    "dns_failed": Reply.HOST_UNREACHABLE,
    "dns_timeout": Reply.HOST_UNREACHABLE,
    "unreachable": Reply.NETWORK_UNREACHABLE,
    "connection_refused": Reply.CONNECTION_REFUSED,
    "connect_timeout": Reply.TTL_EXPIRED,
}


async def serve_socks(client: Stream, outbound: Outbound, limits: ProxyLimits, check: Check | None = None) -> None:
    """Serve one client connection until it ends, and close it.

    Raises only cancellation and internal errors. With `check` a correct user name and password are required."""
    client.begin()
    try:
        request = await _shake_hands(client, outbound, limits, check)
        if request is not None:
            await _serve(client, outbound, limits, *request)
    except OSError:
        client.reset()
    except BaseException:
        client.reset()
        raise
    finally:
        client.close()


async def _shake_hands(
    client: Stream, outbound: Outbound, limits: ProxyLimits, check: Check | None
) -> tuple[Host, int] | None:
    """Return the requested target, None after a refusal or without a request in time."""
    handshake = Socks5Handshake(check)
    try:
        async with asyncio.timeout(limits.head_s):
            while True:
                data = await client.receive(HEAD_READ_SIZE)
                if not data:
                    return None
                step = handshake.receive(data)
                if step.error is not None:
                    outbound.refuse_invalid("CONNECT", step.name, step.error)
                client.share.spend(CONNECTION if step.request is not None else len(data))
                if step.ended:
                    client.commit()
                if step.send:
                    await client.send(step.send)
                if step.ended:
                    break
                if step.request is not None:
                    client.unread(handshake.rest)
                    return step.request
    except TimeoutError:
        return None
    await client.linger(limits.linger_s)
    return None


async def _serve(client: Stream, outbound: Outbound, limits: ProxyLimits, host: Host, port: int) -> None:
    try:
        connection = await outbound.open_for(client, limits, "CONNECT", host, port, known=VERSION)
    except Refused:
        await _fail(client, limits, Reply.NOT_ALLOWED)
        return
    except DialError as error:
        await _fail(client, limits, REPLY_OF_SLUG.get(error.slug, Reply.GENERAL_FAILURE))
        return
    first = client.without_sent(render_reply(Reply.SUCCEEDED))
    await outbound.join(client, connection, first)


async def _fail(client: Stream, limits: ProxyLimits, reply: Reply) -> None:
    client.commit()
    await client.send(render_reply(reply))
    await client.linger(limits.linger_s)
