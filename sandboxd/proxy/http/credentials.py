"""User name and password of a proxy's client (RFC 9110, section 11.7; RFC 7617). Pure.

On Linux a listener lives inside its sandbox, and nobody else can reach it. On macOS it is a port of this machine, so
the command has a password, and everybody without it is turned away.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from sandboxd.proxy.http.http1 import Headers, values

Check = Callable[[bytes, bytes], bool]
"""Whether a user name and a password are right. Compares in constant time."""


def is_authorized(headers: Headers, check: Check) -> bool:
    """Whether a request carries the right `Proxy-Authorization`. Exactly one such field counts."""
    found = values(headers, b"proxy-authorization")
    if len(found) != 1:
        return False
    credentials = parse_basic(found[0])
    return credentials is not None and check(*credentials)


def parse_basic(value: bytes) -> tuple[bytes, bytes] | None:
    """User name and password of a `Basic` field, None for anything else."""
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(b" "), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None
