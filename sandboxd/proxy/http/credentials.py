"""User name and password of a proxy client (RFC 9110, section 11.7; RFC 7617).

On Linux a listener is inside its sandbox, where no other process reaches it. On macOS it is a port of the machine, so
the command has a password and clients without it are refused."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from sandboxd.proxy.http.http1 import Headers, values

Check = Callable[[bytes, bytes], bool]
"""Returns whether a user name and password are right, in constant time."""


def is_authorized(headers: Headers, check: Check) -> bool:
    """Return whether a request has exactly one, correct `Proxy-Authorization`."""
    found = values(headers, b"proxy-authorization")
    if len(found) != 1:
        return False
    credentials = parse_basic(found[0])
    return credentials is not None and check(*credentials)


def parse_basic(value: bytes) -> tuple[bytes, bytes] | None:
    """Return user name and password of a `Basic` field, None for any other value."""
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(b" "), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None
