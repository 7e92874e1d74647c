"""The certificate authority by which the proxy ends TLS for sandboxed commands.

Its key is in memory only, and no program outside the sandbox trusts it. It is constrained to the hosts for which TLS
may end, so that a certificate for another host would be refused even by a command that trusts it (RFC 5280, section
4.2.1.10); an entry `*` leaves it without constraints. Certificates for hosts are made when they are needed, for a few
days, beginning a day ago, since clocks differ."""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

from sandboxd.errors import HostError
from sandboxd.policy.hosts.host_patterns import Host, HostPattern
from sandboxd_client.records import dataclass

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, ExtensionType, GeneralName, Name
    from OpenSSL import SSL

    from sandboxd.proxy.tls.client_channel import ClientChannel
    from sandboxd.proxy.tls.server_channel import ServerChannel, ServerContext

NAME: Final = "sandboxd (this machine, sandboxed commands only)"
AUTHORITY_DAYS: Final = 30
HOST_DAYS: Final = 3
RENEW_BEFORE: Final = timedelta(days=1)
EARLIER: Final = timedelta(days=1)
MOST_HOSTS: Final = 256
"""Certificates that are kept; each takes about 40 KB with its context."""
HTTP1: Final = "http/1.1"
HTTP2: Final = "h2"


@dataclass(frozen=True, slots=True)
class AuthorityRecord:
    """An authority in the hand-over document: hosts, key and certificate as PEM."""

    hosts: tuple[str, ...]
    key: str
    certificate: str


