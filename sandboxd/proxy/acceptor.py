"""One listening socket of a command's proxies.

It accepts while there is room for more connections and a free descriptor, and waits otherwise."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from sandboxd.handover.record import Descriptor
from sandboxd.proxy.fair_share import CONNECTION, Share
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.outbound import Outbound
from sandboxd.proxy.streams.stream import Stream, hurry, send_at_once
from sandboxd_client.records import dataclass

Serve = Callable[[Stream, Outbound, ProxyLimits], Awaitable[None]]
"""Serves one client connection until it ends, and closes it."""

ACCEPTS_AT_ONCE: Final = 64
_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
"""Errors of accept(2) about the listener itself. All others concern one connection, or pass."""

log = logging.getLogger(__name__)


class Server(Protocol):
    """The owner of the accepted connections.

    `is_crowded_out`: connections of other commands leave no room. Nothing reports when there is room again, so the
    acceptor looks again after `retry_s`."""

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
    """A listener in the hand-over document, with the protocol it serves."""

    protocol: str
    socket: Descriptor


class Acceptor:
    """One listener on the event loop, which it owns."""

    def __init__(self, server: Server, listener: socket.socket, protocol: str, serve: Serve) -> None:
        self._server = server
        self._listener = listener
        self._protocol = protocol
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._accepting = False
        self._waits = False
        """Set while the acceptor waits for a turn of its share."""
        self._closed = False
        listener.setblocking(False)
        self.resume()

    @property
    def port(self) -> int:
        number: int = self._listener.getsockname()[1]
        return number

    def resume(self) -> None:
        if self._accepting or self._closed or self._waits or self._retry is not None:
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
        """Return whether the listener was closed after an error."""
        return self._listener.fileno() < 0

    @property
    def record(self) -> ProxyListenerRecord:
        return ProxyListenerRecord(self._protocol, Descriptor(self._listener.fileno()))

    def hand_over(self) -> ProxyListenerRecord:
        """Release the socket, still listening; call it after `close`."""
        return ProxyListenerRecord(self._protocol, Descriptor(self._listener.detach()))

    def _pause(self) -> None:
        if self._accepting:
            self._loop.remove_reader(self._listener.fileno())
            self._accepting = False

    def _readable(self) -> None:
        share = self._server.share
        for _ in range(ACCEPTS_AT_ONCE):
            if not share.has_some():  # not watched meanwhile: what waits would wake the loop in each turn
                self._pause()
                self._waits = True
                share.later(self._go_on)
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

    def _go_on(self) -> None:
        self._waits = False
        self.resume()

    def _failed(self, error: OSError) -> None:
        """Pause accepting, mostly for lack of descriptors; clients wait in the backlog."""
        self._pause()
        if error.errno in _BROKEN:
            log.error("cannot accept on the %s listener, closing it: %s", self._protocol, error.strerror)
            self.close()
            return
        log.warning("cannot accept on the %s listener, trying again later: %s", self._protocol, error.strerror)
        self._retry = self._loop.call_later(self._server.retry_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.resume()
