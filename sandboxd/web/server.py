"""The HTTP side: who may connect, what every request must show, and the files of the page.

| A request | is refused with |
| --- | --- |
| while no daemon keeps the port closed for commands | 503 |
| for another host name than those of the page (DNS rebinding) | 421 |
| from another origin, by `Origin` or `Sec-Fetch-Site` (CSRF); a POST without an origin | 403 |
| for another path or by another method | 404, 405 |

Files are read at the start and found by their exact names. Nothing is logged, so no secret is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from aiohttp import web

from sandboxd.web.access import Door, Entry, EntryRefused, PageSession
from sandboxd.web.channel import LONGEST, PageChannel
from sandboxd.web.hub import Hub
from sandboxd_client import SandboxdError
from sandboxd_client.records import dataclass, field

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MOST_CONNECTIONS: Final = 256
"""Connections of which it is not known who they are; the oldest gives way."""
UNKNOWN_S: Final = 10.0
"""Seconds that one of these may last."""
MOST_CHANNELS: Final = 64
MOST_BODY: Final = 4096
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {channel}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
    "Server": "sandboxd",
}
LOOPBACK: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Site:
    """The address of the page, and all authorities by which browsers may name it."""

    address: str
    port: int
    authorities: frozenset[str]
    is_secure: bool

    @classmethod
    def of(cls, address: str, port: int, *, is_secure: bool, more: tuple[str, ...] = ()) -> Site:
        shown = f"[{address}]" if ":" in address else address
        names = {shown, "localhost"} if address in LOOPBACK else {shown}
        usual = {name for name in names if port == (443 if is_secure else 80)}
        return cls(address, port, frozenset({f"{name}:{port}" for name in names} | usual | set(more)), is_secure)

    @property
    def scheme(self) -> str:
        return "https" if self.is_secure else "http"

    @property
    def url(self) -> str:
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.scheme}://{shown}:{self.port}/"

    @property
    def cookie(self) -> str:
        return "__Host-sandboxd" if self.is_secure else f"sandboxd-{self.port}"


@dataclass(slots=True)
class Page:
    """The state that handlers share."""

    hub: Hub
    door: Door
    site: Site
    files: dict[str, tuple[bytes, str]]
    channels: dict[PageChannel, PageSession] = field(default_factory=dict)
    unknown: OrderedDict[asyncio.BaseTransport, None] = field(default_factory=OrderedDict)
    """Connections without a session, the oldest first."""

    def end(self, ended: tuple[PageSession, ...]) -> None:
        """Cut the channels of sessions that were revoked."""
        for channel, session in tuple(self.channels.items()):
            if session in ended:
                channel.cut()


PAGE: Final = web.AppKey("page", Page)


def application(hub: Hub, door: Door, site: Site) -> web.Application:
    """Return the page as an application of aiohttp."""
    app = web.Application(middlewares=[_guarded], client_max_size=MOST_BODY)
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
    found: dict[str, tuple[bytes, str]] = {}
    for path, (name, kind) in FILES.items():
        with open(os.path.join(place, name), "rb") as file:
            found[path] = file.read(), kind
        app.router.add_get(path, _file)
    app[PAGE] = Page(hub, door, site, found)
    app.router.add_post("/login", _login)
    app.router.add_post("/pair", _pair)
    app.router.add_post("/paired", _paired)
    app.router.add_get("/rpc", _channel, allow_head=False)
    app.router.add_get("/metrics", _metrics, allow_head=False)
    return app


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _check(request)
        response = await handler(request)
    except web.HTTPException as refusal:
        response = web.Response(status=refusal.status, text=f"{refusal.text or refusal.reason}\n")
        response.headers.update(
            {name: refusal.headers[name] for name in ("Allow", "Upgrade") if name in refusal.headers}
        )
    if not response.prepared:
        response.headers.update(headers(request.app[PAGE].site, request.host))
    return response


def headers(site: Site, host: str) -> dict[str, str]:
    """Return the headers of every response."""
    channel = f"{'wss' if site.is_secure else 'ws'}://{host}" if host in site.authorities else ""
    return {**HEADERS, "Content-Security-Policy": POLICY.format(channel=channel)}


def _check(request: web.Request) -> None:
    """Refuse a request that does not come from the page itself, or from a program. Raises HTTPException."""
    site = request.app[PAGE].site
    if not request.app[PAGE].hub.serving:
        raise web.HTTPServiceUnavailable(text="the daemon of sandboxd does not answer")
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or hosts[0].lower() not in site.authorities:
        raise web.HTTPMisdirectedRequest(text="this page has another name: use the address that sandboxd web printed")
    origins = request.headers.getall("Origin", [])
    if origins and origins != [f"{site.scheme}://{hosts[0].lower()}"]:
        raise web.HTTPForbidden(text="a page of another origin may not use this one")
    if not origins and request.method == "POST":
        raise web.HTTPForbidden(text="a POST needs the origin of this page")
    opens_page = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"  # by a link, from anywhere
    if not opens_page and request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        raise web.HTTPForbidden(text="a page of another site may not use this one")


async def _file(request: web.Request) -> web.Response:
    body, kind = request.app[PAGE].files[request.match_info.route.resource.canonical]  # type: ignore[union-attr]
    return web.Response(body=body, content_type=kind, charset="utf-8")


async def _login(request: web.Request) -> web.Response:
    """Exchange the token of a link for a session. Other machines pair instead."""
    if request.remote not in LOOPBACK:
        raise web.HTTPForbidden(text="a link opens the page on its own machine only: pair this device")
    token, name = await _texts(request, "token", "name")
    with _refusals():
        return _entered(request, request.app[PAGE].door.redeem(token, name))


async def _pair(request: web.Request) -> web.Response:
    (name,) = await _texts(request, "name")
    with _refusals():
        pairing, secret = request.app[PAGE].door.ask(name, request.remote or "")
    return web.json_response({"code": pairing.code, "secret": secret})


async def _paired(request: web.Request) -> web.Response:
    (secret,) = await _texts(request, "secret")
    with _refusals():
        entry = request.app[PAGE].door.collect(secret)
    return web.json_response({"waiting": True}) if entry is None else _entered(request, entry)


def _entered(request: web.Request, entry: Entry) -> web.Response:
    site, session = request.app[PAGE].site, entry.session
    response = web.json_response({"key": entry.key, "role": session.role.word, "session": session.id})
    response.set_cookie(
        site.cookie,
        entry.secret,
        max_age=int(session.expires - session.created),
        path="/",
        httponly=True,
        samesite="Strict",
        secure=site.is_secure,
    )
    return response


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except EntryRefused as refusal:
        kind = web.HTTPTooManyRequests if str(refusal).startswith("too many") else web.HTTPForbidden
        raise kind(text=str(refusal)) from None


async def _texts(request: web.Request, *names: str) -> list[str]:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send JSON")
    try:
        body = json.loads(await request.text())
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="this is not JSON") from None
    found = [body.get(name) for name in names] if isinstance(body, dict) else [None]
    if not all(isinstance(one, str) and len(one) <= 200 for one in found):
        raise web.HTTPBadRequest(text=f"send {' and '.join(names)} as short texts")
    return [str(one) for one in found]


def _of_token(request: web.Request) -> PageSession | None:
    """Return the session of a program, by the token in its header."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return request.app[PAGE].door.session_of(token) if scheme.lower() == "bearer" and token else None


