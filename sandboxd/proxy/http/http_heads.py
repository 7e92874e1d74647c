"""What becomes of the headers of a request and of its answer on their way through the proxy. No I/O.

What speaks about one connection only stays behind, the framing and Host are written anew, and an upgrade is put back.
"""

from __future__ import annotations

from sandboxd.proxy.http.http1 import OWN_HEADERS, Headers, RequestHead, ResponseHead, end_to_end, tokens, values
from sandboxd.proxy.http.http_target import Target, host_header
from sandboxd.proxy.http.message_body import NO_BODY, BodyKind, Framing


def upgrade_of(headers: Headers) -> list[bytes]:
    """The protocols that a request offers to switch to: the Upgrade values, when Connection names Upgrade as well."""
    return values(headers, b"upgrade") if b"upgrade" in tokens(headers, b"connection") else []


def wants_close(head: RequestHead) -> bool:
    """Whether the client connection ends with this request."""
    return head.minor == 0 or b"close" in tokens(head.headers, b"connection") + tokens(
        head.headers, b"proxy-connection"
    )


def origin_stays(answer: ResponseHead) -> bool:
    """Whether the connection to the origin can be used again after this answer."""
    both = values(answer.headers, b"transfer-encoding") and values(answer.headers, b"content-length")
    return answer.minor == 1 and not both and b"close" not in tokens(answer.headers, b"connection")


def to_origin(head: RequestHead, framing: Framing, target: Target) -> list[tuple[bytes, bytes]]:
    """The request's headers as they go on: hop-by-hop ones removed (credentials for a proxy among them), Host and the
    framing written anew."""
    drop = [b"host", b"content-length"] + ([b"expect"] if head.minor == 0 else [])
    headers = [(b"Host", host_header(target)), *end_to_end(head.headers, drop=drop)]
    if framing.kind is BodyKind.LENGTH:
        headers.append((b"Content-Length", b"%d" % framing.length))
    elif framing.kind is BodyKind.CHUNKED:
        headers.append((b"Transfer-Encoding", b"chunked"))
    connection = []
    if upgrades := upgrade_of(head.headers):
        connection.append(b"Upgrade")
        headers += [(b"Upgrade", value) for value in upgrades]
    if b"trailers" in tokens(head.headers, b"te"):
        connection.append(b"TE")
        headers.append((b"TE", b"trailers"))
    if connection:
        headers.append((b"Connection", b", ".join(connection)))
    return headers


def to_client(
    answer: ResponseHead, framing: Framing = NO_BODY, *, chunked: bool = False, close: bool = False
) -> list[tuple[bytes, bytes]]:
    """The answer's headers as they go on. To HEAD and with 304 the length stays, as it tells about the content that a
    GET would give."""
    headers = [
        (name, value)
        for name, value in end_to_end(answer.headers, drop=(b"content-length",))
        if not name.lower().startswith(OWN_HEADERS)
    ]
    if framing.kind is BodyKind.LENGTH:
        headers.append((b"Content-Length", b"%d" % framing.length))
    elif chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
    elif framing.kind is BodyKind.NONE and answer.status >= 200 and answer.status != 204:
        headers += [(b"Content-Length", length) for length in tokens(answer.headers, b"content-length")[:1]]
    if close:
        headers.append((b"Connection", b"close"))
    return headers
