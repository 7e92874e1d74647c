"""The target of an HTTP request, from its request line alone.

Policy decides on the authority of the request line, which is also dialled and rendered as the Host header. So a
different Host header of the client has no effect. Pure."""

from __future__ import annotations

import re
from typing import Final

from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, parse_wire_authority
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestHead, values
from sandboxd_client.records import dataclass

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443
_ABSOLUTE: Final = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(.*)")


@dataclass(frozen=True, slots=True)
class Target:
    """The parsed target; `path` is that for the origin, b"" for CONNECT."""

    host: Host
    port: int
    path: bytes = b""
    default_port: int = HTTP_PORT


def authority_of(head: RequestHead) -> bytes:
    """Return the host part of the request line as received, for reports."""
    if head.method == "CONNECT":
        return head.target
    match = _ABSOLUTE.fullmatch(head.target)
    return match[2] if match else head.target


def parse_target(head: RequestHead) -> Target:
    """Return host, port and path.

    Raises HostSyntaxError for an ambiguous host, HttpSyntaxError for a request form that is not for a proxy."""
    if head.method == "CONNECT":
        host, port = parse_wire_authority(head.target)
        return Target(host, port)
    if head.method == "TRACE":
        raise HttpSyntaxError("TRACE is not supported", status=405, slug="method_refused")
    if head.target.startswith(b"/") or head.target == b"*":
        raise HttpSyntaxError(
            "request line names no host, as for a server instead of a proxy",
            slug="origin_form",
            hint="send the whole URL in the request line, as clients with http_proxy do, or use CONNECT",
        )
    match = _ABSOLUTE.fullmatch(head.target)
    if match is None:
        raise HttpSyntaxError("request target is not an absolute URL", slug="bad_target")
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    if scheme in (b"https", b"wss"):
        raise HttpSyntaxError(
            "https URLs in the request line are not supported",
            slug="https_absolute_form",
            hint="use CONNECT HOST:443, as clients with https_proxy do",
        )
    if scheme not in (b"http", b"ws"):  # aiohttp sends ws URLs to a proxy for a plain WebSocket
        raise HttpSyntaxError("URL scheme is not http", slug="bad_scheme", hint="use CONNECT HOST:PORT")
    if b"#" in authority + rest:
        raise HttpSyntaxError("fragment in the request target", slug="bad_target")
    if authority.endswith(b":"):
        authority = authority[:-1]  # RFC 3986, section 3.2.3: an empty port is the default
    host, port = parse_wire_authority(authority, HTTP_PORT)
    return Target(host, port, _path(head, rest))


def _path(head: RequestHead, rest: bytes) -> bytes:
    """Return the path for the origin, from what follows the authority of a URL."""
    if not rest:
        # RFC 9112, section 3.2.4: OPTIONS of a URL without a path concerns the whole server
        return b"*" if head.method == "OPTIONS" else b"/"
    return b"/" + rest if rest.startswith(b"?") else rest


def parse_tunnelled_target(head: RequestHead, host: Host, port: int, *, secure: bool) -> Target:
    """Return the target of a request inside a tunnel to `host`, as a server gets it.

    Servers take whole URLs as well (RFC 9112, section 3.2.2), and get the path. Raises HttpSyntaxError for another
    form, and for a URL or Host header that means another host: the server might obey it."""
    default = HTTPS_PORT if secure else HTTP_PORT
    if head.method in ("CONNECT", "TRACE"):
        raise HttpSyntaxError(f"{head.method} is not supported here", status=405, slug="method_refused")
    if b"#" in head.target:
        raise HttpSyntaxError("fragment in the request target", slug="bad_target")
    path, named = _path_inside(head, host, port, secure), values(head.headers, b"host")
    try:
        meant = [parse_wire_authority(one, default) for one in named]
    except HostSyntaxError as error:
        raise HttpSyntaxError(f"Host header is no host: {error.reason}", slug="host_mismatch", status=421) from None
    if meant != [(host, port)]:
        raise HttpSyntaxError(
            "Host header is not the host of the connection",
            slug="host_mismatch",
            status=421,
            hint=f"send Host: {host.uri if port == default else host.authority(port)}",
        )
    return Target(host, port, path, default)


def _path_inside(head: RequestHead, host: Host, port: int, secure: bool) -> bytes:
    url = _ABSOLUTE.fullmatch(head.target)
    if url is None or url[1].lower() not in ((b"https", b"wss") if secure else (b"http", b"ws")):
        if not head.target.startswith(b"/") and not (head.target == b"*" and head.method == "OPTIONS"):
            raise HttpSyntaxError("request target is not a path", slug="bad_target")
        return head.target
    try:
        is_other = parse_wire_authority(url[2], HTTPS_PORT if secure else HTTP_PORT) != (host, port)
    except HostSyntaxError:
        is_other = True
    if is_other:
        raise HttpSyntaxError("the URL is not of the host of the connection", slug="host_mismatch", status=421)
    return _path(head, url[3])


def host_header(target: Target) -> bytes:
    """Return the Host header for the origin, without the default port, as clients do."""
    text = target.host.uri if target.port == target.default_port else target.host.authority(target.port)
    return text.encode("ascii")
