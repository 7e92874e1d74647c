"""HTTP/2 in tunnels whose TLS ends in the proxy."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxd.policy.decision import Behavior, Reason
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.request_rules import parse_operations
from sandboxd.policy.model import NetworkPolicy, RequestRule
from sandboxd.proxy.tls.authority import Authority
from support.http2 import Peer, echo, http2_origin, secure
from support.proxies import SETTINGS, Proxies, rules, running_proxies

TLS = Path(__file__).with_name("tls")
SERVER = TLS / "server.pem"


def rule(action: str, *paths: str, methods: tuple[str, ...] = ()) -> RequestRule:
    operations = parse_operations(methods)
    return RequestRule(HostPattern.parse("ok.test"), Behavior(action), SETTINGS, f"{action} ok.test", operations, paths)


NETWORK = NetworkPolicy(
    requests=(rule("allow", "/me/**", methods=("read",)), rule("allow", "/me/up", methods=("POST",))),
    tls_terminate=rules("ok.test"),
)


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    return Authority([HostPattern.parse("ok.test")])


@contextlib.asynccontextmanager
async def connected(proxies: Proxies, authority: Authority, port: int, **how: bool) -> AsyncIterator[Peer]:
    """A client in a tunnel."""
    reader, writer = await proxies.tunnel(f"ok.test:{port}")
    await writer.start_tls(
        secure(ssl.create_default_context(cadata=authority.certificate)), server_hostname="ok.test"
    )
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    peer = Peer((reader, writer), **how)
    yield peer
    await peer.close()


async def test_each_request_is_decided_and_the_connection_goes_on(authority: Authority) -> None:
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        asked = {
            client.ask("GET", "/me/a", host, ("te", "trailers")): "200",
            client.ask("GET", "/you/a?key=1", host): "403",
            client.ask("DELETE", "/me/a", host): "403",
            client.ask("GET", "/me/../you", host): "403",
        }
        for number, status in asked.items():
            answer = await client.answer(number)
            assert answer.status == status and answer.reset is None, (number, answer)
            assert status == "200" or (b"Blocked by the sandbox" in answer.body and b"key=1" not in answer.body)
        upload = client.ask("POST", "/me/up", host, end=False)
        await client.send(upload, b"u" * 300_000)
        answer = await client.answer(upload)
        assert (answer.status, answer.size, answer.trailers) == ("200", 300_000, {"x-size": "300000"})
        assert origin.requests == ["GET /me/a", "POST /me/up"] and len(origin.peers) == 1
        assert [one.decision.reason for one in proxies.blocked] == [
            Reason.REQUEST_DENIED, Reason.REQUEST_DENIED, Reason.REQUEST_UNCLEAR
        ]  # fmt: skip
        assert client.gone is None
    assert proxies.server.share.held == 0
