"""A non-blocking TCP socket with pushed-back input.

Both handshakes work on it. Then the relay takes over the bare socket and the pending bytes. asyncio's streams read
ahead into private buffers, which splice() cannot reach."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from functools import cache
from typing import Final

from sandboxd.proxy.fair_share import CIPHER, STEP, Share
from sandboxd.proxy.tls.faults import TlsEnd

READ_SIZE: Final = 65536
HEAD_READ_SIZE: Final = 8192
"""Read size for a head or greeting. Surplus bytes stay in memory while a request is served."""
MOST_EMPTY: Final = 65536
"""Bytes of TLS records without content, more or less, after which a peer is cut off (KeyUpdate, RFC 8446, 4.6.3)."""
_LEAST_READ: Final = 4096
"""Read at a time from a peer that sends such: OpenSSL takes 2 ms for as many of them."""
_PART: Final = 64
"""One byte of content pays for so many bytes of records."""
_KEEPALIVE: Final = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 6))
    if hasattr(socket, name)
)
_RESET: Final = struct.pack("ii", 1, 0)


def hurry(sock: socket.socket) -> None:
    """Tune a connection within this machine for throughput.

    Congestion controls such as BBR pace by an estimated rate, which halves loopback throughput. A short unsent queue
    keeps the data in the processor's cache, which saves the reader a third of its time. Remote connections keep the
    administrator's choice."""
    with contextlib.suppress(OSError):
        if _is_paced():
            sock.setsockopt(socket.IPPROTO_TCP, _CONGESTION, b"reno")
        if _NOT_SENT:
            sock.setsockopt(socket.IPPROTO_TCP, _NOT_SENT, UNSENT)


UNSENT: Final = 256 << 10
"""Measured on downloads of a gigabyte through a tunnel: 1.5 GB/s, against 1.0 GB/s with the system's 4 MiB."""
_CONGESTION: Final = getattr(socket, "TCP_CONGESTION", 0)
_NOT_SENT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", 0)


@cache
def _is_paced() -> bool:
    """Return whether this machine's default congestion control paces."""
    if not _CONGESTION:
        return False
    with contextlib.suppress(OSError), socket.socket() as probe:
        return probe.getsockopt(socket.IPPROTO_TCP, _CONGESTION, 16).startswith(b"bbr")
    return False


def send_at_once(sock: socket.socket) -> None:
    """Disable Nagle's delay."""
    with contextlib.suppress(OSError):  # the peer may be gone already; the next read reports it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_alive(sock: socket.socket) -> None:
    """Enable probes, so that a tunnel to a vanished remote peer ends."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(sock: socket.socket) -> None:
    """Close with RST, so that the peer never takes a truncated stream for complete."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


