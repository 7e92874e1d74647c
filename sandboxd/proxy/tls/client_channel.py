"""The proxy's end of a TLS connection to a client, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.x509 import Certificate
from OpenSSL import SSL

from sandboxd.proxy.tls.channel import TlsChannel, new_context

CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2; those of 1.3 are all as good."""
GROUPS: Final = b"X25519:P-256"
"""Most clients send a key for the first with their greeting, which saves a round trip. Some others take OpenSSL a
second, and would be the client's choice."""


def client_context(key: EllipticCurvePrivateKey, chain: Sequence[Certificate], protocol: str) -> SSL.Context:
    """Return what connections of clients to one host share; `protocol` is what the server speaks."""
    context = new_context(SSL.TLS_SERVER_METHOD, CIPHERS, GROUPS)
    context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # tickets need no memory
    context.use_privatekey(key)
    context.use_certificate(chain[0])
    for one in chain[1:]:
        context.add_extra_chain_cert(one)
    wanted = protocol.encode("ascii")

    def choose(_: SSL.Connection, offered: list[bytes]) -> Any:
        return wanted if wanted in offered else SSL.NO_OVERLAPPING_PROTOCOLS

    context.set_alpn_select_callback(choose)
    return context


class ClientChannel(TlsChannel):
    """The end of a connection to a client, with the certificate of its context."""

    def __init__(self, context: SSL.Context) -> None:
        super().__init__(context)
        self._tls.set_accept_state()