class Authority:
    """An authority for the hosts of some patterns. Raises HostError `tls_unavailable` without its library.

    `believed` are the files and directories of authorities that servers are verified with, by default the system's."""

    def __init__(
        self,
        hosts: Sequence[HostPattern],
        believed: Sequence[str] = (),
        record: AuthorityRecord | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._clock = clock
        self._contexts: OrderedDict[tuple[str, str], tuple[datetime, SSL.Context]] = OrderedDict()
        x509, serialization, ec = _library()
        if record is None:
            self._key: EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
            self._certificate: Certificate = self._own_certificate(hosts)
        else:
            key: Any = serialization.load_pem_private_key(record.key.encode(), None)
            self._key, self._certificate = key, x509.load_pem_x509_certificate(record.certificate.encode())
        self.hosts = record.hosts if record else tuple(sorted({pattern.text for pattern in hosts}))
        self.certificate = self._certificate.public_bytes(serialization.Encoding.PEM).decode()
        """The certificate that commands trust, as PEM."""
        self._believed = tuple(believed)
        self._servers: dict[tuple[str, ...], ServerContext] = {}
        self._shared((HTTP1,))

    @property
    def record(self) -> AuthorityRecord:
        return AuthorityRecord(self.hosts, _pem_of(self._key), self.certificate)

    def _shared(self, offered: tuple[str, ...]) -> ServerContext:
        """Return what connections to servers with this offer share. Raises HostError."""
        from sandboxd.proxy.tls.server_channel import ServerContext

        if offered not in self._servers:
            self._servers[offered] = ServerContext(self._believed, offered)
        return self._servers[offered]

    def channel_to(self, host: Host, offered: tuple[str, ...]) -> ServerChannel:
        """Return the proxy's end of a connection to a server, which offers these protocols."""
        from sandboxd.proxy.tls.server_channel import ServerChannel

        return ServerChannel(self._shared(offered), host.name)

    def channel_from(self, host: Host, protocol: str = HTTP1) -> ClientChannel:
        """Return the proxy's end of a connection that a command makes to a host, for the protocol of the server."""
        from sandboxd.proxy.tls.client_channel import ClientChannel, client_context

        now, key = self._clock(), (host.name, protocol)
        found = self._contexts.get(key)
        if found is None or found[0] <= now:
            until = now + timedelta(days=HOST_DAYS)
            private, certificate = self._certify(host, until)
            context = client_context(private, (certificate, self._certificate), protocol)
            found = self._contexts[key] = until - RENEW_BEFORE, context
        self._contexts.move_to_end(key)
        while len(self._contexts) > MOST_HOSTS:
            self._contexts.popitem(last=False)
        return ClientChannel(found[1])

    def _own_certificate(self, hosts: Sequence[HostPattern]) -> Certificate:
        x509, _, _ = _library()
        extensions: list[ExtensionType] = [x509.BasicConstraints(ca=True, path_length=0)]
        if all(pattern.host is not None for pattern in hosts):
            extensions.append(_constraints(hosts))
        until = self._clock() + timedelta(days=AUTHORITY_DAYS)
        return self._sign(self._key.public_key(), _name(NAME), until, extensions, signs=True)

    def _certify(self, host: Host, until: datetime) -> tuple[EllipticCurvePrivateKey, Certificate]:
        """Return key and certificate of a host."""
        x509, _, ec = _library()
        key = ec.generate_private_key(ec.SECP256R1())
        name: GeneralName = x509.DNSName(host.name) if host.address is None else x509.IPAddress(host.address)
        extensions: list[ExtensionType] = [
            x509.BasicConstraints(ca=False, path_length=None),
            x509.SubjectAlternativeName([name]),
            x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]),
        ]
        return key, self._sign(key.public_key(), _name(host.name[:64]), until, extensions)

    def _sign(
        self, key: Any, subject: Name, until: datetime, extensions: Sequence[ExtensionType], *, signs: bool = False
    ) -> Certificate:
        x509, _, _ = _library()
        from cryptography.hazmat.primitives.hashes import SHA256

        usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": signs, "crl_sign": signs, "digital_signature": True}
        builder = (
            x509.CertificateBuilder(subject_name=subject, issuer_name=_name(NAME), public_key=key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._clock() - EARLIER)
            .not_valid_after(until)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension in extensions:
            critical = isinstance(extension, x509.BasicConstraints | x509.NameConstraints)
            builder = builder.add_extension(extension, critical=critical)
        certificate: Certificate = builder.sign(self._key, SHA256())
        return certificate


def java_store(certificates: Iterable[bytes]) -> bytes:
    """Return certificates as a store of Java (PKCS 12), without those that cannot be read."""
    x509, _, _ = _library()
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old authorities have serial numbers that are not allowed today
        for text in certificates:
            with contextlib.suppress(ValueError):
                certificate = x509.load_pem_x509_certificate(text)
                found.append(pkcs12.PKCS12Certificate(certificate, b"%d" % len(found)))
    return pkcs12.serialize_java_truststore(found, NoEncryption())


_USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _library() -> Any:
    try:
        import h2  # noqa: F401
        import OpenSSL  # noqa: F401
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise HostError(
            "tls_unavailable",
            "sandbox.network.tls needs the Python packages cryptography, h2 and pyOpenSSL, which are not installed",
            hint="pip install 'sandboxd[tls]'",
        ) from None
    return x509, serialization, ec


def _constraints(hosts: Sequence[HostPattern]) -> ExtensionType:
    """Permit the names of patterns, and what is below domains; exclude every name of a form that none of them has."""
    x509, _, _ = _library()
    named = sorted({pattern.host for pattern in hosts if pattern.host is not None}, key=lambda host: host.name)
    networks = [ip_network(host.address) for host in named if host.address is not None]
    permitted: list[GeneralName] = [x509.DNSName(host.name) for host in named if host.address is None]
    excluded: list[GeneralName] = [] if permitted else [x509.DNSName("")]
    permitted += map(x509.IPAddress, networks)
    for everything in map(ip_network, ("0.0.0.0/0", "::/0")):
        if all(network.version != everything.version for network in networks):
            excluded.append(x509.IPAddress(everything))
    constraints: ExtensionType = x509.NameConstraints(permitted, excluded or None)
    return constraints


def _name(text: str) -> Name:
    x509, _, _ = _library()
    name: Name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
    return name


def _pem_of(key: EllipticCurvePrivateKey) -> str:
    _, serialization, _ = _library()
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode()
