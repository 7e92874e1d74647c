"""The certificate authorities that a command trusts where TLS ends in the proxy (`network.tls`). Pure.

A bundle is the system's authorities, those of a file that the caller's variables name, and the daemon's own. The daemon
writes it before a plan needs it (`runtime.certificate_trust`); its name says what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sandboxd.plan.environment import CERTIFICATE_NAMES, JAVA_NAMES, certificates_of
from sandboxd.policy.model import NetworkPolicy

SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/lib/ssl/cert.pem",
)
"""Where systems keep all their authorities in one file: Debian, Fedora, SUSE, Alpine, macOS."""
TRUST_NAMES = (*CERTIFICATE_NAMES, "DENO_CERT")
"""Variables that name a file of authorities for a program or library."""
_JAVA_STORE = "-Djavax.net.ssl.trustStore="


def terminated_hosts(network: NetworkPolicy) -> tuple[str, ...]:
    """Return the patterns of hosts for which TLS ends in the proxy."""
    return tuple(sorted({rule.pattern.text for rule in network.tls_terminate}))


def bundle_path(directory: str, hosts: tuple[str, ...], files: tuple[str, ...] = ()) -> str:
    """Return the path of the bundle for hosts, with the authorities of the caller's files."""
    parts = "\0".join(("", *hosts, "", *files))
    return f"{directory}/{hashlib.sha256(parts.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.pem"


def callers_files(caller: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files of authorities that the caller's variables name, without those of the system."""
    named = {path for _, path in certificates_of(caller) if path not in SYSTEM_BUNDLES}
    return tuple(sorted(named))


def java_store_path(bundle: str) -> str:
    """Return the path of a bundle as a store of Java (PKCS 12)."""
    return f"{bundle.removesuffix('.pem')}.p12"


def trust_variables(
    directory: str, hosts: tuple[str, ...], caller: Mapping[str, str], java_options: str
) -> dict[str, str]:
    """Return the variables of a command that trusts the bundle. A store that the caller's Java names stays in force."""
    bundle = bundle_path(directory, hosts, callers_files(caller))
    variables = dict.fromkeys(TRUST_NAMES, bundle)
    if not any(_JAVA_STORE in caller.get(name, "") for name in ("JAVA_TOOL_OPTIONS", *JAVA_NAMES)):
        options = f"{java_options} {_JAVA_STORE}{java_store_path(bundle)} -Djavax.net.ssl.trustStoreType=PKCS12"
        variables["JAVA_TOOL_OPTIONS"] = options.strip()
    return variables