async def _metrics(request: web.Request) -> web.Response:
    """Return the metrics of the daemon for a collector that has a token."""
    if _of_token(request) is None:
        raise web.HTTPUnauthorized(text="send a token: sandboxd web token NAME")
    try:
        found = await request.app[PAGE].hub.call("metrics", {})
    except SandboxdError as error:
        raise web.HTTPServiceUnavailable(text=error.message) from None
    return web.Response(
        body=found["text"].encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )


async def _channel(request: web.Request) -> web.StreamResponse:
    """Open a WebSocket: of a program by its token, of the page by its cookie and the key in its first message."""
    page = request.app[PAGE]
    door, site = page.door, page.site
    session, cookie = _of_token(request), request.cookies.get(site.cookie, "")
    opens = request.headers.get("Upgrade", "").lower() == "websocket"  # else the page looks whether it is let in
    if session is None and not (door.has_cookie(cookie) and (request.headers.get("Origin") or not opens)):
        raise web.HTTPUnauthorized(text="log in with the link that sandboxd web prints, or send a token")
    if len(page.channels) >= MOST_CHANNELS:
        raise web.HTTPTooManyRequests(text="too many channels are open")
    socket = web.WebSocketResponse(max_msg_size=LONGEST, heartbeat=30.0, compress=False)
    socket.headers.update(headers(site, request.host))
    if not socket.can_prepare(request):
        raise web.HTTPUpgradeRequired(text="this is the address of a WebSocket", headers={"Upgrade": "websocket"})
    await socket.prepare(request)
    if session is None:
        session = await _keyed(socket, door, cookie)
    if session is None:
        await socket.close(code=4401, message=b"log in again")
        return socket
    assert request.transport is not None
    page.unknown.pop(request.transport, None)
    channel = PageChannel(page.hub, door, session, socket, request.transport)
    page.channels[channel] = session
    try:
        await channel.serve()
    finally:
        page.channels.pop(channel, None)
        await socket.close()
    return socket


