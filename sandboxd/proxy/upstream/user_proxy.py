"""A sandbox listener served by a user proxy (`httpProxyPort`, `socksProxyPort`).

The bytes are relayed unchanged, and that proxy decides. When it is down the connection fails: the daemon's proxy does
not take over, since its rules may differ. Where other processes can reach the listener (macOS), a client sends the
command's password first, which is not forwarded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from typing import Final

from sandboxd.errors import HostError
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.parent_proxies import ParentProxy, Protocol
from sandboxd.proxy.dial import DialError, connect_socket
from sandboxd.proxy.http.credentials import Check, is_authorized
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestReader, render_request
from sandboxd.proxy.http.refusal_responses import error_response, password_response
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.socks.socks5 import NONE_ACCEPTABLE, Reply, Socks5Handshake, render_reply
from sandboxd.proxy.streams.relay import SocketRelay
from sandboxd.proxy.streams.stream import Stream
from sandboxd.proxy.upstream.parent_dialer import connect_by_socks

LOOPBACK: Final = IPv4Address("127.0.0.1")
UserPort = Callable[[], int | None]
"""The current port of the user proxy; None when the daemon's proxy serves."""
ServeUser = Callable[[Stream, int, ProxyLimits, Check | None], Awaitable[None]]


async def serve_user_http(client: Stream, port: int, limits: ProxyLimits, check: Check | None) -> None:
    """Serve one client connection until it ends, and close it."""
    try:
        first = b"" if check is None else await _authorized_request(client, limits, check)
        if first is None:
            return
        try:
            proxy = await _connect(port, limits)
        except OSError as error:
            await _say(client, limits, error_response(_unreachable(port, error)))
            return
        await SocketRelay(client.socket, proxy, share=client.share).run(to_right=first + client.take_pending())
    except OSError:
        client.reset()
    finally:
        client.close()


async def serve_user_socks(client: Stream, port: int, limits: ProxyLimits, check: Check | None) -> None:
    """Serve one client connection until it ends, and close it."""
    try:
        asked = None
        if check is not None:
            asked = await _authorized_target(client, limits, check)
            if asked is None:
                return
        try:
            proxy = await _connect(port, limits)
        except OSError:
            answer = bytes((5, NONE_ACCEPTABLE)) if asked is None else render_reply(Reply.GENERAL_FAILURE)
            await _say(client, limits, answer)
            return
        if asked is not None:
            await _pass_on(client, proxy, port, limits, asked)
            return
        await SocketRelay(client.socket, proxy, share=client.share).run(to_right=client.take_pending())
    except OSError:
        client.reset()
    finally:
        client.close()


async def _connect(port: int, limits: ProxyLimits) -> socket.socket:
    async with asyncio.timeout(limits.connect_s):  # TimeoutError is an OSError
        return await connect_socket(LOOPBACK, port)


async def _authorized_request(client: Stream, limits: ProxyLimits, check: Check) -> bytes | None:
    """Return the first request head without the password; None after a refusal.

    Later requests come over the same connection, so from the same client."""
    reader = RequestReader()
    head = None
    try:
        async with asyncio.timeout(limits.head_s):
            while head is None:
                data = await client.receive()
                if not data:
                    return None
                head = reader.receive_request(data)
    except HttpSyntaxError as error:
        await _say(client, limits, error_response(error, error.status))
        return None
    client.unread(reader.rest)
    if not is_authorized(head.headers, check):
        await _say(client, limits, password_response())
        return None
    kept = [(name, value) for name, value in head.headers if name.lower() != b"proxy-authorization"]
    return render_request(head.method, head.target, kept)


async def _authorized_target(client: Stream, limits: ProxyLimits, check: Check) -> tuple[Host, int] | None:
    handshake = Socks5Handshake(check)
    async with asyncio.timeout(limits.head_s):
        while True:
            data = await client.receive()
            if not data:
                return None
            step = handshake.receive(data)
            if step.send:
                await client.send(step.send)
            if step.request is not None:
                client.unread(handshake.rest)
                return step.request
            if step.ended:
                return None


async def _pass_on(
    client: Stream, proxy: socket.socket, port: int, limits: ProxyLimits, asked: tuple[Host, int]
) -> None:
    """Request the client's target from the user proxy, and join both."""
    server = ParentProxy(Protocol.SOCKS5H, Host.of_address(LOOPBACK), port, place="socksProxyPort")
    try:
        async with asyncio.timeout(limits.parent_s):
            await connect_by_socks(proxy, server, *asked)
    except (DialError, OSError):
        proxy.close()
        await _say(client, limits, render_reply(Reply.GENERAL_FAILURE))
        return
    await SocketRelay(client.socket, proxy, share=client.share).run(
        client.take_pending(), render_reply(Reply.SUCCEEDED)
    )


async def _say(client: Stream, limits: ProxyLimits, answer: bytes) -> None:
    await client.send(answer)
    await client.linger(limits.linger_s)


def _unreachable(port: int, error: OSError) -> HostError:
    return DialError(
        "own_proxy_unreachable",
        f"cannot reach the user proxy on port {port}: {error.strerror or 'no answer in time'}",
        hint="start that proxy, or remove sandbox.network.httpProxyPort",
    )
