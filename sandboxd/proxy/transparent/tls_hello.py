"""The server name and protocols in a TLS ClientHello, without I/O.

Sources: RFC 8446, section 4.1.2; RFC 6066, section 3; RFC 7301. The ClientHello is not encrypted. With Encrypted
Client Hello the name is the outer one."""

from __future__ import annotations

from typing import Final

from sandboxd_client.records import dataclass

MAX_HELLO: Final = 65536
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_PROTOCOLS: Final = 16
_HOST_NAME: Final = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a connection, with server name and protocols (ALPN) if readable and present."""

    is_tls: bool
    is_readable: bool = True
    server_name: bytes | None = None
    protocols: tuple[bytes, ...] = ()


NOT_TLS: Final = Opening(False)
UNREADABLE: Final = Opening(True, is_readable=False)


class HelloReader:
    """Parser of the first bytes; `receive` returns the Opening, None before."""

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
        """Check the first byte of an incomplete record, which may be no ClientHello."""
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
            return _offer(bytes(handshake[4:end]))
        except ValueError:
            return UNREADABLE


class _Fields:
    """Reader of the fields of a structure. Raises ValueError when it is too short."""

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
        """Read a field after its length in `size` bytes."""
        return self.take(self.number(size))


def _offer(body: bytes) -> Opening:
    """Return what a ClientHello names. Raises ValueError."""
    fields = _Fields(body)
    fields.take(2 + 32)  # version, random
    fields.vector(1)  # session id
    fields.vector(2)  # cipher suites
    fields.vector(1)  # compression methods
    found: bytes | None = None
    protocols: list[bytes] = []
    extensions = _Fields(b"" if fields.is_empty else fields.vector(2))
    while not extensions.is_empty:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind not in (_SERVER_NAME, _PROTOCOLS):
            continue
        entries = _Fields(_Fields(content).vector(2))
        while not entries.is_empty:
            if kind == _PROTOCOLS:
                protocols.append(entries.vector(1))
                continue
            name_kind, name = entries.number(1), entries.vector(2)
            if name_kind == _HOST_NAME:
                if found is not None:
                    raise ValueError("two server names")
                found = name
    return Opening(True, server_name=found, protocols=tuple(protocols))