class Stream:
    """Owner of a connected, non-blocking socket; its work is charged to `share`."""

    __slots__ = (
        "_ahead",
        "_between",
        "_empty",
        "_kept",
        "_loop",
        "_pending",
        "_read",
        "_sent",
        "_skip",
        "_tls",
        "is_tunnelled",
        "share",
        "socket",
    )

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, share: Share | None = None) -> None:
        self.socket = sock
        self.share = share or Share()
        self._loop = loop
        self._pending = b""
        self._ahead = b""
        self._read: bytearray | None = None
        self._sent = 0
        self._skip = 0
        self._kept = False
        self._tls: TlsEnd | None = None
        self._between = False
        self._empty = 0
        self.is_tunnelled = False
        """Set for requests inside a tunnel, which another process could not tell from requests to the proxy."""

    async def receive(self, most: int = READ_SIZE) -> bytes:
        """Return the next bytes in the share's turn, b"" at the end. Raises OSError."""
        await self.share.turn()
        if self._pending:
            data, self._pending = self._pending, b""
            self.share.spend(STEP, len(data))
        else:
            data = await self._from_socket(most)
        if self._read is not None:
            self._read += data
            self.share.held += len(data)
        return data

    async def _from_socket(self, most: int) -> bytes:
        """Read like `sock_recv`, but only in the share's turn."""
        while self._tls is None or not self._tls.ended:  # a peer may wait for our end before it closes
            try:
                data = self.socket.recv(min(most, _LEAST_READ) if self._empty else most)
            except (BlockingIOError, InterruptedError):
                self.share.spend()
            else:
                self.share.spend(STEP, len(data))
                if self._tls is None:
                    return data
                content = await self._decrypted(data)
                if content or self._tls.ended:
                    return content
            await self._readable()
            await self.share.turn()
        return b""

    # TLS inside the connection

    async def start_tls(self, channel: TlsEnd) -> None:
        """Shake hands; from then on the content is read and written. Raises OSError."""
        data = self.take_pending()
        await self.share.turn()
        try:
            while True:
                begun = time.perf_counter()
                is_done = channel.shake_hands(data)
                self.share.spend_since(begun)
                if is_done:
                    break
                await self._send_bytes(channel.take_output())
                data = await self._from_socket(READ_SIZE)
                if not data:
                    raise ConnectionResetError("the peer closed the connection within the TLS handshake")
                await self.share.turn()
        finally:
            with contextlib.suppress(OSError):
                await self._send_bytes(channel.take_output())
        self._pending = channel.receive(b"")
        self._tls = channel

    @property
    def is_secure(self) -> bool:
        return self._tls is not None

    async def _decrypted(self, data: bytes) -> bytes:
        assert self._tls is not None
        if not data:
            raise ConnectionResetError("the peer closed the TLS connection without saying so")
        content = self._content_of(self._tls, data)
        if output := self._tls.take_output():
            await self._send_bytes(output)
        return content

    def receive_now(self, most: int) -> bytes:
        """Return what has arrived, b"" at the end. Raises BlockingIOError where nothing has, and OSError."""
        data = self.socket.recv(most)
        if self._tls is None or not data:
            return data
        content = self._content_of(self._tls, data)
        if not content and not self._tls.ended:
            raise BlockingIOError
        return content

    def _content_of(self, tls: TlsEnd, data: bytes) -> bytes:
        """Return the content of records, charged by the clock. Raises ConnectionResetError for a peer without any."""
        begun = time.perf_counter()
        content = tls.receive(data)
        self.share.spend_since(begun)
        self._empty = max(0, self._empty + len(data) - _PART * len(content))
        if self._empty > MOST_EMPTY:
            raise ConnectionResetError("the peer sends TLS records without content")
        return content

    async def _readable(self) -> None:
        readable: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not readable.done():
                readable.set_result(None)

        descriptor = self.socket.fileno()
        self._loop.add_reader(descriptor, wake)
        try:
            await readable
        finally:
            self._loop.remove_reader(descriptor)

    def unread(self, data: bytes) -> None:
        """Put back the last bytes read, for the next reader."""
        if data:
            self._pending = data + self._pending
            if self._read is not None:
                del self._read[-len(data) :]
                self.share.held -= len(data)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    @property
    def is_closed(self) -> bool:
        """Return whether the socket was closed or handed over."""
        return self.socket.fileno() < 0

    # Another process can serve a request from its first byte, as long as it has had no effect.

    def begin(self) -> None:
        """Mark the start of a request, and record its input and output from now on."""
        self.commit()
        self._read = bytearray()
        self._between = self._tls is not None
        self._sent = 0

    def commit(self) -> None:
        """Stop recording before the request has an effect that must not repeat."""
        if self._read is not None:
            self.share.held -= len(self._read)
        self._read = None
        self._between = False

    @property
    def is_resumable(self) -> bool:
        return self._read is not None and self._tls is None and not self.is_tunnelled

    @property
    def is_between_requests(self) -> bool:
        """Return whether a connection inside TLS, which is never resumable, can be cut without losing a request."""
        return self._between

    def rest(self, between: bool) -> None:
        """Mark a connection of which several requests are served at a time as between requests, or not."""
        self._between = between

    @property
    def protocol(self) -> str | None:
        """Return the protocol that the TLS handshake chose."""
        return self._tls.protocol if self._tls is not None else None

    @property
    def asks_for_certificate(self) -> bool:
        """Return whether the server asked for a certificate in the TLS handshake, which it did not get."""
        return self._tls is not None and self._tls.asks

    def keep(self) -> None:
        """Ignore later `close` and `reset` calls, before a hand-over."""
        self._kept = True

    @property
    def is_kept(self) -> bool:
        return self._kept

    def hand_over(self) -> tuple[int, bytes, int, bytes]:
        """Release the socket, after `keep` and without any user left.

        Returns the descriptor, everything read of the current request, the number of dialogue bytes sent, and the part
        of the answer already sent (see `resumed`)."""
        return self.socket.detach(), bytes(self._read or b"") + self._pending, self._sent, self._ahead

    def resumed(self, data: bytes, skip: int, ahead: bytes) -> None:
        """Begin with `data` as input, and suppress output that the peer already has.

        These are the first `skip` bytes of the dialogue, and the beginning `ahead` of the answer."""
        self._pending, self._skip, self._ahead = data, skip, ahead

    def append_pending(self, data: bytes) -> None:
        """Append bytes for the next reader."""
        self._pending += data

    def take_pending(self) -> bytes:
        data, self._pending = self._pending, b""
        return data

    async def send(self, data: bytes) -> None:
        """Send all bytes, and return when the kernel has them. Raises OSError."""
        if self._read is not None:
            self._sent += len(data)
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        elif self._ahead:
            data = self.without_sent(data)
        if self._tls is not None:
            self.share.spend(0, len(data) * CIPHER)
            data = self._tls.send(data)
        await self._send_bytes(data)

    async def _send_bytes(self, data: bytes) -> None:
        self.share.spend(STEP, len(data))
        try:
            sent = self.socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent < len(data):
            await self._loop.sock_sendall(self.socket, memoryview(data)[sent:])

    def send_ahead(self, answer: bytes) -> None:
        """Send the next byte of an answer of which only the beginning is known.

        A peer that is gone responds with a reset. No other way distinguishes it from one that half-closed and waits.
        Raises OSError."""
        following = answer[len(self._ahead) : len(self._ahead) + 1]
        if following and self.socket.send(following):
            self._ahead += following

    def without_sent(self, answer: bytes) -> bytes:
        """Return the unsent rest of an answer. Call it once, before sending."""
        ahead, self._ahead = self._ahead, b""
        if not answer.startswith(ahead):
            raise AssertionError("internal error: the answer does not begin with the bytes sent ahead")
        return answer[len(ahead) :]

    @property
    def has_failed(self) -> bool:
        """Return whether the kernel reported an error, such as a reset. Clears the error."""
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def is_stale(self) -> bool:
        """Return whether an idle connection is closed, failed or has unrequested bytes."""
        try:
            if self._tls is not None:
                self._pending += self.receive_now(READ_SIZE)
                return True
            self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return bool(self._pending)
        except OSError:
            return True
        return True

    async def linger(self, seconds: float) -> None:
        """Half-close, and read until the peer closes or the time is over.

        Closing a socket with unread bytes resets it, and a reset can overtake the answer (RFC 9112, section 9.6)."""
        with contextlib.suppress(OSError, TimeoutError):
            self._end_tls()
            self.socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(seconds):
                await self.share.turn()
                while await self._from_socket(READ_SIZE):
                    await self.share.turn()

    def _end_tls(self) -> None:
        """Tell the peer of the end, if the kernel takes it at once."""
        channel, self._tls = self._tls, None
        if channel is not None:
            with contextlib.suppress(OSError):
                self.socket.send(channel.end())

    def close(self) -> None:
        if not self._kept:
            self.commit()
            self._end_tls()
            self.socket.close()

    def reset(self) -> None:
        if not self._kept:
            self.commit()
            reset(self.socket)
