"""Faults of TLS connections, and one end of such a connection as a stream uses it; without any library."""

from __future__ import annotations

from typing import Protocol


class TlsFault(ConnectionError):
    """A TLS connection that broke, with OpenSSL's reason."""


class ServerUntrusted(TlsFault):
    """A server whose certificate is not valid."""


class TlsEnd(Protocol):
    """One end of a TLS connection (`channel.TlsChannel`)."""

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
