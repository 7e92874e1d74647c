"""The page beside a daemon with a back end that starts nothing, all on the event loop of the test."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from sandboxd.web.access import Door, Role
from sandboxd.web.hub import Hub
from sandboxd.web.server import PAGE, Page, Site, application, bound, serving
from support.daemon import RunningDaemon
from support.rpc import Log


@dataclass
class Channel:
    """A WebSocket of the page, spoken to as a program does."""

    socket: aiohttp.ClientWebSocketResponse
    number: int = 0

    async def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        self.number += 1
        request = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}}
        await self.socket.send_str(json.dumps(request))
        while (message := await self.told()).get("id") != self.number:
            pass
        return message

    async def result(self, method: str, params: dict[str, Any] | None = None) -> Any:
        message = await self.call(method, params)
        assert "error" not in message, message
        return message["result"]

    async def refused(self, method: str, params: dict[str, Any] | None = None) -> str:
        return str((await self.call(method, params))["error"]["data"]["slug"])

    async def told(self) -> Any:
        message = await self.socket.receive(timeout=20)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return json.loads(message.data)

    async def screen(self, view: str, **wanted: Any) -> Any:
        """The rows of a view, as they are told at first."""
        await self.result("screen.show", {"view": view, **wanted})
        return await self.next_screen(view)

    async def next_screen(self, view: str) -> Any:
        while (message := await self.told()).get("method") != "screen" or message["params"]["view"] != view:
            pass
        return message["params"]["rows"]


@dataclass
class Opened:
    """The page, its parts, and clients for it."""

    daemon: RunningDaemon
    page: Page
    stack: AsyncExitStack

    @property
    def site(self) -> Site:
        return self.page.site

    @property
    def door(self) -> Door:
        return self.page.door

    @property
    def log(self) -> Log:
        return self.daemon.around.log

    @property
    def origin(self) -> dict[str, str]:
        return {"Origin": self.site.url.rstrip("/")}

    async def http(self, **more: Any) -> aiohttp.ClientSession:
        jar = aiohttp.CookieJar(unsafe=True)
        return await self.stack.enter_async_context(aiohttp.ClientSession(self.site.url, cookie_jar=jar, **more))

    async def browser(self, role: Role = Role.ADMINISTER) -> tuple[aiohttp.ClientSession, str]:
        """A browser that was let in, and its key."""
        http = await self.http()
        body = {"token": self.door.link(role), "name": "test"}
        async with http.post("/login", json=body, headers=self.origin) as answer:
            assert answer.status == 200, await answer.text()
            return http, (await answer.json())["key"]

    async def channel(self, role: Role = Role.ADMINISTER) -> Channel:
        """The channel of a browser."""
        http, key = await self.browser(role)
        socket = await self.stack.enter_async_context(http.ws_connect("/rpc", headers=self.origin))
        await socket.send_json({"jsonrpc": "2.0", "method": "hello", "params": {"key": key}})
        return Channel(socket)

    async def program(self, role: Role) -> Channel:
        """The channel of a program."""
        token = {"Authorization": f"Bearer {self.door.program('bot', role).secret}"}
        http = await self.http()
        return Channel(await self.stack.enter_async_context(http.ws_connect("/rpc", headers=token)))


@asynccontextmanager
async def opened_page(
    daemon: RunningDaemon, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        listener = bound(address, 0)
        port = listener.getsockname()[1]
        hub, door = Hub(str(daemon.around.socket)), Door()
        site = Site.of(address, port, is_secure=tls is not None)
        await stack.enter_async_context(hub.closing(port, site.url))
        app = application(hub, door, site)
        await stack.enter_async_context(serving(app, listener, tls))
        async with AsyncExitStack() as clients:
            yield Opened(daemon, app[PAGE], clients)
