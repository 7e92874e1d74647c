"""The framing of HTTP message bodies (RFC 9112, section 6), without I/O.

`request_framing` and `response_framing` decide from the head. A `BodyReader` then takes bytes in any portions and
returns the content without chunk marks. `chunk` and `last_chunk` render chunks."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from sandboxd.proxy.fair_share import LINE, TEXT
from sandboxd.proxy.http.http1 import (
    MAX_HEAD,
    MAX_LINES,
    OWN_HEADERS,
    Headers,
    HttpSyntaxError,
    RequestHead,
    ResponseHead,
    parse_header_line,
    tokens,
    values,
)
from sandboxd_client.records import dataclass

MAX_CHUNK_LINE: Final = 4096
LINES_AT_ONCE: Final = 128
"""Lines of a chunked body before others get a turn: chunks may hold one byte each."""
COST_AT_ONCE: Final = 400

_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_TRAILERS_NOT_PASSED: Final = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"content-type",
        b"cookie",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Fields of framing, routing or credentials, which are not forwarded in trailers (RFC 9110, section 6.5.1)."""


class BodyKind(Enum):
    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


@dataclass(frozen=True, slots=True)
class Framing:
    kind: BodyKind
    length: int = 0

    @property
    def has_body(self) -> bool:
        return self.kind is not BodyKind.NONE and not (self.kind is BodyKind.LENGTH and self.length == 0)


NO_BODY: Final = Framing(BodyKind.NONE)
_CHUNKED: Final = Framing(BodyKind.CHUNKED)
_UNTIL_CLOSE: Final = Framing(BodyKind.UNTIL_CLOSE)


def request_framing(head: RequestHead) -> Framing:
    """Return the framing of a request. Raises HttpSyntaxError."""
    lengths = values(head.headers, b"content-length")
    codings = tokens(head.headers, b"transfer-encoding")
    if values(head.headers, b"transfer-encoding"):
        if lengths:
            raise HttpSyntaxError("both Content-Length and Transfer-Encoding")
        if head.minor == 0:
            raise HttpSyntaxError("Transfer-Encoding in an HTTP/1.0 request")
        if codings != [b"chunked"] or len(values(head.headers, b"transfer-encoding")) > 1:
            raise HttpSyntaxError("transfer coding is not chunked", status=501, slug="transfer_coding")
        return _CHUNKED
    if not lengths:
        return NO_BODY
    if len(lengths) > 1:
        raise HttpSyntaxError("more than one Content-Length")
    return Framing(BodyKind.LENGTH, parse_length(lengths[0]))


def response_framing(head: ResponseHead, method: str) -> Framing:
    """Return the framing of the answer to `method`. Raises HttpSyntaxError."""
    if method == "HEAD" or head.status < 200 or head.status in (204, 304):
        return NO_BODY
    if values(head.headers, b"transfer-encoding"):
        if head.minor == 0:
            raise HttpSyntaxError("Transfer-Encoding in an HTTP/1.0 answer")
        if tokens(head.headers, b"transfer-encoding") != [b"chunked"]:
            raise HttpSyntaxError("transfer coding of the answer is not chunked")
        return _CHUNKED
    lengths = set(tokens(head.headers, b"content-length"))
    if len(lengths) > 1:
        raise HttpSyntaxError("answer has different Content-Lengths")
    if not values(head.headers, b"content-length"):
        return _UNTIL_CLOSE
    return Framing(BodyKind.LENGTH, parse_length(lengths.pop() if lengths else b""))


def parse_length(text: bytes) -> int:
    """Return a Content-Length. Raises HttpSyntaxError."""
    if not _LENGTH.fullmatch(text):
        raise HttpSyntaxError("Content-Length is not a number")
    return int(text)


class BodyReader:
    """Parser of one body.

    `receive` returns the content in some bytes. `done` marks a complete body, `rest` holds the bytes after it,
    `trailers` the forwardable trailer fields. `take_unread` returns bytes to be received again later, because the cost
    of a chunked body depends on its lines. `cost` is that of the last bytes (`proxy/fair_share.py`)."""

    def __init__(self, framing: Framing) -> None:
        self._kind = framing.kind
        self._left = framing.length
        self._state = "size"
        self._line = bytearray()
        self._trailer_size = 0
        self._trailers: list[tuple[bytes, bytes]] = []
        self._trailer_lines = 0
        self._unread = b""
        self.cost = 0
        self.done = not framing.has_body
        self.rest = b""

    @property
    def trailers(self) -> Headers:
        return tuple(self._trailers)

    def receive(self, data: bytes) -> bytes:
        """Return the content of these bytes, before `done`. Raises HttpSyntaxError."""
        if self._kind is BodyKind.UNTIL_CLOSE:
            return data
        if self._kind is BodyKind.LENGTH:
            content = data if len(data) <= self._left else data[: self._left]
            self._left -= len(content)
            if self._left == 0:
                self.done = True
                self.rest = data[len(content) :]
            return content
        return self._receive_chunked(data)

    def take_unread(self) -> bytes:
        data, self._unread = self._unread, b""
        return data

    def end(self) -> bool:
        """Record the end of the connection, and return whether the body is complete."""
        if self._kind is BodyKind.UNTIL_CLOSE:
            self.done = True
        return self.done

    def _receive_chunked(self, data: bytes) -> bytes:
        content: list[bytes] = []
        place = 0
        self.cost = lines = 0
        while place < len(data) and not self.done:
            if lines >= LINES_AT_ONCE or self.cost >= COST_AT_ONCE:
                self._unread = data[place:]
                break
            if self._state == "data":
                piece = data[place : place + self._left]
                place += len(piece)
                self._left -= len(piece)
                content.append(piece)
                if self._left == 0:
                    self._state = "data end"
                continue
            end = data.find(b"\n", place)
            self._line += data[place : len(data) if end < 0 else end + 1]
            if len(self._line) > (MAX_HEAD if self._state == "trailer" else MAX_CHUNK_LINE):
                raise HttpSyntaxError("line in a chunked body is too long")
            if end < 0:
                break
            place = end + 1
            line = bytes(self._line)
            self._line.clear()
            lines += 1
            self.cost += LINE + len(line) // TEXT
            if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
                raise HttpSyntaxError("line in a chunked body does not end with CRLF")
            self._take_line(line[:-2])
        if self.done:
            self.rest = data[place:]
        return content[0] if len(content) == 1 else b"".join(content)

    def _take_line(self, line: bytes) -> None:
        if self._state == "data end":
            if line:
                raise HttpSyntaxError("chunk is longer than its size says")
            self._state = "size"
        elif self._state == "size":
            match = _CHUNK_LINE.fullmatch(line)
            if match is None:
                raise HttpSyntaxError("chunk size is not a hexadecimal number")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True
        else:
            self._trailer_size += len(line)
            self._trailer_lines += 1
            if self._trailer_size > MAX_HEAD or self._trailer_lines > MAX_LINES:
                raise HttpSyntaxError("trailers are too long", status=431, slug="head_too_large")
            name, value = parse_header_line(line)
            if passes_in_trailers(name):
                self._trailers.append((name, value))


def passes_in_trailers(name: bytes) -> bool:
    """Return whether a trailer field of this name is forwarded."""
    return name.lower() not in _TRAILERS_NOT_PASSED and not name.lower().startswith(OWN_HEADERS)


def chunk(content: bytes) -> bytes:
    """Render non-empty content as one chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def last_chunk(trailers: Headers) -> bytes:
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % trailer for trailer in trailers) + b"\r\n"
