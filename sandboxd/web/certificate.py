"""The certificate of a page that other machines may open: one that is given, or a self-signed one."""

from __future__ import annotations

import hashlib
import os
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from sandboxd.web.access import write_private
from sandboxd_client.errors import SandboxdError

DAYS: Final = 365
RENEW_BEFORE: Final = timedelta(days=30)


def context_of(certificate: str, key: str) -> tuple[ssl.SSLContext, str]:
    """Return the server's side of TLS, and the certificate's fingerprint. Raises SandboxdError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        with open(certificate, encoding="ascii") as file:
            pem = file.read()
        end = "-----END CERTIFICATE-----"
        first = pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(end) + len(end)]
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest().upper()
    except (OSError, ValueError) as error:
        raise SandboxdError(
            "certificate_unusable", f"cannot use the certificate {certificate}: {error}", "name PEM files of a pair"
        ) from error
    return context, ":".join(digest[place : place + 2] for place in range(0, len(digest), 2))


def made_in(directory: str, address: str) -> tuple[str, str]:
    """Return paths of a self-signed certificate for an address, and its key; make them unless there are good ones.

    Raises SandboxdError without the library, and OSError."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise SandboxdError(
            "tls_unavailable", "a certificate needs the Python package cryptography", "pip install 'sandboxd[web]'"
        ) from None
    both = os.path.join(directory, f"certificate-{address.replace(':', '-')}.pem")
    now = datetime.now(UTC)
    try:
        with open(both, "rb") as file:
            if x509.load_pem_x509_certificate(file.read()).not_valid_after_utc > now + RENEW_BEFORE:
                return both, both
    except (OSError, ValueError):
        pass
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sandboxd web")])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address)), x509.DNSName("localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=DAYS))
    builder = builder.add_extension(alternative, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(both, (made + secret).decode())
    return both, both
