"""HTTP/1.1 message heads as bytes (RFC 9112), strict, without I/O.

A proxy and a server that parse one byte stream differently allow request smuggling. So every ambiguous head is refused:
line ends other than CRLF, a folded header, a space before the colon, control characters, two lengths, a length with a
transfer coding. The proxy always renders heads anew and never copies them. Responses go to the sandboxed program
itself, so bare LF line ends and repeated equal lengths of old servers are accepted there.

`HeadReader` takes bytes in any portions and owns its buffer. `message_body.py` has the framing of bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sandboxd.errors import CallerError
from sandboxd.proxy.fair_share import LINE, TEXT
from sandboxd_client.records import dataclass

MAX_HEAD: Final = 65536
MAX_LINES: Final = 200
"""Lines of a head, and of the trailers of a body."""
OWN_HEADERS: Final = b"x-sandboxd-"
"""Lower-case prefix of the headers that only the proxy itself may send."""

Headers = tuple[tuple[bytes, bytes], ...]
"""Names as received, values without surrounding white space."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_TARGET: Final = re.compile(rb"[^\x00-\x20\x7f]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_VERSION: Final = re.compile(rb"HTTP/([0-9])\.([0-9])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([0-9]) ([1-9][0-9][0-9])(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""Headers about one connection (RFC 9110, section 7.6.1). Upgrade is restored where an upgrade is requested."""


class HttpSyntaxError(CallerError):
    """A malformed or ambiguous message; `status` is the answer to a request."""

    def __init__(self, reason: str, *, status: int = 400, slug: str = "http_malformed", hint: str = "") -> None:
        super().__init__(slug, reason, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: str
    target: bytes
    minor: int
    """1 for HTTP/1.1, 0 for HTTP/1.0."""
    headers: Headers


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    reason: bytes
    minor: int
    headers: Headers


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Return every value of the header `name` (lower case)."""
    return [value for found, value in headers if found.lower() == name]


def tokens(headers: Headers, name: bytes) -> list[bytes]:
    """Return the comma-separated members of all `name` headers, in lower case."""
    members = b",".join(values(headers, name)).lower().split(b",")
    return [member.strip(b" \t") for member in members if member.strip(b" \t")]


def end_to_end(headers: Headers, *, drop: Iterable[bytes] = ()) -> list[tuple[bytes, bytes]]:
    """Return the headers without hop-by-hop ones, those of Connection, and `drop`."""
    unwanted = HOP_BY_HOP.union(drop, tokens(headers, b"connection"))
    return [(name, value) for name, value in headers if name.lower() not in unwanted]


class HeadReader:
    """Parser of one head.

    `receive` returns the lines of a complete head, None before; the bytes after it are in `rest`. `strict_lines`
    refuses bare LF line ends. A malformed line is refused as soon as it ends, so that clients of another protocol do
    not wait."""

    def __init__(self, *, strict_lines: bool = True, limit: int = MAX_HEAD) -> None:
        self._strict = strict_lines
        self._limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._searched = 0
        self._lines = 0
        self._cost = 0
        self._first: bytes | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self.rest = b""

    @property
    def is_empty(self) -> bool:
        """Return whether only empty lines have arrived."""
        return self._first is None and self._start == len(self._buffer)

    def receive(self, data: bytes) -> tuple[bytes, Headers] | None:
        """Return first line and headers once complete. Raises HttpSyntaxError."""
        buffer = self._buffer
        buffer += data
        while (end := buffer.find(b"\n", self._searched)) >= 0:
            line = self._line(end)
            self._start = self._searched = end + 1
            self._lines += 1
            self._cost += LINE + len(line) // TEXT
            if self._lines > MAX_LINES + 1 and (line or self._first is None):  # plus the first line
                raise HttpSyntaxError(f"head has more than {MAX_LINES} header lines", status=431, slug="head_too_large")
            if self._first is None:
                # RFC 9112, section 2.2: ignore empty lines before a request, which old clients send
                self._first = self._check_first(line) if line else None
            elif line:
                self._headers.append(parse_header_line(line))
            else:
                self._check_size(end + 1)
                self.rest = bytes(buffer[end + 1 :])
                return self._first, tuple(self._headers)
        self._searched = len(buffer)
        self._check_size(len(buffer))
        beginning = bytes(buffer[self._start : self._start + 64])
        if self._first is None and beginning not in (b"", b"\r"):
            self._check_beginning(beginning)
        return None

    def take_cost(self) -> int:
        """Return the cost of reading since the last call (`proxy/fair_share.py`)."""
        cost, self._cost = self._cost, 0
        return cost

    def _line(self, end: int) -> bytes:
        line = bytes(self._buffer[self._start : end])
        if line.endswith(b"\r"):
            line = line[:-1]
        elif self._strict:
            raise HttpSyntaxError("line ends with a bare LF")
        if b"\r" in line:
            raise HttpSyntaxError("bare CR in the head")
        if b"\0" in line:
            raise HttpSyntaxError("NUL in the head")
        return line

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise HttpSyntaxError(f"head is longer than {self._limit} bytes", status=431, slug="head_too_large")

    def _check_first(self, line: bytes) -> bytes:
        return line

    def _check_beginning(self, beginning: bytes) -> None:
        """Check the bytes of an unfinished first line."""


def parse_header_line(line: bytes) -> tuple[bytes, bytes]:
    """Return name and value. Raises HttpSyntaxError."""
    if line[:1] in (b" ", b"\t"):
        raise HttpSyntaxError("folded header line (obs-fold)")
    name, colon, value = line.partition(b":")
    if not colon:
        raise HttpSyntaxError("header line without a colon")
    if name[-1:] in (b" ", b"\t"):
        raise HttpSyntaxError("white space between header name and colon")
    if not _TOKEN.fullmatch(name):
        raise HttpSyntaxError("header name has characters that are not allowed")
    value = value.strip(b" \t")
    if not _VALUE.fullmatch(value):
        raise HttpSyntaxError("control character in a header value")
    return name, value


class RequestReader(HeadReader):
    """Parser of one request head."""

    def receive_request(self, data: bytes) -> RequestHead | None:
        """Return the head once complete, None before. Raises HttpSyntaxError."""
        complete = self.receive(data)
        if complete is None:
            return None
        first, headers = complete
        method, target, version = first.split(b" ")
        head = RequestHead(method.decode("ascii"), target, int(version[-1:]), headers)
        if len(values(headers, b"host")) > 1:
            raise HttpSyntaxError("more than one Host header")
        return head

    def _check_first(self, line: bytes) -> bytes:
        parts = line.split(b" ")
        if len(parts) == 2 and parts[0] == b"GET":
            raise HttpSyntaxError("HTTP/0.9 is not supported", status=505, slug="http_version")
        if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
            raise HttpSyntaxError("request line is not METHOD TARGET HTTP/1.1")
        version = _VERSION.fullmatch(parts[2])
        if version is None:
            raise HttpSyntaxError("request line is not METHOD TARGET HTTP/1.1")
        if version[1] == b"2":
            raise HttpSyntaxError(
                "HTTP/2 to the proxy is not supported",
                status=505,
                slug="http_version",
                hint="use HTTP/1.1 to the proxy, and HTTP/2 inside CONNECT",
            )
        if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise HttpSyntaxError("HTTP version is not 1.0 or 1.1", status=505, slug="http_version")
        return line

    def _check_beginning(self, beginning: bytes) -> None:
        if beginning[:1] == b"\x16":
            raise HttpSyntaxError(
                "TLS handshake on the plain HTTP proxy port",
                hint="use http://, not https://, in the URL of the proxy",
            )
        if not _TOKEN.match(beginning):
            raise HttpSyntaxError("first bytes are not HTTP")


class ResponseReader(HeadReader):
    """Parser of one response head."""

    def __init__(self, *, limit: int = MAX_HEAD) -> None:
        super().__init__(strict_lines=False, limit=limit)

    def receive_response(self, data: bytes) -> ResponseHead | None:
        """Return the head once complete, None before. Raises HttpSyntaxError."""
        complete = self.receive(data)
        if complete is None:
            return None
        first, headers = complete
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise HttpSyntaxError("status line is not HTTP/1.1 STATUS REASON")
        return ResponseHead(int(match[2]), match[3] or b"", min(int(match[1]), 1), headers)

    def _check_first(self, line: bytes) -> bytes:
        if not _STATUS_LINE.fullmatch(line):
            raise HttpSyntaxError("status line is not HTTP/1.1 STATUS REASON")
        return line

    def _check_beginning(self, beginning: bytes) -> None:
        if not (beginning.startswith(b"HTTP/") or b"HTTP/".startswith(beginning)):
            raise HttpSyntaxError("the answer is not HTTP/1.1")


def render_request(method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _render(b"%b %b HTTP/1.1" % (method.encode("ascii"), target), headers)


BEGINNING: Final = b"HTTP/1.1 "
"""The beginning of everything that `render_response` returns."""


def render_response(status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _render(b"HTTP/1.1 %d %b" % (status, reason), headers)


def _render(first: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [first]
    lines += [b"%b: %b" % header for header in headers]
    lines += [b"", b""]
    return b"\r\n".join(lines)
