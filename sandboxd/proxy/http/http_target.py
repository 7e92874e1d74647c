"""Where an HTTP request wants to go, from its request line alone. Pure.

The authority of the request line is the only one that counts: it is what policy decides on and what is dialled, and the
Host header is written anew from it. So a Host header that says something else changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sandboxd.policy.hosts.host_patterns import Host, parse_wire_authority
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestHead

_ABSOLUTE: Final = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(.*)")
HTTP_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class Target:
    """`path` is the request target for the origin, b"" for CONNECT."""

    host: Host
    port: int
    path: bytes = b""


def authority_of(head: RequestHead) -> bytes:
    """The part of the request line that names the host, as it came: for reports about requests that cannot be read."""
    if head.method == "CONNECT":
        return head.target
    match = _ABSOLUTE.fullmatch(head.target)
    return match[2] if match else head.target


def parse_target(head: RequestHead) -> Target:
    """Host, port and path. Raises HostSyntaxError when the host cannot be read without doubt, HttpSyntaxError when the
    form of the request is not for a proxy."""
    if head.method == "CONNECT":
        host, port = parse_wire_authority(head.target)
        return Target(host, port)
    if head.method == "TRACE":
        raise HttpSyntaxError("TRACE is not passed on", status=405, slug="method_refused")
    if head.target.startswith(b"/") or head.target == b"*":
        raise HttpSyntaxError(
            "this is a proxy, not a server: the request line names no host",
            slug="origin_form",
            hint="send the whole URL in the request line, as clients do with http_proxy set, or use CONNECT",
        )
    match = _ABSOLUTE.fullmatch(head.target)
    if match is None:
        raise HttpSyntaxError("request target is not an absolute URL", slug="bad_target")
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    if scheme in (b"https", b"wss"):
        raise HttpSyntaxError(
            "https URLs are not fetched for a client",
            slug="https_absolute_form",
            hint="use CONNECT HOST:443, as clients do with https_proxy set",
        )
    if scheme not in (b"http", b"ws"):  # aiohttp asks a proxy for a plain WebSocket with its own scheme
        raise HttpSyntaxError("only http URLs are passed on", slug="bad_scheme", hint="use CONNECT HOST:PORT")
    if b"#" in authority + rest:
        raise HttpSyntaxError("fragment in the request target", slug="bad_target")
    if authority.endswith(b":"):
        authority = authority[:-1]  # RFC 3986, section 3.2.3: an empty port is the default
    host, port = parse_wire_authority(authority, HTTP_PORT)
    if not rest:
        # RFC 9112, section 3.2.4: OPTIONS of a URL without a path is about the server as a whole
        rest = b"*" if head.method == "OPTIONS" else b"/"
    elif rest.startswith(b"?"):
        rest = b"/" + rest
    return Target(host, port, rest)


def host_header(target: Target) -> bytes:
    """The Host header for the origin: the default port is left out, as every client does."""
    text = target.host.uri if target.port == HTTP_PORT else target.host.authority(target.port)
    return text.encode("ascii")
