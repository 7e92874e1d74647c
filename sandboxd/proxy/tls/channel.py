"""One end of a TLS connection, without I/O: bytes in, bytes out.

The work is done by OpenSSL on memory buffers. All input is decrypted as soon as it comes, so no content waits where a
look at the socket would not see it."""

from __future__ import annotations

import contextlib
import ssl
from typing import Protocol

RECORD = 16384
"""Most content of one record (RFC 8446, section 5.1)."""


class TlsFault(ConnectionError):
    """A TLS connection that broke, with OpenSSL's reason."""


class ServerUntrusted(TlsFault):
    """A server whose certificate is not valid."""


class TlsEnd(Protocol):
    """One end of a TLS connection, as a stream uses it."""

    ended: bool

    @property
    def protocol(self) -> str | None: ...
    @property
    def asks(self) -> bool: ...
    def shake_hands(self, data: bytes = b"") -> bool: ...
    def receive(self, data: bytes) -> bytes: ...
    def send(self, content: bytes) -> bytes: ...
    def end(self) -> bytes: ...
    def take_output(self) -> bytes: ...


class TlsChannel:
    """Feed `receive` with what the peer sent; send what `take_output` returns after each step.

    `ended` is set by the peer's close_notify. Every method raises ssl.SSLError, an OSError, when the connection is
    broken; the alert for the peer is in `take_output` then."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self.ended = False
        self.asks = False

    def shake_hands(self, data: bytes = b"") -> bool:
        """Take handshake bytes; return whether the handshake is complete."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    @property
    def protocol(self) -> str | None:
        """Return the protocol that ALPN chose."""
        return self._tls.selected_alpn_protocol()

    def receive(self, data: bytes) -> bytes:
        """Return the content of these bytes."""
        self._incoming.write(data)
        content: list[bytes] = []
        while True:
            try:
                piece = self._tls.read(RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.ended = True
                break
            content.append(piece)
        return content[0] if len(content) == 1 else b"".join(content)

    def send(self, content: bytes) -> bytes:
        """Return the bytes to send for some content."""
        view = memoryview(content)
        while view:
            view = view[self._tls.write(view) :]
        return self.take_output()

    def end(self) -> bytes:
        """Return the bytes that tell the peer of the end."""
        with contextlib.suppress(ssl.SSLError):  # the peer has not sent its own, or the connection is broken
            self._tls.unwrap()
        return self.take_output()

    def take_output(self) -> bytes:
        return self._outgoing.read()
