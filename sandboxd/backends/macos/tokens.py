"""The password of one command for its proxies.

Every user can reach the proxies' ports, so the client has to prove that it is the command. Clients take a password only
from the proxy variables, which are as secret as the environment of a process: on macOS other users cannot read it, the
programs of the same user can. No argument list and no file holds it, and it is worthless once the command has ended and
its ports are closed."""

from __future__ import annotations

import base64
import hmac
import secrets

USER = "sandboxd"


class ProxyPassword:
    """The password of one launch, URL-safe. Its representation does not show it."""

    __slots__ = ("value",)

    def __init__(self, value: str | None = None) -> None:
        self.value = secrets.token_urlsafe(24) if value is None else value

    def __repr__(self) -> str:
        return "ProxyPassword(…)"

    def check(self, user: bytes, password: bytes) -> bool:
        """Return whether user name and password are right, in constant time."""
        right_user = hmac.compare_digest(user, USER.encode("ascii"))
        return hmac.compare_digest(password, self.value.encode("ascii")) and right_user

    @property
    def authorization(self) -> str:
        """The value of a `Proxy-Authorization` field (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{USER}:{self.value}".encode("ascii")).decode("ascii")

    def authority(self, port: int) -> str:
        """`user:password@host:port`, as in a URL."""
        return f"{USER}:{self.value}@127.0.0.1:{port}"
