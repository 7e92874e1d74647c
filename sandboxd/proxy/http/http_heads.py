"""Changes to the headers of requests and answers on their way through the proxy.

Hop-by-hop headers are removed, framing and Host are rendered anew, and an upgrade is restored. No I/O."""

from __future__ import annotations

from sandboxd.proxy.http.http1 import OWN_HEADERS, Headers, RequestHead, ResponseHead, end_to_end, tokens, values
from sandboxd.proxy.http.http_target import Target, host_header
from sandboxd.proxy.http.message_body import NO_BODY, BodyKind, Framing


def upgrade_of(headers: Headers) -> list[bytes]:
    """Return the Upgrade values of a request whose Connection names Upgrade."""
    return values(headers, b"upgrade") if b"upgrade" in tokens(headers, b"connection") else []


def wants_close(head: RequestHead) -> bool:
    """Return whether the client connection ends with this request."""
    return head.minor == 0 or b"close" in tokens(head.headers, b"connection") + tokens(
        head.headers, b"proxy-connection"
    )


def logs_in(headers: Headers) -> bool:
    """Return whether a request may log in its connection, and not only itself (RFC 4559)."""
    return any(value.lower().startswith((b"ntlm", b"negotiate")) for value in values(headers, b"authorization"))


def origin_stays(answer: ResponseHead) -> bool:
    """Return whether the connection to the origin is reusable after this answer."""
    both = values(answer.headers, b"transfer-encoding") and values(answer.headers, b"content-length")
    return answer.minor == 1 and not both and b"close" not in tokens(answer.headers, b"connection")


def to_origin(head: RequestHead, framing: Framing, target: Target) -> list[tuple[bytes, bytes]]:
    """Return the request headers for the origin.

    Hop-by-hop headers are removed, proxy credentials among them. Host and framing are rendered anew."""
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
    """Return the answer headers for the client.

    Answers to HEAD and with 304 keep the length, which describes the content that GET would return. Offers of another
    protocol or place for later requests (RFC 7838) are removed: nothing could be decided there."""
    headers = [
        (name, value)
        for name, value in end_to_end(answer.headers, drop=(b"content-length", b"alt-svc"))
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
