"""Which servers the proxy believes, where TLS ends in it; both ends in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import SSL

from sandboxd.proxy.tls.faults import ServerUntrusted, TlsFault
from sandboxd.proxy.tls.server_channel import ServerChannel, ServerContext, fault_of_proof

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
MUST_STAPLE = x509.TLSFeature([x509.TLSFeatureType.status_request])


@dataclass(frozen=True)
class Made:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make(
    name: str,
    issuer: Made | None = None,
    *,
    names: tuple[str, ...] = (),
    begin: datetime = NOW - DAY,
    end: datetime = NOW + DAY,
    more: tuple[x509.ExtensionType, ...] = (),
) -> Made:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder(subject_name=subject, public_key=key.public_key(), serial_number=len(name) + 7)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if names:
        known = [x509.IPAddress(ip_address(one)) if one[0].isdigit() else x509.DNSName(one) for one in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(known), critical=False)
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return Made(key, builder.sign(key if issuer is None else issuer.key, hashes.SHA256()))


AUTHORITY = make("authority")
STRANGER = make("stranger")
RESPONDER = make("responder", AUTHORITY, more=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING]),))
OTHER = make("no responder", AUTHORITY)


def proof(
    of: Made,
    status: ocsp.OCSPCertStatus = ocsp.OCSPCertStatus.GOOD,
    *,
    signer: Made = AUTHORITY,
    begin: datetime = NOW - DAY,
    end: datetime = NOW + DAY,
) -> bytes:
    revoked = NOW - DAY if status is ocsp.OCSPCertStatus.REVOKED else None
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response(of.certificate, AUTHORITY.certificate, hashes.SHA256(), status, begin, end, revoked, None)
        .responder_id(ocsp.OCSPResponderEncoding.HASH, signer.certificate)
    )
    if signer is not AUTHORITY:
        builder = builder.certificates([signer.certificate])
    return builder.sign(signer.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@dataclass(frozen=True)
class Server:
    """A server with its certificate and proof, and what is said of it; "" if it is believed."""

    fault: str
    made: Made = field(default_factory=lambda: make("a", AUTHORITY, names=("ok.test",)))
    proof: Callable[[Made], bytes] = lambda made: b""
    name: str = "ok.test"
    protocol: int = SSL.TLS_SERVER_METHOD


def good(*names: str, name: str = "ok.test") -> Server:
    return Server("", make("a", AUTHORITY, names=names), name=name)


def stapling(fault: str, proof: Callable[[Made], bytes], *, required: bool = False) -> Server:
    return Server(fault, make("a", AUTHORITY, names=("ok.test",), more=(MUST_STAPLE,) if required else ()), proof)


REVOKED = ocsp.OCSPCertStatus.REVOKED
WANTED = "it requires a valid OCSP answer"
SERVERS = {
    "plain": good("ok.test"),
    "several names": good("b.test", "OK.test"),
    "wildcard": good("*.ok.test", name="a.ok.test"),
    "address": good("127.0.0.1", name="127.0.0.1"),
    "good proof": stapling("", proof),
    "expired": Server("has expired", make("a", AUTHORITY, names=("ok.test",), end=NOW - DAY / 2)),
    "not yet": Server("not yet valid", make("a", AUTHORITY, names=("ok.test",), begin=NOW + DAY / 2)),
    "wrong name": Server("hostname mismatch", make("a", AUTHORITY, names=("no.test",))),
    "no name": Server("hostname mismatch", make("ok.test", AUTHORITY)),
    "part of a label": Server("hostname mismatch", make("a", AUTHORITY, names=("o*.test", "*.test.test"))),
    "deep wildcard": Server("hostname mismatch", make("a", AUTHORITY, names=("*.ok.test",)), name="a.b.ok.test"),
    "wildcard of nothing": Server("hostname mismatch", make("a", AUTHORITY, names=("*.ok.test",))),
    "name as address": Server("hostname mismatch", make("a", AUTHORITY, names=("ok.test",)), name="127.0.0.1"),
    "unknown authority": Server("issuer certificate", make("a", STRANGER, names=("ok.test",))),
    "self-signed": Server("self-signed certificate", make("a", None, names=("ok.test",))),
    "leaf as authority": Server("issuer certificate", make("a", OTHER, names=("ok.test",))),
    "for clients": Server(
        "certificate purpose",
        make("a", AUTHORITY, names=("ok.test",), more=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),)),
    ),
    "revoked": stapling("revoked", lambda made: proof(made, REVOKED)),
    "revoked by a responder": stapling("revoked", lambda made: proof(made, REVOKED, signer=RESPONDER)),
    "no answer": stapling("", lambda made: ocsp.OCSPResponseBuilder.build_unsuccessful(
        ocsp.OCSPResponseStatus.TRY_LATER).public_bytes(serialization.Encoding.DER)),
    "required": stapling("", proof, required=True),
    "required, by a responder": stapling("", lambda made: proof(made, signer=RESPONDER), required=True),
    "required, absent": stapling(WANTED, lambda made: b"", required=True),
    "required, old": stapling(WANTED, lambda made: proof(made, begin=NOW - 3 * DAY, end=NOW - DAY), required=True),
    "required, early": stapling(WANTED, lambda made: proof(made, begin=NOW + DAY / 2), required=True),
    "required, of another": stapling(WANTED, lambda made: proof(OTHER), required=True),
    "required, not by a responder": stapling(WANTED, lambda made: proof(made, signer=OTHER), required=True),
    "required, unknown": stapling(WANTED, lambda made: proof(made, ocsp.OCSPCertStatus.UNKNOWN), required=True),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ServerContext:
    file: Path = tmp_path_factory.mktemp("ca") / "ca.pem"
    file.write_bytes(AUTHORITY.certificate.public_bytes(serialization.Encoding.PEM))
    return ServerContext((str(file),), ("h2", "http/1.1"))


def connect(
    shared: ServerContext, server: Server, *, prepare: Callable[[SSL.Context], object] = lambda c: None
) -> SSL.Connection:
    """Shake hands, and exchange a word. Raises as the channel does."""
    context = SSL.Context(server.protocol)
    context.use_certificate(server.made.certificate)
    context.use_privatekey(server.made.key)
    stapled = server.proof(server.made)
    context.set_ocsp_server_callback(lambda connection, data: stapled)
    context.set_alpn_select_callback(
        lambda connection, offered: b"h2" if b"h2" in offered else SSL.NO_OVERLAPPING_PROTOCOLS
    )
    prepare(context)
    end = SSL.Connection(context, None)
    end.set_accept_state()
    channel = ServerChannel(shared, server.name)
    complete = channel.shake_hands()
    for _ in range(10):
        if output := channel.take_output():
            end.bio_write(output)
        with contextlib.suppress(SSL.WantReadError):
            end.do_handshake()
        answer = b""
        with contextlib.suppress(SSL.WantReadError):
            answer = end.bio_read(1 << 16)
        if complete:
            channel.receive(answer)
            break
        try:
            complete = channel.shake_hands(answer)
        except ServerUntrusted:
            alert = channel.take_output()
            assert alert, "the server is told"
            raise
    end.bio_write(channel.send(b"ping") or b"")
    assert end.recv(10) == b"ping" and channel.protocol == "h2"
    end.sendall(b"x" * 70_000)
    assert len(channel.receive(end.bio_read(1 << 20))) == 70_000
    end.shutdown()
    assert channel.receive(end.bio_read(100)) == b"" and channel.ended
    return end


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_believed_or_its_fault_is_said(shared: ServerContext, name: str) -> None:
    server = SERVERS[name]
    if not server.fault:
        connect(shared, server)
        return
    with pytest.raises(ServerUntrusted, match=server.fault):
        connect(shared, server)


def test_a_proof_that_cannot_be_read_is_a_fault() -> None:
    chain = [SERVERS["plain"].made.certificate, AUTHORITY.certificate]
    assert "cannot be read" in fault_of_proof(b"broken", chain, NOW)
    assert fault_of_proof(b"", chain, NOW) == ""


def test_old_protocols_and_weak_ciphers_are_not_spoken(shared: ServerContext) -> None:
    for prepare in (
        lambda context: context.set_max_proto_version(SSL.TLS1_1_VERSION),
        lambda context: (
            context.set_max_proto_version(SSL.TLS1_2_VERSION),
            context.set_cipher_list(b"ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"),
        ),
        lambda context: Binding.lib.SSL_CTX_set1_curves_list(context._context, b"ffdhe8192"),
    ):
        with pytest.raises((TlsFault, SSL.Error)):
            connect(shared, SERVERS["plain"], prepare=prepare)
    end = connect(shared, SERVERS["plain"], prepare=lambda context: context.set_max_proto_version(SSL.TLS1_2_VERSION))
    assert end.get_protocol_version_name() == "TLSv1.2"
    assert not [name for name in SSL.Connection(shared.context, None).get_cipher_list() if name.startswith("DHE")]
