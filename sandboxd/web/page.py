"""The process of `sandboxd web`: its parts, in the order in which they may begin.

The port is bound, the daemon closes it for every command, and only then it is listened on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable
from typing import Any, Final

from sandboxd.web.access import ROLES, Door, EntryRefused, PageSession, Role, write_private
from sandboxd.web.certificate import context_of, made_in
from sandboxd.web.control import answering, ask, path_beside
from sandboxd.web.hub import Hub
from sandboxd.web.server import LOOPBACK, PAGE, Site, application, bound, serving
from sandboxd_client.errors import SandboxdError
from sandboxd_client.records import dataclass
from sandboxd_client.wire.location import STATE_DIRECTORY

__all__ = ["ROLES", "PageStart", "Wanted", "ask", "path_beside", "run"]
SAVED: Final = "web-sessions.json"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes of a command line. `authorities` are further names of the page, as a forwarded port has them."""

    socket: str
    home: str
    address: str = "127.0.0.1"
    port: int = 0
    certificate: str = ""
    key: str = ""
    authorities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageStart:
    """The page as it is announced; `fingerprint` is empty without TLS."""

    site: Site
    door: Door
    fingerprint: str
    warnings: tuple[str, ...]

    def link(self, role: Role) -> str:
        """Return an address that opens the page once. Its secret is in the fragment, which no browser sends."""
        return f"{self.site.url}#{self.door.link(role)}"


async def run(wanted: Wanted, started: Callable[[PageStart], None]) -> None:
    """Serve the page until a signal or the end of the daemon. Raises SandboxdError."""
    state = os.path.join(wanted.home, STATE_DIRECTORY)
    os.makedirs(state, mode=0o700, exist_ok=True)
    tls, fingerprint = _tls(wanted, state)
    try:
        listener = bound(wanted.address, wanted.port)
    except OSError as error:
        where = f"{wanted.address} port {wanted.port}"
        raise SandboxdError(
            "web_failed", f"cannot listen on {where}: {error.strerror}", "choose a free --port"
        ) from error
    with listener:
        port = listener.getsockname()[1]
        site = Site.of(wanted.address, port, is_secure=tls is not None, more=wanted.authorities)
        door, hub = _door(os.path.join(state, SAVED)), Hub(wanted.socket)
        async with contextlib.AsyncExitStack() as stack:
            away = await stack.enter_async_context(hub.closing(port, site.url))
            app = application(hub, door, site)
            await stack.enter_async_context(serving(app, listener, tls))
            started_page = PageStart(site, door, fingerprint, hub.warnings)
            answer = _answers(started_page, app[PAGE].end)
            await stack.enter_async_context(answering(path_beside(wanted.socket), answer))
            started(started_page)
            await _until_ended(away)


def _tls(wanted: Wanted, state: str) -> tuple[ssl.SSLContext | None, str]:
    """Return the side of TLS; an address that other machines reach is never served without it."""
    if wanted.certificate:
        return context_of(wanted.certificate, wanted.key or wanted.certificate)
    if wanted.address in LOOPBACK:
        return None, ""
    return context_of(*made_in(state, wanted.address))


def _door(path: str) -> Door:
    """Return the door, whose sessions are in a file that commands cannot read; it holds hashes."""
    try:
        with open(path, encoding="utf-8") as file:
            saved = file.read(1 << 20)
    except (OSError, ValueError):
        saved = ""
    return Door(saved, lambda text: write_private(path, text))


async def _until_ended(away: asyncio.Task[None]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    waiting = loop.create_task(ended.wait())
    await asyncio.wait((waiting, away), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if away.done():
        with contextlib.suppress(TimeoutError):
            away.result()
        raise SandboxdError("daemon_not_running", "the daemon has ended", "start it again with: sandboxd web")


def _answers(
    started: PageStart, end: Callable[[tuple[PageSession, ...]], None]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what answers the other commands of `sandboxd web`."""
    door = started.door

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        role = ROLES.get(request.get("role", ""), Role.WATCH)
        try:
            match request.get("act"):
                case "link":
                    return {"url": started.link(role), "fingerprint": started.fingerprint, "pid": os.getpid()}
                case "sessions":
                    return {"sessions": [_shown(one) for one in door.sessions]}
                case "revoke":
                    ended = door.revoke(request["session"])
                    end(ended)
                    return {"sessions": [_shown(one) for one in ended]}
                case "pairings":
                    found = [one for one in door.pairings if one.role is None]
                    return {"pairings": [{"code": one.code, "name": one.name, "address": one.address} for one in found]}
                case "approve":
                    return {"name": door.approve(request["code"], role).name}
                case "token":
                    entry = door.program(request["name"], role)
                    address = started.site.url.replace("http", "ws", 1) + "rpc"
                    return {"token": entry.secret, "session": entry.session.id, "url": address}
        except EntryRefused as refusal:
            raise SandboxdError("web_refused", str(refusal)) from None
        raise SandboxdError("web_refused", "the running page does not know this command", "end it, and start it again")

    return answer


def _shown(session: PageSession) -> dict[str, Any]:
    return {
        "id": session.id,
        "kind": session.kind,
        "name": session.name,
        "role": session.role.word,
        "created": session.created,
        "expires": session.expires,
    }
