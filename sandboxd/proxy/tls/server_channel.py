"""The proxy's end of a TLS connection to a server, without I/O, which asks for a proof against revocation.

The proof is a stapled answer (OCSP; RFC 6066, section 8). A certificate is refused if the proof says that it is
revoked, or if it requires a proof (RFC 7633) and none is valid."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import SSL, crypto

from sandboxd.errors import HostError
from sandboxd.proxy.tls.channel import TlsChannel, new_context, reason
from sandboxd.proxy.tls.faults import ServerUntrusted, TlsFault
from sandboxd_client.records import dataclass

CIPHERS: Final = b"@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
GROUPS: Final = b"X25519:P-256:P-384:P-521"
"""Others, and DHE, let a server choose numbers that take OpenSSL a second, in which the daemon does nothing else."""
MOST_KNOWN: Final = 64
"""Certificates whose content is remembered."""
_FAULTS: Final = {
    9: "certificate is not yet valid",
    10: "certificate has expired",
    18: "self-signed certificate",
    19: "self-signed certificate in certificate chain",
    20: "unable to get local issuer certificate",
    21: "unable to verify the first certificate",
    23: "certificate revoked",
    24: "invalid CA certificate",
    26: "unsuitable certificate purpose",
    47: "permitted subtree violation",
    48: "excluded subtree violation",
    66: "certificate key is too weak",
    67: "CA certificate key is too weak",
    68: "CA signature digest algorithm is too weak",
}
"""Verification codes of OpenSSL (X509_STORE_CTX_get_error(3))."""


@dataclass(slots=True)
class _Check:
    """The name that a certificate must have, and why it is not believed."""

    name: str
    known: OrderedDict[tuple[str, bytes], tuple[bool, bool]]
    fault: str = ""
    requires_proof: bool = True
    asks: bool = False


class ServerContext:
    """The part that connections with the same offer of protocols share. Raises HostError.

    `believed` are files and directories of certificate authorities, by default the system's."""

    def __init__(self, believed: Sequence[str], offered: Sequence[str]) -> None:
        self.known: OrderedDict[tuple[str, bytes], tuple[bool, bool]] = OrderedDict()
        """Certificates seen, by name and digest: is it for the name, does it require a proof. Reading one is slow."""
        self.context = new_context(SSL.TLS_CLIENT_METHOD, CIPHERS, GROUPS)
        self.context.set_verify(SSL.VERIFY_PEER, _verify)
        self.context.set_alpn_protos([name.encode("ascii") for name in offered])
        self.context.set_ocsp_client_callback(_check_proof)
        self.context.set_info_callback(_watch)
        if not believed:
            self.context.set_default_verify_paths()
        for path in believed:
            try:
                self.context.load_verify_locations(*((None, path) if os.path.isdir(path) else (path, None)))
            except SSL.Error as error:
                raise HostError(
                    "tls_no_authorities",
                    f"{path} cannot be read as certificate authorities: {reason(error)}",
                    hint="correct SSL_CERT_FILE of the daemon, and run: sandboxd restart",
                ) from None


class ServerChannel(TlsChannel):
    """The end of a connection to the server with this name. It raises ServerUntrusted too."""

    def __init__(self, shared: ServerContext, name: str) -> None:
        super().__init__(shared.context)
        self._check = _Check(name, shared.known)
        self._tls.set_app_data(self._check)
        self._tls.set_connect_state()
        if not _is_address(name):
            self._tls.set_tlsext_host_name(name.encode("ascii"))
        self._tls.request_ocsp()

    def _fault(self, error: SSL.Error) -> TlsFault:
        return ServerUntrusted(self._check.fault) if self._check.fault else super()._fault(error)

    @property
    def asks(self) -> bool:
        """Return whether the server asked for a certificate, which it does not get."""
        return self._check.asks


def _watch(connection: SSL.Connection, where: int, _: int) -> None:
    """Note that the server asks for a certificate: it may end the connection later without saying why."""
    if where & SSL.SSL_CB_LOOP and b"certificate request" in connection.get_state_string():
        connection.get_app_data().asks = True


