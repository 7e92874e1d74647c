"""The server name in the first bytes of a TLS connection (RFC 8446, section 4.1.2; RFC 6066, section 3), without I/O.

Nothing is decrypted: the ClientHello is sent in the clear. With Encrypted Client Hello it names the front, and that is
the name found here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_HELLO: Final = 65536
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """How a connection begins. `server_name` is None when the greeting names none, or is not readable."""

    is_tls: bool
    is_readable: bool = True
    server_name: bytes | None = None


NOT_TLS: Final = Opening(False)
UNREADABLE: Final = Opening(True, is_readable=False)


class HelloReader:
    """Takes the client's first bytes in any portions. `receive` gives the Opening once it is known, None before."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._handshake = bytearray()

    def receive(self, data: bytes) -> Opening | None:
        self._buffer += data
        while self._buffer:
            if self._buffer[0] != _HANDSHAKE:
                return UNREADABLE if self._handshake else NOT_TLS
            if len(self._buffer) > 1 and self._buffer[1] != 3:
                return UNREADABLE if self._handshake else NOT_TLS
            if len(self._buffer) < 5:
                return None
            end = 5 + int.from_bytes(self._buffer[3:5], "big")
            if end == 5:
                return UNREADABLE
            if len(self._buffer) < end:
                return self._look_early(end)
            self._handshake += self._buffer[5:end]
            del self._buffer[:end]
            opening = self._look()
            if opening is not None:
                return opening
        return None

    def _look_early(self, end: int) -> Opening | None:
        """The record is incomplete: the first byte of the handshake may be enough to know that it is none."""
        beginning = bytes(self._handshake[:1] or self._buffer[5:6])
        return UNREADABLE if beginning not in (b"", b"\x01") or end > MAX_HELLO else None

    def _look(self) -> Opening | None:
        handshake = self._handshake
        if handshake[0] != _CLIENT_HELLO:
            return UNREADABLE
        if len(handshake) < 4:
            return None
        end = 4 + int.from_bytes(handshake[1:4], "big")
        if end > MAX_HELLO:
            return UNREADABLE
        if len(handshake) < end:
            return None
        try:
            return Opening(True, server_name=_server_name(bytes(handshake[4:end])))
        except ValueError:
            return UNREADABLE


class _Fields:
    """Reads fields of a structure; ValueError when it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def is_empty(self) -> bool:
        return not self._data

    def take(self, size: int) -> bytes:
        if len(self._data) < size:
            raise ValueError("structure ends early")
        found, self._data = self._data[:size], self._data[size:]
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """A field with its length in `size` bytes before it."""
        return self.take(self.number(size))


def _server_name(body: bytes) -> bytes | None:
    """Raises ValueError."""
    fields = _Fields(body)
    fields.take(2 + 32)  # version, random
    fields.vector(1)  # session id
    fields.vector(2)  # cipher suites
    fields.vector(1)  # compression methods
    if fields.is_empty:
        return None
    extensions = _Fields(fields.vector(2))
    found: bytes | None = None
    while not extensions.is_empty:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind != _SERVER_NAME:
            continue
        names = _Fields(_Fields(content).vector(2))
        while not names.is_empty:
            name_kind, name = names.number(1), names.vector(2)
            if name_kind == _HOST_NAME:
                if found is not None:
                    raise ValueError("two server names")
                found = name
    return found
