"""One listening socket of a command's proxies: accepts as long as there is room for more connections, and waits where
there is none, or no descriptor."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sandboxd.handover.record import Descriptor
from sandboxd.proxy.fair_share import CONNECTION, Share
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound
from sandboxd.proxy.streams.stream import Stream, hurry, send_at_once

Serve = Callable[[Stream, Outbound, ProxyLimits], Awaitable[None]]
"""Serves one client connection until it ends, and closes it."""

ACCEPTS_AT_ONCE: Final = 64
_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
"""What accept() says about the listener itself. Everything else in accept(2) is about one connection or passes."""

log = logging.getLogger(__name__)


class Server(Protocol):
    """What an acceptor needs to know of those whose connections it accepts. `is_crowded_out`: it is what others have
    that leaves no room, and they do not say when there is some again, so look again after `retry_s`."""

    @property
    def is_full(self) -> bool: ...

    @property
    def is_crowded_out(self) -> bool: ...

    @property
    def retry_s(self) -> float: ...

    @property
    def share(self) -> Share: ...

    def accepted(self, sock: socket.socket, protocol: str, serve: Serve) -> None: ...


@dataclass(frozen=True, slots=True)
class ProxyListenerRecord:
    """`protocol` is how its connections are served."""

    protocol: str
    socket: Descriptor


class Acceptor:
    """One listener on the event loop, owned by it. `server` gets what comes in, to be served by `serve`."""

    def __init__(self, server: Server, listener: socket.socket, protocol: str, serve: Serve) -> None:
        self._server = server
        self._listener = listener
        self._protocol = protocol
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._accepting = False
        self._closed = False
        listener.setblocking(False)
        self.resume()

    @property
    def port(self) -> int:
        number: int = self._listener.getsockname()[1]
        return number

    def resume(self) -> None:
        if self._accepting or self._closed or self._retry is not None:
            return
        if not self._server.is_full:
            self._loop.add_reader(self._listener.fileno(), self._readable)
            self._accepting = True
        elif self._server.is_crowded_out:
            self._retry = self._loop.call_later(self._server.retry_s, self._try_again)

    def close(self, *, keep_listening: bool = False) -> None:
        self._pause()
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if not keep_listening:
            self._listener.close()

    @property
    def has_failed(self) -> bool:
        """Whether the listener turned out to be none any more: nothing comes in by it, and nobody can go on with it."""
        return self._listener.fileno() < 0

    @property
    def record(self) -> ProxyListenerRecord:
        return ProxyListenerRecord(self._protocol, Descriptor(self._listener.fileno()))

    def hand_over(self) -> ProxyListenerRecord:
        """After `close`, with the socket still listening."""
        return ProxyListenerRecord(self._protocol, Descriptor(self._listener.detach()))

    def _pause(self) -> None:
        if self._accepting:
            self._loop.remove_reader(self._listener.fileno())
            self._accepting = False

    def _readable(self) -> None:
        share = self._server.share
        for count in range(ACCEPTS_AT_ONCE):
            if count and not share.has_some():
                return
            if self._server.is_full:
                self._pause()
                self.resume()
                return
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            sock.setblocking(False)
            send_at_once(sock)
            hurry(sock)
            share.spend(CONNECTION)
            self._server.accepted(sock, self._protocol, self._serve)

    def _failed(self, error: OSError) -> None:
        """Out of descriptors, mostly: what is open goes on, what comes waits in the backlog, we try again in a
        moment."""
        self._pause()
        if error.errno in _BROKEN:
            log.error("proxy listener %s failed: %s", self._protocol, error.strerror)
            self.close()
            return
        log.warning("proxy listener %s waits: %s", self._protocol, error.strerror)
        self._retry = self._loop.call_later(self._server.retry_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.resume()
