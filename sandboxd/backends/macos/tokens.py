"""The password of one command for its proxies.

The proxies listen on ports of this machine, which every user can reach, so who asks has to show that he is the command.
The only way that clients take a password is in the value of the proxy variables; so that is where it stands, and it is
as secret as the environment of a process: other users cannot read it on macOS, the programs of the same user can. It is
in no argument list and in no file, and it is worth nothing once the command has ended, since its ports are closed then.
"""

from __future__ import annotations

import base64
import hmac
import secrets

USER = "sandboxd"


class ProxyPassword:
    """Made for one launch. `value` is URL-safe text. Its representation does not show it."""

    __slots__ = ("value",)

    def __init__(self, value: str | None = None) -> None:
        self.value = secrets.token_urlsafe(24) if value is None else value

    def __repr__(self) -> str:
        return "ProxyPassword(…)"

    def check(self, user: bytes, password: bytes) -> bool:
        """Whether these are our user name and this password, in constant time."""
        right_user = hmac.compare_digest(user, USER.encode("ascii"))
        return hmac.compare_digest(password, self.value.encode("ascii")) and right_user

    @property
    def authorization(self) -> str:
        """The value of a `Proxy-Authorization` field (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{USER}:{self.value}".encode("ascii")).decode("ascii")

    def authority(self, port: int) -> str:
        """`user:password@host:port`, as in a URL."""
        return f"{USER}:{self.value}@127.0.0.1:{port}"
