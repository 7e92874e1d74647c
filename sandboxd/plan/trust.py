"""The certificate authorities that a command trusts where TLS ends in the proxy (`network.tls`). Pure.

A bundle is the system's authorities, those of a file that the caller's variables name, and the daemon's own. The daemon
writes it before a plan needs it (`runtime.certificate_trust`); its name says what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sandboxd.plan.environment import CERTIFICATE_NAMES, certificates_of
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


def trust_variables(directory: str, hosts: tuple[str, ...], caller: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command that trusts the bundle."""
    return dict.fromkeys(TRUST_NAMES, bundle_path(directory, hosts, callers_files(caller)))