def _verify(connection: SSL.Connection, certificate: crypto.X509, code: int, depth: int, valid: int) -> bool:
    """Check one certificate of the chain, after OpenSSL has."""
    check = connection.get_app_data()
    fault = "" if valid else _FAULTS.get(code, f"verification code {code}")
    if not fault and depth == 0 and not _read(certificate, check):
        fault = f"hostname mismatch, certificate is not valid for {check.name!r}"
    check.fault = check.fault or fault
    return not fault


def _read(certificate: crypto.X509, check: _Check) -> bool:
    """Return whether a certificate is for the name, and note whether it requires a proof."""
    key = check.name, crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
    found = check.known.get(key)
    if found is None:
        read = certificate.to_cryptography()
        try:
            found = _is_for(read, check.name), _requires_proof(read)
        except ValueError:
            return False
        check.known[key] = found
        if len(check.known) > MOST_KNOWN:
            check.known.popitem(last=False)
    check.requires_proof = found[1]
    return found[0]


def _is_for(certificate: x509.Certificate, name: str) -> bool:
    """Return whether a certificate names a host (RFC 9525, section 6): wildcards stand for one whole first label."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    if _is_address(name):
        return ip_address(name) in names.get_values_for_type(x509.IPAddress)
    parent = name.partition(".")[2]
    wanted = {name, f"*.{parent}"} if "." in parent else {name}
    return any(one.lower().rstrip(".") in wanted for one in names.get_values_for_type(x509.DNSName))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _check_proof(connection: SSL.Connection, data: bytes, _: object) -> bool:
    check = connection.get_app_data()
    if data or check.requires_proof:
        chain = connection.get_verified_chain(as_cryptography=True) or []
        check.fault = fault_of_proof(data, chain, datetime.now(UTC)) if chain else "no verified chain"
    return not check.fault


def fault_of_proof(data: bytes, chain: Sequence[x509.Certificate], now: datetime) -> str:
    """Return why a chain is not believed, for a stapled answer about its first certificate; empty if it is."""
    leaf = chain[0]
    try:
        found = ocsp.load_der_ocsp_response(data) if data else None
        if found is not None and found.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            found = None
        if found is not None and found.serial_number != leaf.serial_number:
            found = None
        if found is not None and found.certificate_status is ocsp.OCSPCertStatus.REVOKED:
            return "certificate revoked, as the server's own OCSP answer says"
        required = _requires_proof(leaf)
        good = found is not None and found.certificate_status is ocsp.OCSPCertStatus.GOOD and len(chain) > 1
        if required and not (good and found is not None and _is_valid(found, chain[1], now)):
            return "it requires a valid OCSP answer, and the server sent none"
    except ValueError:
        return "the server's OCSP answer cannot be read"
    return ""


def _requires_proof(certificate: x509.Certificate) -> bool:
    try:
        features = certificate.extensions.get_extension_for_class(x509.TLSFeature).value
    except x509.ExtensionNotFound:
        return False
    return x509.TLSFeatureType.status_request in features


def _is_valid(answer: ocsp.OCSPResponse, issuer: x509.Certificate, now: datetime) -> bool:
    """Return whether an answer is fresh, and signed by the issuer or for it."""
    end = answer.next_update_utc
    if answer.this_update_utc > now or (end is not None and end < now):
        return False
    signers = [issuer]
    for one in answer.certificates:
        try:
            one.verify_directly_issued_by(issuer)
            usage = one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            continue
        if ExtendedKeyUsageOID.OCSP_SIGNING in usage and one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            signers.append(one)
    return any(_has_signed(signer, answer) for signer in signers)


def _has_signed(signer: x509.Certificate, answer: ocsp.OCSPResponse) -> bool:
    key, hashed = signer.public_key(), answer.signature_hash_algorithm
    try:
        if isinstance(key, rsa.RSAPublicKey) and hashed is not None:
            key.verify(answer.signature, answer.tbs_response_bytes, padding.PKCS1v15(), hashed)
        elif isinstance(key, ec.EllipticCurvePublicKey) and hashed is not None:
            key.verify(answer.signature, answer.tbs_response_bytes, ec.ECDSA(hashed))
        else:
            return False
    except InvalidSignature:
        return False
    return True
