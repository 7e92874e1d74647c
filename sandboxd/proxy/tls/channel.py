"""One end of a TLS connection, without I/O: bytes in, bytes out.

The work is done by OpenSSL on memory buffers, through pyOpenSSL: Python's own module can neither ask for a proof
against revocation nor choose several groups. All input is decrypted as soon as it comes, so no content waits where a
look at the socket would not see it."""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL

from sandboxd.proxy.tls.faults import TlsFault

_lib: Final = Binding.lib
RECORD: Final = 16384
"""Most content of one record (RFC 8446, section 5.1)."""
_RELEASE_BUFFERS: Final = 0x10
_NO_RENEGOTIATION: Final = 1 << 30
_READ: Final = 4 * (RECORD + 256)
"""The size of reads of output: each is allocated."""
_CONTENT: Final = memoryview(bytearray(8 * RECORD))
"""Content that is being decrypted, until it is returned."""
_PLACE: Final = Binding.ffi.from_buffer(_CONTENT)


def new_context(method: int, ciphers: bytes, groups: bytes) -> SSL.Context:
    """Return a context with these suites of TLS 1.2 and groups, whatever OpenSSL is configured to do here."""
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | _NO_RENEGOTIATION)
    context.set_mode(_RELEASE_BUFFERS)
    context.set_cipher_list(ciphers)
    set_groups = getattr(_lib, "SSL_CTX_set1_curves_list", None)  # pyOpenSSL has no method for it
    if set_groups is None:
        context.set_tmp_ecdh(ec.SECP256R1())
    else:
        set_groups(context._context, groups)
    return context


class TlsChannel:
    """Feed `receive` with what the peer sent; send what `take_output` returns after each step.

    `ended` is set by the peer's close_notify. Every method raises TlsFault when the connection is broken; the alert
    for the peer is in `take_output` then."""

    def __init__(self, context: SSL.Context) -> None:
        self._tls = SSL.Connection(context, None)
        self.ended = False

    def shake_hands(self, data: bytes = b"") -> bool:
        """Take handshake bytes; return whether the handshake is complete."""
        self._feed(data)
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise self._fault(error) from None
        return True

    def _fault(self, error: SSL.Error) -> TlsFault:
        return TlsFault(reason(error))

    @property
    def asks(self) -> bool:
        """Return whether the peer asked for a certificate."""
        return False

    @property
    def protocol(self) -> str | None:
        """Return the protocol that ALPN chose."""
        return self._tls.get_alpn_proto_negotiated().decode("ascii", "replace") or None

    def receive(self, data: bytes) -> bytes:
        """Return the content of these bytes."""
        self._feed(data)
        tls, content, size = self._tls._ssl, b"", 0
        try:
            while True:
                if size > len(_CONTENT) - RECORD:
                    content, size = content + _CONTENT[:size], 0
                count = _lib.SSL_read(tls, _PLACE + size, RECORD)  # its method copies each record twice
                if count <= 0:
                    self._tls._raise_ssl_error(tls, count)
                size += count
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            self.ended = True
        except SSL.Error as error:
            raise self._fault(error) from None
        return content + _CONTENT[:size]

    def _feed(self, data: bytes) -> None:
        if data:
            self._tls.bio_write(data)  # all of it, into memory

    def send(self, content: bytes) -> bytes:
        """Return the bytes to send for some content."""
        try:
            self._tls.sendall(content)
        except SSL.Error as error:
            raise self._fault(error) from None
        return self.take_output()

    def end(self) -> bytes:
        """Return the bytes that tell the peer of the end."""
        try:
            self._tls.shutdown()
        except SSL.Error:  # the connection is broken
            return b""
        return self.take_output()

    def take_output(self) -> bytes:
        output: list[bytes] = []
        try:
            while not output or len(output[-1]) == _READ:
                output.append(self._tls.bio_read(_READ))
        except SSL.Error:  # nothing is left
            pass
        return output[0] if len(output) == 1 else b"".join(output)


def reason(error: SSL.Error) -> str:
    """Return OpenSSL's last reason."""
    found = error.args[0] if error.args else ()
    return str(found[-1][-1]) if isinstance(found, list) and found else str(error) or "it broke"
