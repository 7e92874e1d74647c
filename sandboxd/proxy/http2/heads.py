"""Heads of HTTP/2 as those of HTTP/1.1, on which the proxy decides, and back (RFC 9113, section 8). No I/O.

The library checks some of this and then ends the whole connection. Here a malformed head ends its stream, with the
reason for the client."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sandboxd.proxy.credentials.injector import NOTHING, Injection
from sandboxd.proxy.http.http1 import MAX_LINES, Headers, HttpSyntaxError, RequestHead, ResponseHead, tokens, values
from sandboxd.proxy.http.http_heads import to_client, to_origin
from sandboxd.proxy.http.http_target import Target, host_header
from sandboxd.proxy.http.message_body import NO_BODY, BodyKind, Framing, parse_length, passes_in_trailers

Fields = list[tuple[bytes, bytes]]

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_PATH: Final = re.compile(rb"[^\x00-\x20\x7f]+")
_STATUS: Final = re.compile(rb"[1-5][0-9][0-9]")
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NOT_RENDERED: Final = frozenset({b"host", b"connection"})


def request_head(fields: Iterable[tuple[bytes, bytes]]) -> RequestHead:
    """Return a request with its authority as Host. Raises HttpSyntaxError."""
    pseudo, headers = _divided(fields, (b":method", b":scheme", b":path", b":authority", b":protocol"))
    if b":protocol" in pseudo or pseudo.get(b":method") == b"CONNECT":
        raise HttpSyntaxError(
            "CONNECT within HTTP/2 is not supported",
            status=501,
            slug="method_refused",
            hint="use HTTP/1.1 for WebSocket",
        )
    method, scheme, path = (pseudo.get(name, b"") for name in (b":method", b":scheme", b":path"))
    if not _METHOD.fullmatch(method) or scheme != b"https" or not _PATH.fullmatch(path):
        raise HttpSyntaxError("request is without a method, the scheme https, or a path")
    hosts = values(headers, b"host")
    named = {value.lower() for value in (*hosts, *(pseudo[name] for name in (b":authority",) if name in pseudo))}
    if len(named) != 1 or len(hosts) > 1:
        raise HttpSyntaxError("request names no host, or two", slug="host_mismatch", status=421 if named else 400)
    rest = [(name, value) for name, value in headers if name != b"host"]
    return RequestHead(method.decode("ascii"), path, 1, ((b"Host", named.pop()), *rest))


def answer_head(fields: Iterable[tuple[bytes, bytes]]) -> ResponseHead:
    """Return an answer. Raises HttpSyntaxError."""
    pseudo, headers = _divided(fields, (b":status",))
    status = pseudo.get(b":status", b"")
    if not _STATUS.fullmatch(status) or status == b"101":
        raise HttpSyntaxError("answer has no status of HTTP/2")
    return ResponseHead(int(status), b"", 1, headers)


def framing_of(headers: Headers) -> Framing:
    """Return the length that a head tells of. Raises HttpSyntaxError."""
    lengths = set(tokens(headers, b"content-length"))
    if len(lengths) > 1:
        raise HttpSyntaxError("more than one Content-Length")
    return Framing(BodyKind.LENGTH, parse_length(lengths.pop())) if lengths else NO_BODY


def request_fields(head: RequestHead, framing: Framing, target: Target, injection: Injection = NOTHING) -> Fields:
    """Return the head of a request for the origin, with credentials."""
    path, headers = injection.request(target.path, to_origin(head, framing, target))
    return [
        (b":method", head.method.encode("ascii")),
        (b":scheme", b"https"),
        (b":authority", host_header(target)),
        (b":path", path),
        *_lower(headers),
    ]


def answer_fields(answer: ResponseHead, framing: Framing, injection: Injection = NOTHING) -> Fields:
    """Return the head of an answer for the client, without credentials."""
    length = [] if framing is NO_BODY else [(b"content-length", b"%d" % framing.length)]
    headers = [one for one in _lower(injection.answer(answer.status, to_client(answer))) if one[0] != b"content-length"]
    return [(b":status", b"%d" % answer.status), *headers, *length]


def trailer_fields(fields: Iterable[tuple[bytes, bytes]], injection: Injection = NOTHING) -> Fields:
    """Return the trailers that pass. Raises HttpSyntaxError."""
    return injection.trailers([one for one in _divided(fields, ())[1] if passes_in_trailers(one[0])])


def _lower(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    return [(name.lower(), value) for name, value in headers if name.lower() not in _NOT_RENDERED]


def _divided(fields: Iterable[tuple[bytes, bytes]], known: tuple[bytes, ...]) -> tuple[dict[bytes, bytes], Headers]:
    """Divide pseudo-headers from headers. Raises HttpSyntaxError."""
    pseudo: dict[bytes, bytes] = {}
    headers: Fields = []
    for name, value in fields:
        name, value = bytes(name), bytes(value)
        if not _VALUE.fullmatch(value):
            raise HttpSyntaxError("control character, or white space around a header value")
        if name.startswith(b":"):
            if headers or name in pseudo or name not in known:
                raise HttpSyntaxError("pseudo-header is unknown, repeated, or after a header")
            pseudo[name] = value
            continue
        if not _NAME.fullmatch(name):
            raise HttpSyntaxError("header name has characters that are not allowed")
        if name in _OF_CONNECTIONS or (name == b"te" and value.lower() != b"trailers"):
            raise HttpSyntaxError(f"header {name.decode('ascii')} is not one of HTTP/2")
        headers.append((name, value))
        if len(headers) > MAX_LINES:
            raise HttpSyntaxError(f"head has more than {MAX_LINES} header lines", status=431, slug="head_too_large")
    return pseudo, tuple(headers)
