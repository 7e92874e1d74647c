"""Bundles of certificates that commands read."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxd.policy.model import NetworkPolicy
from sandboxd.runtime.certificate_trust import CertificateTrust, OwnTrust
from support.proxies import rules

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIBszCC+/==\n-----END CERTIFICATE-----"


async def test_a_bundle_has_certificates_and_nothing_else(tmp_path: Path) -> None:
    named = tmp_path / "keys.pem"
    named.write_text(f"secret\n-----BEGIN PRIVATE KEY-----\nsecret key\n-----END PRIVATE KEY-----\n{CERTIFICATE}\nlast")
    trust = CertificateTrust(str(tmp_path / "trust"), OwnTrust())
    await trust.prepare(NetworkPolicy(tls_terminate=rules("ok.test")), {"SSL_CERT_FILE": str(named)})
    texts = [(tmp_path / "trust" / name).read_text() for name in os.listdir(tmp_path / "trust")]
    assert any(CERTIFICATE in text for text in texts)
    assert not any(word in text for text in texts for word in ("secret", "PRIVATE", "\nlast"))