async def _keyed(socket: web.WebSocketResponse, door: Door, cookie: str) -> PageSession | None:
    """Return the session of a cookie and the key in the first message."""
    try:
        message = await socket.receive_json(timeout=UNKNOWN_S)
        key = message["params"]["key"]
        return door.session_of(cookie, key) if isinstance(key, str) and key else None
    except (TimeoutError, TypeError, ValueError, KeyError):
        return None


@contextlib.asynccontextmanager
async def serving(
    app: web.Application, listener: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve on a bound socket. Unknown connections have little time, and the oldest gives way to new ones."""
    page = app[PAGE]
    unknown = page.unknown
    silent = logging.Logger("web", logging.CRITICAL + 1)  # what is logged of a bad request may hold a secret
    runner = web.AppRunner(app, access_log=None, logger=silent, handle_signals=False, keepalive_timeout=UNKNOWN_S)
    await runner.setup()
    loop = asyncio.get_running_loop()
    joining: set[asyncio.Task[None]] = set()

    def end(transport: asyncio.BaseTransport) -> None:
        if unknown.pop(transport, transport) is None and isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    async def join(accepted: socket.socket) -> None:
        assert runner.server is not None
        try:
            transport, _ = await loop.connect_accepted_socket(
                runner.server, accepted, ssl=tls, ssl_handshake_timeout=UNKNOWN_S / 2 if tls else None
            )
        except (OSError, ssl.SSLError):
            accepted.close()
            return
        unknown[transport] = None
        loop.call_later(UNKNOWN_S, end, transport)
        while len(unknown) > MOST_CONNECTIONS:
            end(next(iter(unknown)))

    async def accept() -> None:
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:  # out of descriptors: those of unknown connections come back
                await asyncio.sleep(0.1)
                continue
            while len(joining) >= MOST_CONNECTIONS:
                next(iter(joining)).cancel()
                await asyncio.sleep(0)
            accepted.setblocking(False)
            task = loop.create_task(join(accepted), name="connection")
            joining.add(task)
            task.add_done_callback(joining.discard)

    listener.listen(128)
    accepting = loop.create_task(accept(), name="accept")
    try:
        yield
    finally:
        accepting.cancel()
        for task in joining:
            task.cancel()
        listener.close()
        for channel in tuple(page.channels):
            channel.cut()
        await runner.cleanup()


def bound(address: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen yet. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
    except BaseException:
        listener.close()
        raise
    return listener
