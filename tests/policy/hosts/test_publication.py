"""Published ports: their spelling, and the policy on them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.launch_recipe import HTTP_PORT, SOCKS_PORT
from sandboxd.backends.linux.network.capture_rules import DNS_PORT, LISTENER_PORT
from sandboxd.errors import CallerError, PolicyError
from sandboxd.policy.hosts.publication import SANDBOX_PORTS, Publication, check_publications
from sandboxd.policy.model import NetworkPolicy, PortRange

V4, V6 = ip_address("127.0.0.1"), ip_address("::1")


@pytest.mark.parametrize(
    ("text", "publication"),
    [
        ("3000", Publication(V4, 3000, 3000)),
        ("8080:3000", Publication(V4, 8080, 3000)),
        ("0:3000", Publication(V4, 0, 3000)),
        ("127.0.0.1:8080:3000", Publication(V4, 8080, 3000)),
        ("127.0.0.1:8080", Publication(V4, 8080, 8080)),
        ("localhost:8080", Publication(V4, 8080, 8080)),
        ("LocalHost:8080:1", Publication(V4, 8080, 1)),
        ("127.0.0.5:1:2", Publication(ip_address("127.0.0.5"), 1, 2)),
        ("127.1:8080:3000", Publication(V4, 8080, 3000)),
        ("[::1]:8080:3000", Publication(V6, 8080, 3000)),
        ("[::1]:8080", Publication(V6, 8080, 8080)),
        ("65535:65535", Publication(V4, 65535, 65535)),
        ("/run/me/web.sock:3000", Publication(V4, 0, 3000, "/run/me/web.sock")),
        ("/a b:1:3000", Publication(V4, 0, 3000, "/a b:1")),
    ],
)
def test_what_is_written(text: str, publication: Publication) -> None:
    assert Publication.parse(text) == publication
    assert Publication.parse(str(publication)) == publication


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "0", "3000:0", "65536", "1:65536", "99999", "-1", "3000:", ":3000", "3000:3000:3000", "3000/tcp",
     "1-2", " 3000", "3000\n", "::1:8080", "[::1:8080", "::1]:80:80", "[::1]", "\N{ARABIC-INDIC DIGIT THREE}000",
     "/run/x", "/run/x:", "/run/x/:1", "/:1", "/run/x:0", "/run/x:65536", "/run\0x:1", f"/{'x' * 107}:1", "./x:1",
     "127.0.0.1", "a b:1:2", "127.0.0.1:1:2:3", "[]:1:2", "1,2",
     pytest.param("a" * 100_000, id="long")],
)  # fmt: skip
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(CallerError) as raised:
        Publication.parse(text)
    assert raised.value.slug == "publish_invalid"
    assert "[HOST:]PORT[:INNER]" in raised.value.hint or "shorter path" in raised.value.hint


@pytest.mark.parametrize(
    "text", ["0.0.0.0:80:80", "[::]:80", "192.168.1.5:80:80", "ok.test:80:80", "*:80".replace("*", "a.b"), "[::2]:1:2"]
)
def test_only_this_machine_reaches_it(text: str) -> None:
    with pytest.raises(CallerError) as raised:
        Publication.parse(text)
    assert raised.value.slug == "publish_not_loopback"


@given(st.text(alphabet="0123456789:.[]al ", max_size=24))
def test_anything_is_a_loopback_port_or_an_error(text: str) -> None:
    try:
        found = Publication.parse(text)
    except CallerError:
        return
    assert found.address.is_loopback and 0 <= found.port <= 65535 and 1 <= found.inner <= 65535


def test_it_is_the_users_settings_that_permit_it() -> None:
    wanted = [Publication(V4, 8080, 3000)]
    check_publications(NetworkPolicy(), [])
    check_publications(NetworkPolicy(allow_local_binding=True), wanted)
    with pytest.raises(PolicyError) as raised:
        check_publications(NetworkPolicy(), wanted)
    assert raised.value.slug == "local_binding_denied" and "allowLocalBinding" in raised.value.hint


@pytest.mark.parametrize(("first", "last", "free"), [(3000, 3000, False), (2999, 3001, False), (8080, 8080, True)])
def test_a_port_that_stands_for_the_hosts_is_not_one_to_publish(first: int, last: int, free: bool) -> None:
    network = NetworkPolicy(allow_local_binding=True, allow_local_ports=(PortRange(first, last),))
    wanted = [Publication(V4, 8080, 3000)]
    if free:
        check_publications(network, wanted)
        return
    with pytest.raises(PolicyError) as raised:
        check_publications(network, wanted)
    assert raised.value.slug == "publish_conflict"


@pytest.mark.parametrize("outer", ["8080", "127.0.0.2:8080", "/run/me/x.sock"])
@pytest.mark.parametrize("port", sorted(SANDBOX_PORTS))
def test_the_sandbox_own_proxy_is_not_published(outer: str, port: int) -> None:
    with pytest.raises(PolicyError) as raised:
        check_publications(NetworkPolicy(allow_local_binding=True), [Publication.parse(f"{outer}:{port}")])
    assert raised.value.slug == "publish_conflict"


def test_every_port_of_the_sandbox_own_is_in_the_table() -> None:
    assert {LISTENER_PORT, DNS_PORT, HTTP_PORT, SOCKS_PORT} == SANDBOX_PORTS
