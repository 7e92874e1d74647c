"""The SOCKS5 handshake as bytes (RFC 1928, RFC 1929), without I/O.

`receive` takes bytes in any portions. It returns the reply, and at the end the request or the fault. Authentication:
none when offered, else user name and password. Without a check any password is accepted, because a listener belongs to
one command. CONNECT is supported; BIND and UDP ASSOCIATE are not."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, parse_wire_host
from sandboxd_client.records import dataclass

NO_AUTHENTICATION: Final = 0x00
USER_AND_PASSWORD: Final = 0x02
NONE_ACCEPTABLE: Final = 0xFF

SOCKS4_REFUSED: Final = b"\x00\x5b" + b"\x00" * 6
NOT_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nX-Sandboxd-Error: wrong_port\r\nConnection: close\r\n\r\n"
    b"sandboxd: HTTP request on the SOCKS5 port; use the port in http_proxy\n"
)


class Reply(IntEnum):
    """Reply codes (RFC 1928, section 6)."""

    SUCCEEDED = 0x00
    GENERAL_FAILURE = 0x01
    NOT_ALLOWED = 0x02
    NETWORK_UNREACHABLE = 0x03
    HOST_UNREACHABLE = 0x04
    CONNECTION_REFUSED = 0x05
    TTL_EXPIRED = 0x06
    COMMAND_NOT_SUPPORTED = 0x07
    ADDRESS_TYPE_NOT_SUPPORTED = 0x08


def render_reply(reply: Reply) -> bytes:
    """Render a reply without bound address, which clients do not use."""
    return bytes((5, reply, 0, 1)) + b"\0" * 6


@dataclass(frozen=True, slots=True)
class HandshakeStep:
    """The result of one `receive`.

    After the bytes to `send` follows nothing yet, the `request`, or the end. `fault` is the reason of the end; for an
    unreadable host name also `error` with `name`."""

    send: bytes = b""
    request: tuple[Host, int] | None = None
    ended: bool = False
    fault: str = ""
    name: bytes = b""
    error: HostSyntaxError | None = None


class _Ended(Exception):
    def __init__(self, reply: bytes, fault: str, name: bytes = b"", error: HostSyntaxError | None = None) -> None:
        super().__init__(fault)
        self.step = HandshakeStep(reply, None, True, fault, name, error)


Stage = Callable[[bytes], tuple[int, bytes] | None]
"""Parses the buffer: None for more bytes, else the bytes taken and the reply."""


class Socks5Handshake:
    """The handshake of one connection.

    After `request`, `rest` holds the client's further bytes. The caller sends the final `render_reply`."""

    def __init__(self, check: Callable[[bytes, bytes], bool] | None = None) -> None:
        """Require a user name and password that `check` accepts, if it is given."""
        self._check = check
        self._buffer = b""
        self._stage: Stage | None = self._greeting
        self._request: tuple[Host, int] | None = None
        self.rest = b""

    def receive(self, data: bytes) -> HandshakeStep:
        """Parse further bytes, before a request or the end; keeps below 600 of them."""
        self._buffer += data
        send = b""
        try:
            while self._stage is not None:
                taken = self._stage(self._buffer)
                if taken is None:
                    return HandshakeStep(send)
                self._buffer = self._buffer[taken[0] :]
                send += taken[1]
        except _Ended as end:
            self._stage = None
            step = end.step
            return HandshakeStep(send + step.send, None, True, step.fault, step.name, step.error)
        self.rest, self._buffer = self._buffer, b""
        return HandshakeStep(send, self._request)

    def _greeting(self, buffer: bytes) -> tuple[int, bytes] | None:
        if buffer[:1] not in (b"", b"\x05"):
            raise _other_protocol(buffer[0])
        if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
            return None
        methods = buffer[2 : 2 + buffer[1]]
        if NO_AUTHENTICATION in methods and self._check is None:
            method, self._stage = NO_AUTHENTICATION, self._command
        elif USER_AND_PASSWORD in methods:
            method, self._stage = USER_AND_PASSWORD, self._credentials
        else:
            raise _Ended(bytes((5, NONE_ACCEPTABLE)), "no authentication method in common")
        return 2 + buffer[1], bytes((5, method))

    def _credentials(self, buffer: bytes) -> tuple[int, bytes] | None:
        if buffer[:1] not in (b"", b"\x01"):
            raise _Ended(b"\x01\x01", "unknown version of the password sub-negotiation")
        if len(buffer) < 2 or len(buffer) < 3 + buffer[1]:
            return None
        user = buffer[2 : 2 + buffer[1]]
        start = 3 + buffer[1]
        end = start + buffer[start - 1]
        if len(buffer) < end:
            return None
        if self._check is not None and not self._check(user, buffer[start:end]):
            raise _Ended(b"\x01\x01", "user name or password is wrong")
        self._stage = self._command
        return end, b"\x01\x00"

    def _command(self, buffer: bytes) -> tuple[int, bytes] | None:
        if buffer[:1] not in (b"", b"\x05"):
            raise _Ended(render_reply(Reply.GENERAL_FAILURE), "request is not version 5")
        if len(buffer) < 5:
            return None
        command, kind = buffer[1], buffer[3]
        lengths = {0x01: 4, 0x03: 1 + buffer[4], 0x04: 16}
        if kind not in lengths:
            raise _Ended(render_reply(Reply.ADDRESS_TYPE_NOT_SUPPORTED), "unknown address type")
        end = 4 + lengths[kind]
        if len(buffer) < end + 2:
            return None
        if command != 0x01:
            raise _Ended(render_reply(Reply.COMMAND_NOT_SUPPORTED), "only CONNECT is served")
        host = _parse_address(kind, buffer[4:end])
        port = int.from_bytes(buffer[end : end + 2], "big")
        if port == 0:
            error = HostSyntaxError("port is not a number from 1 to 65535", host.name + ":0")
            raise _Ended(render_reply(Reply.GENERAL_FAILURE), error.message, host.name.encode("ascii"), error)
        self._request = (host, port)
        self._stage = None
        return end + 2, b""


def _parse_address(kind: int, raw: bytes) -> Host:
    if kind == 0x01:
        return Host.of_address(IPv4Address(raw))
    if kind == 0x04:
        return Host.of_address(IPv6Address(raw))
    name = raw[1:]
    try:
        return parse_wire_host(name)
    except HostSyntaxError as error:
        raise _Ended(render_reply(Reply.ADDRESS_TYPE_NOT_SUPPORTED), error.message, name, error) from error


def _other_protocol(first: int) -> _Ended:
    if first == 4:
        return _Ended(SOCKS4_REFUSED, "SOCKS4 is not supported")
    if chr(first).isascii() and chr(first).isupper():
        return _Ended(NOT_HTTP, "HTTP request on the SOCKS port")
    return _Ended(b"", "first byte is not SOCKS5")
