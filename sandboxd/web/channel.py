"""One WebSocket: JSON-RPC 2.0, as on the daemon's socket, with methods for the screens of the page.

Calls are those of `access.METHODS` that the role permits. The screens: `screen.show {view, …}` chooses what the
notification `screen` brings anew with each change, `screen.answer`, `screen.explain`. A channel that does not read gets
one newest state of its screen when it reads again; too many notifications that it asked for end it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any, Final

from aiohttp import WSCloseCode, WSMsgType, web

from sandboxd.screens.blocked import Filter
from sandboxd.web.access import Door, PageSession, Role, why_refused
from sandboxd.web.hub import Hub
from sandboxd_client import RpcError, SandboxdError
from sandboxd_client.wire import codes
from sandboxd_client.wire.framing import JsonTextError
from sandboxd_client.wire.jsontext import dumps, loads
from sandboxd_client.wire.params import ParamsError

LONGEST: Final = 64 << 10
"""Bytes of a message."""
CALLS: Final = 8
"""Calls in progress; later messages are read when one of them is answered."""
BURST, PER_S = 60.0, 20.0
"""Calls that are answered at once, and per second after that."""
MOST_WAITING: Final = 1000
"""Notifications that wait for a program that does not read."""
PAUSE_S: Final = 0.03
SHARE: Final = 4
"""Pauses between states of a screen: at least this, and as a multiple of the time that one takes."""
NOW_S: Final = 2.0
"""The interval of the view Now, whose processor times and connections nothing tells of."""
MOST_UNFOLDED: Final = 20
FEEDS: Final = {
    "permission.subscribe": "sandbox_permission_",
    "violation.subscribe": "sandbox_violation",
}
"""Method that subscribes, and how the names of its notifications begin."""


class PageChannel:
    """A WebSocket of a session, from its admission to its end."""

    def __init__(
        self,
        hub: Hub,
        door: Door,
        session: PageSession,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport,
    ) -> None:
        self.session = session
        self._hub, self._door, self._socket, self._transport = hub, door, socket, transport
        self._feeds: set[str] = set()
        self._waiting: deque[str] = deque()
        self._view = ""
        self._wanted = Filter()
        self._unfolded: frozenset[tuple[str, str]] = frozenset()
        self._shown = ""
        self._is_dirty = False
        self._wake = asyncio.Event()
        self._calls = asyncio.Semaphore(CALLS)
        self._tokens, self._counted = BURST, time.monotonic()

    @property
    def role(self) -> Role:
        return self.session.role

    # what the hub tells

    def changed(self, view: str) -> None:
        if self._view and (view == self._view or view in ("questions", "blocked")):  # these two are on the badge
            self._is_dirty = True
            self._wake.set()

    def tell(self, method: str, params: dict[str, Any]) -> None:
        if not any(method.startswith(beginning) for beginning in self._feeds):
            return
        if len(self._waiting) >= MOST_WAITING:
            self.cut()
            return
        self._waiting.append(dumps({"jsonrpc": "2.0", "method": method, "params": params}))
        self._wake.set()

    def cut(self) -> None:
        """End without waiting for the other side."""
        self._transport.abort()

    # the life of the channel

    async def serve(self) -> None:
        """Answer messages until the other side, the session or the daemon ends."""
        self._hub.enter(self)
        sending = asyncio.get_running_loop().create_task(self._send_changes(), name="changes")
        running: set[asyncio.Task[None]] = set()
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
                    break
                await self._spend()
                await self._calls.acquire()
                if not self._door.is_open(self.session) or not self._hub.serving:
                    break
                call = asyncio.get_running_loop().create_task(self._answer(message.data), name="call")
                running.add(call)
                call.add_done_callback(running.discard)
        finally:
            self._hub.leave(self)
            sending.cancel()
            for task in running:
                task.cancel()

    async def _spend(self) -> None:
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._counted) * PER_S) - 1
        self._counted = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / PER_S)

    async def _answer(self, text: str) -> None:
        try:
            answer = await self._respond(text)
            if answer is not None:
                with contextlib.suppress(ConnectionError):
                    await self._socket.send_str(dumps(answer))
        finally:
            self._calls.release()

    async def _respond(self, text: str) -> dict[str, Any] | None:
        number: Any = None
        try:
            message = loads(text)
            if not isinstance(message, dict) or not isinstance(message.get("method"), str):
                raise RpcError("invalid_request", "this is no request of JSON-RPC 2.0", number=codes.INVALID_REQUEST)
            number, params = message.get("id"), message.get("params", {})
            if message.get("jsonrpc") != "2.0" or not isinstance(params, dict) or not _is_id(number):
                raise RpcError("invalid_request", "this is no request of JSON-RPC 2.0", number=codes.INVALID_REQUEST)
            result = await self._call(message["method"], params)
            return None if "id" not in message else {"jsonrpc": "2.0", "id": number, "result": result}
        except JsonTextError as error:
            fault = RpcError("parse_error", error.message, number=codes.PARSE_ERROR)
        except ParamsError as error:
            fault = RpcError("invalid_params", error.message, error.hint, codes.INVALID_PARAMS)
        except RpcError as error:
            fault = error
        except SandboxdError as error:
            fault = RpcError(error.slug, error.message, error.hint, codes.BUSY)
        data = {**fault.data, "slug": fault.slug, "hint": fault.hint}
        number = number if _is_id(number) else None
        code = fault.number or codes.number_of(fault.slug, codes.CALLER)
        return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": fault.message, "data": data}}

    async def _call(self, method: str, params: dict[str, Any]) -> object:
        match method:
            case "hello":
                return {"server": "sandboxd web", "role": self.role.word, "session": self.session.id}
            case "screen.show":
                return self._show(params)
            case "screen.answer":
                if self.role < Role.ANSWER:
                    raise RpcError("not_permitted", "this session only watches")
                confirm = params.get("confirm") is True
                return await self._hub.answer(
                    _text(params, "request_id"), _text(params, "key"), self.role, confirm=confirm
                )
            case "screen.explain":
                return await self._hub.explain(_text(params, "text"), _text(params, "cwd") or None)
        if refusal := why_refused(method, params, self.role):
            known = "not_permitted" if refusal.startswith("this needs") else "method_not_found"
            raise RpcError(known, refusal, "use a session of another role")
        result = await self._hub.call(method, params)
        if method in FEEDS:
            self._feeds.add(FEEDS[method])
        return result

    # screens

    def _show(self, params: dict[str, Any]) -> dict[str, Any]:
        view = _text(params, "view")
        if view not in ("now", "questions", "blocked", "policy", "layers"):
            raise RpcError("invalid_params", "there is no such view", "name now, questions, blocked, policy or layers")
        self._wanted = Filter(*(_text(params, name) for name in ("session_id", "kind", "text")))
        self._unfolded = _pairs(params.get("unfolded", []))
        self._view, self._shown, self._is_dirty = view, "", True
        self._wake.set()
        return {}

    async def _send_changes(self) -> None:
        """Send what was told, and the newest state of the screen, as fast as the other side reads."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NOW_S if self._view == "now" else None):
                    await self._wake.wait()
            self._wake.clear()
            begun = time.perf_counter()
            try:
                while self._waiting:
                    await self._socket.send_str(self._waiting.popleft())
                if self._view and (self._is_dirty or self._view == "now"):
                    await self._send_screen()
            except ConnectionError:
                return
            except SandboxdError:  # the daemon is away, which ends the channel
                continue
            await asyncio.sleep(max(PAUSE_S, SHARE * (time.perf_counter() - begun)))

    async def _send_screen(self) -> None:
        self._is_dirty, view = False, self._view
        rows = await self._hub.view(view, self._wanted, self._unfolded, self.role)
        text = dumps({"view": view, "rows": rows, "badge": self._hub.badge})
        if text != self._shown and view == self._view:
            self._shown = text
            await self._socket.send_str(f'{{"jsonrpc":"2.0","method":"screen","params":{text}}}')


def _is_id(number: object) -> bool:
    return number is None or (isinstance(number, int | str) and not isinstance(number, bool))


def _pairs(value: object) -> frozenset[tuple[str, str]]:
    """Return the titles and places of groups."""
    if isinstance(value, list) and len(value) <= MOST_UNFOLDED:
        pairs = [(one[0], one[1]) for one in value if isinstance(one, list) and len(one) == 2]
        if len(pairs) == len(value) and all(isinstance(text, str) for pair in pairs for text in pair):
            return frozenset(pairs)
    raise ParamsError("unfolded", f"at most {MOST_UNFOLDED} pairs of title and place", "another value")


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name, "")
    if not isinstance(value, str) or len(value) > 4096:
        raise ParamsError(name, "a text", "another value")
    return value
