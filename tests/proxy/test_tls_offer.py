"""What clients are offered where TLS ends in the proxy; both ends in memory, the client by another OpenSSL."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import SSL

from sandboxd.policy.hosts.host_patterns import HostPattern, parse_host
from sandboxd.proxy.tls.authority import MOST_SESSIONS, Authority
from sandboxd.proxy.tls.channel import TlsChannel

Prepare = Callable[[SSL.Context], object]
OK = parse_host("ok.test")
NEW = SSL.TLS1_2_VERSION
STRONG = {f"ECDHE-ECDSA-{one}" for one in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority([HostPattern.parse("ok.test"), HostPattern.parse("127.0.0.1"), HostPattern.parse("also.test")])


class Pair:
    """A connection by which a word was sent. Raises SSL.Error, ssl.SSLError."""

    def __init__(self, context: ssl.SSLContext, prepare: Prepare, earlier: Pair | None = None) -> None:
        self.before = context.session_stats()["hits"]
        self.own: SSL.Context = SSL.Context(SSL.TLS_CLIENT_METHOD) if earlier is None else earlier.own
        prepare(self.own)
        self.client, self.proxy = SSL.Connection(self.own, None), TlsChannel(context, server_side=True)
        self.client.set_connect_state()
        if earlier is not None:
            self.client.set_session(earlier.session)
        complete = False
        for _ in range(6):
            with contextlib.suppress(SSL.WantReadError):
                self.client.do_handshake()
                if complete:
                    break
            complete = complete or self.proxy.shake_hands(self.sent())
            if output := self.proxy.take_output():
                self.client.bio_write(output)
        self.client.send(b"ping")
        assert self.proxy.receive(self.sent()) == b"ping"
        self.client.bio_write(self.proxy.send(b"pong"))
        assert self.client.recv(10) == b"pong"
        self.is_resumed = context.session_stats()["hits"] > self.before

    def sent(self) -> bytes:
        try:
            return self.client.bio_read(1 << 16)
        except SSL.WantReadError:
            return b""

    @property
    def session(self) -> SSL.Session:
        session = self.client.get_session()
        assert session is not None
        return session

    def end(self) -> None:
        self.client.shutdown()
        self.proxy.receive(self.sent())
        self.proxy.end()


def version(number: int) -> Prepare:
    return lambda context: (
        context.set_cipher_list(b"ALL:COMPLEMENTOFALL:@SECLEVEL=0"),
        context.set_min_proto_version(number),
        context.set_max_proto_version(number),
    )


def cipher(name: str) -> Prepare:
    return lambda context: (
        context.set_max_proto_version(SSL.TLS1_2_VERSION),
        context.set_cipher_list(f"{name}:@SECLEVEL=0".encode()),
    )


def groups(names: bytes) -> Prepare:
    return lambda context: Binding.lib.SSL_CTX_set1_curves_list(context._context, names)


def test_versions_ciphers_and_groups(authority: Authority) -> None:
    """Whatever OpenSSL is configured to offer. Certain groups would take it a second for each handshake."""
    names = SSL.Context(SSL.TLS_CLIENT_METHOD)
    names.set_cipher_list(b"ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    every = {name for name in SSL.Connection(names, None).get_cipher_list() if not name.startswith("TLS_")}
    assert len(every) > 50 and every > STRONG
    table: dict[str, tuple[Prepare, bool]] = {name: (cipher(name), name in STRONG) for name in every}
    versions = {"TLS1": False, "TLS1_1": False, "TLS1_2": True, "TLS1_3": True}
    table |= {name: (version(getattr(SSL, f"{name}_VERSION")), good) for name, good in versions.items()}
    table |= {name: (groups(name.encode()), False) for name in ("ffdhe2048", "ffdhe8192", "X448", "ffdhe8192:X448")}
    table |= {name: (groups(name.encode()), True) for name in ("P-256", "X25519:P-256", "ffdhe8192:X25519:P-256")}
    wrong = []
    for name, (prepare, expected) in table.items():
        try:
            pair = Pair(authority.context_for(OK), prepare)
            assert pair.client.get_group_name() == "secp256r1", name
        except (SSL.Error, ssl.SSLError):
            pair = None
        if (pair is not None) is not expected:
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize(
    ("server", "offer", "chosen"),
    [
        ("h2", (b"h2", b"http/1.1"), b"h2"),
        ("http/1.1", (b"h2", b"http/1.1"), b"http/1.1"),
        ("http/1.1", (b"http/1.0", b"x"), b""),
        ("http/1.1", (), b""),
    ],
)
def test_the_protocol_is_offered_alone(
    authority: Authority, server: str, offer: tuple[bytes, ...], chosen: bytes
) -> None:
    pair = Pair(authority.context_for(OK, server), lambda context: offer and context.set_alpn_protos(list(offer)))
    assert pair.client.get_alpn_proto_negotiated() == chosen


def test_nothing_is_negotiated_again_or_early(authority: Authority) -> None:
    """No renegotiation, no early data; sessions go on for their host alone, and few are kept."""
    old, context = version(SSL.TLS1_2_VERSION), authority.context_for(OK)
    again = Pair(context, lambda own: (old(own), own.set_cipher_list(b"ECDHE")))
    again.client.renegotiate()
    with contextlib.suppress(SSL.WantReadError):
        again.client.do_handshake()
    assert again.proxy.receive(again.sent()) == b""
    with pytest.raises(SSL.Error):  # no_renegotiation
        again.client.bio_write(again.proxy.take_output())
        again.client.do_handshake()

    first = Pair(context, lambda own: None)
    assert Binding.lib.SSL_SESSION_get_max_early_data(first.session._session) == 0
    first.end()
    assert Pair(context, lambda own: None, first).is_resumed
    for other in (authority.context_for(parse_host("also.test")), authority.context_for(OK, "h2")):
        assert not Pair(other, lambda own: None, first).is_resumed

    def without_tickets(own: SSL.Context) -> None:
        version(SSL.TLS1_2_VERSION)(own)
        own.set_options(SSL.OP_NO_TICKET)

    kept = [0]
    for _ in range(MOST_SESSIONS + 10):
        Pair(authority.context_for(OK), without_tickets).end()
        kept.append(authority.context_for(OK).session_stats()["number"])
    assert 0 < kept[-1] < max(kept) <= MOST_SESSIONS


@pytest.mark.parametrize("name", ["ok.test", "127.0.0.1"])
def test_the_certificate_is_for_one_host_and_a_short_time(authority: Authority, name: str) -> None:
    pair = Pair(authority.context_for(parse_host(name)), lambda own: None)
    leaf, issuer = (one.to_cryptography() for one in pair.client.get_peer_cert_chain() or [])
    leaf.verify_directly_issued_by(issuer)
    now, find = datetime.now(UTC), leaf.extensions.get_extension_for_class
    assert now - timedelta(days=2) < leaf.not_valid_before_utc < now < leaf.not_valid_after_utc
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(days=4)
    assert leaf.not_valid_after_utc <= issuer.not_valid_after_utc
    assert leaf.version is x509.Version.v3 and leaf.serial_number.bit_length() > 64
    assert isinstance(key := leaf.public_key(), ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    assert leaf.signature_hash_algorithm is not None and leaf.signature_hash_algorithm.name == "sha256"
    [found] = find(x509.SubjectAlternativeName).value
    assert str(found.value) == name
    assert find(x509.BasicConstraints).critical and not find(x509.BasicConstraints).value.ca
    assert list(find(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    usage = find(x509.KeyUsage)
    assert usage.critical and usage.value.digital_signature
    assert not (usage.value.key_cert_sign or usage.value.key_encipherment)
    signs = issuer.extensions.get_extension_for_class(x509.KeyUsage).value
    assert signs.key_cert_sign and issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert issuer.extensions.get_extension_for_class(x509.NameConstraints).critical
