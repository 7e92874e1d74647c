"""TLS greetings."""

from __future__ import annotations

import contextlib
import ssl


def client_hello(name: str | None) -> bytes:
    """What OpenSSL sends first to a server of that name. A malformed name is put in place of a proper one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    proper = name.replace("..", "-.") if name else None
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=proper)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    sent = outgoing.read()
    return sent if name is None or proper is None else sent.replace(proper.encode(), name.encode())
