"""Bundles of certificates that commands read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from sandboxd.plan.trust import trust_variables
from sandboxd.policy.model import NetworkPolicy
from sandboxd.runtime.certificate_trust import CertificateTrust, OwnTrust
from support.proxies import rules

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIBszCC+/==\n-----END CERTIFICATE-----"


@pytest.mark.filterwarnings("ignore")  # about certificates of the system
async def test_a_bundle_has_certificates_and_nothing_else(tmp_path: Path) -> None:
    named = tmp_path / "keys.pem"
    named.write_text(f"secret\n-----BEGIN PRIVATE KEY-----\nsecret key\n-----END PRIVATE KEY-----\n{CERTIFICATE}\nlast")
    trust = CertificateTrust(str(tmp_path / "trust"), OwnTrust())
    await trust.prepare(NetworkPolicy(tls_terminate=rules("ok.test")), {"SSL_CERT_FILE": str(named)})
    names = os.listdir(tmp_path / "trust")
    texts = [(tmp_path / "trust" / name).read_text("latin-1") for name in names]
    assert sorted(name[-4:] for name in names) == [".p12", ".p12", ".pem", ".pem"]
    for name in (name for name in names if name.endswith(".p12")):
        found = pkcs12.load_pkcs12((tmp_path / "trust" / name).read_bytes(), None).additional_certs
        assert sum("sandboxed commands" in str(one.certificate.subject) for one in found) == 1 < len(found)
    assert any(CERTIFICATE in text for text in texts)
    assert not any(word in text for text in texts for word in ("secret", "PRIVATE", "\nlast"))


def test_a_store_that_java_is_told_of_stays_in_force() -> None:
    store = "-Djavax.net.ssl.trustStore="
    for caller, ours in (
        ({}, True),
        ({"JAVA_TOOL_OPTIONS": f"-Xmx1g {store}/own"}, False),
        ({"MAVEN_OPTS": store}, False),
    ):
        java = trust_variables("/trust", ("ok.test",), caller, "-Xmx1g").get("JAVA_TOOL_OPTIONS", "")
        assert (store in java, java.startswith("-Xmx1g ")) == (ours, ours)
