"""What clients are offered where TLS ends in the proxy; both ends in memory, the client by another OpenSSL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import SSL

from sandboxd.policy.hosts.host_patterns import HostPattern, parse_host
from sandboxd.proxy.tls.authority import Authority
from sandboxd.proxy.tls.client_channel import ClientChannel
from sandboxd.proxy.tls.faults import TlsFault

Prepare = Callable[[SSL.Context], object]
OK = parse_host("ok.test")
NEW = SSL.TLS1_2_VERSION
STRONG = {f"ECDHE-ECDSA-{one}" for one in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority([HostPattern.parse("ok.test"), HostPattern.parse("127.0.0.1"), HostPattern.parse("also.test")])


class Pair:
    """A connection by which a word was sent. Raises SSL.Error, TlsFault."""

    def __init__(self, proxy: ClientChannel, prepare: Prepare, earlier: Pair | None = None) -> None:
        self.own: SSL.Context = SSL.Context(SSL.TLS_CLIENT_METHOD) if earlier is None else earlier.own
        if earlier is None:
            prepare(self.own)
        self.client, self.proxy = SSL.Connection(self.own, None), proxy
        self.client.set_connect_state()
        if earlier is not None:
            self.client.set_session(earlier.session)
        complete, self.rounds = False, 0
        for _ in range(6):
            with contextlib.suppress(SSL.WantReadError):
                self.client.do_handshake()
                if complete:
                    break
            complete = complete or self.proxy.shake_hands(self.sent())
            self.rounds += 1
            if output := self.proxy.take_output():
                self.client.bio_write(output)
        self.client.send(b"ping")
        assert self.proxy.receive(self.sent()) == b"ping"
        self.client.bio_write(self.proxy.send(b"pong"))
        assert self.client.recv(10) == b"pong"
        self.is_resumed = bool(Binding.lib.SSL_session_reused(self.client._ssl))

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
    good = ("P-256", "X25519", "P-384:X25519:P-256", "ffdhe8192:P-256")
    table |= {name: (groups(name.encode()), True) for name in good}
    wrong = []
    for name, (prepare, expected) in table.items():
        try:
            pair = Pair(authority.channel_from(OK), prepare)
            assert pair.client.get_group_name() in ("x25519", "secp256r1"), name
        except (SSL.Error, TlsFault):
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
    pair = Pair(authority.channel_from(OK, server), lambda context: offer and context.set_alpn_protos(list(offer)))
    assert pair.client.get_alpn_proto_negotiated() == chosen


@pytest.mark.parametrize("first", [b"X25519:P-256", b"P-256:X25519", b"P-256"])
def test_no_round_trip_is_lost_about_groups(authority: Authority, first: bytes) -> None:
    assert Pair(authority.channel_from(OK), groups(first)).rounds == 2
    assert Pair(authority.channel_from(OK), groups(b"P-384:" + first)).rounds == 3


def test_nothing_is_negotiated_again_or_early(authority: Authority) -> None:
    """No renegotiation, no early data; sessions go on for their host alone, with tickets."""
    old = version(SSL.TLS1_2_VERSION)
    again = Pair(authority.channel_from(OK), lambda own: (old(own), own.set_cipher_list(b"ECDHE")))
    again.client.renegotiate()
    with contextlib.suppress(SSL.WantReadError):
        again.client.do_handshake()
    assert again.proxy.receive(again.sent()) == b""
    with pytest.raises(SSL.Error):  # no_renegotiation
        again.client.bio_write(again.proxy.take_output())
        again.client.do_handshake()

    def without_tickets(own: SSL.Context) -> None:
        old(own)
        own.set_options(SSL.OP_NO_TICKET)

    table: list[tuple[Prepare, bool]] = [(lambda own: None, True), (old, True), (without_tickets, False)]
    for prepare, goes_on in table:
        first = Pair(authority.channel_from(OK), prepare)
        assert Binding.lib.SSL_SESSION_get_max_early_data(first.session._session) == 0
        first.end()
        assert Pair(authority.channel_from(OK), prepare, first).is_resumed is goes_on
        for other in (authority.channel_from(parse_host("also.test")), authority.channel_from(OK, "h2")):
            assert not Pair(other, prepare, first).is_resumed


@pytest.mark.parametrize("name", ["ok.test", "127.0.0.1"])
def test_the_certificate_is_for_one_host_and_a_short_time(authority: Authority, name: str) -> None:
    pair = Pair(authority.channel_from(parse_host(name)), lambda own: None)
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
