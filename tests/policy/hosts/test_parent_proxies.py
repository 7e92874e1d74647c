"""Parent proxies: URLs, NO_PROXY, and the choice for each connection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.hosts.egress import describe_egress, way_out_warnings
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.policy.hosts.parent_proxies import (
    NO_PROXIES,
    ParentProxy,
    Protocol,
    UpstreamError,
    choose_parent,
    parse_no_proxy,
    parse_parent,
    read_environment,
    without_password,
)
from sandboxd.policy.model import NetworkPolicy


@pytest.mark.parametrize(
    ("text", "shown", "user", "password"),
    [
        ("http://proxy.test:3128", "http://proxy.test:3128", None, ""),
        ("HTTP://Proxy.Test.:3128/", "http://proxy.test:3128", None, ""),
        ("http://proxy.test", "http://proxy.test:80", None, ""),
        ("http://[::1]:8080", "http://[::1]:8080", None, ""),
        ("http://me:s%40c%3Aret@10.0.0.1:8080", "http://10.0.0.1:8080", "me", "s@c:ret"),
        ("http://me@proxy.test:1", "http://proxy.test:1", "me", ""),
        ("socks5://proxy.test", "socks5://proxy.test:1080", None, ""),
        ("socks5h://a:b@proxy.test:9", "socks5h://proxy.test:9", "a", "b"),
        (" direct ", "direct", None, ""),
    ],
)
def test_urls(text: str, shown: str, user: str | None, password: str) -> None:
    found = parse_parent(text)
    assert (str(found), found.user, found.password) == (shown, user, password)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a URL"),
        ("proxy.test:3128", "not a URL"),
        ("ftp://proxy.test", "not a URL"),
        ("http://", "not a URL"),
        ("http://proxy.test:0", "not a URL"),
        ("http://proxy.test:99999", "not a URL"),
        ("http://proxy.test:80/path", "not a URL"),
        ("http://proxy.test:80?a", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://pro..xy:1", "no host name"),
        ("https://proxy.test:3128", "over TLS"),
        ("http://wpad.test/proxy.pac", "PAC"),
        ("http://wpad.test/wpad.dat", "PAC"),
        ("pac+http://wpad.test/x", "PAC"),
        ("file:///etc/proxy.pac", "PAC"),
        ("http://me%0d%0a:x@proxy.test:1", "control characters"),
        ("http://m%3Ae:x@proxy.test:1", "colon"),
        (f"socks5://{'a' * 256}:x@proxy.test:1", "too long"),
    ],
)
def test_what_is_no_proxy_we_can_use(text: str, words: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse_parent(text)
    assert words in caught.value.message and caught.value.hint


@given(st.text(max_size=60))
def test_any_text_is_a_proxy_or_an_error_and_shows_no_password(text: str) -> None:
    for given_text in (text, f"http://u:hunter2{text}@p.test:1", f"u:hunter2{text}@p.test"):
        try:
            found = parse_parent(given_text, bare=True)
        except UpstreamError as error:
            shown = error.message + error.hint
        else:
            shown = f"{found} {found!r}"
        assert "hunter2" not in shown
    assert "hunter2" not in without_password(f"http://u:hunter2{text}@p.test:1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://p.test:1", "http://p.test:1"),
        ("http://u:p@p.test:1", "http://***@p.test:1"),
        ("http://u:p@ss@p.test:1", "http://***@p.test:1"),
        ("u:p@p.test:1", "***@p.test:1"),
        ("direct", "direct"),
        ("", ""),
    ],
)
def test_urls_without_their_password(text: str, shown: str) -> None:
    assert without_password(text) == shown


NO_PROXY = "corp.test, .dotted.test *.star.test 10.0.0.0/8,192.168.1.1 [::1] fd00::/8 only.test:8080 bad..name,"


@pytest.mark.parametrize(
    ("host", "port", "exempt"),
    [
        ("corp.test", 443, True),
        ("a.b.corp.test", 443, True),
        ("xcorp.test", 443, False),
        ("dotted.test", 1, True),
        ("a.dotted.test", 1, True),
        ("star.test", 1, True),
        ("a.star.test", 1, True),
        ("10.255.0.1", 1, True),
        ("11.0.0.1", 1, False),
        ("192.168.1.1", 1, True),
        ("192.168.1.2", 1, False),
        ("::1", 1, True),
        ("fd00::5", 1, True),
        ("only.test", 8080, True),
        ("a.only.test", 8080, True),
        ("only.test", 443, False),
        ("test", 1, False),
        ("bad", 1, False),
    ],
)
def test_no_proxy(host: str, port: int, exempt: bool) -> None:
    assert parse_no_proxy(NO_PROXY).matches(parse_host(host), port) is exempt


def test_no_proxy_of_everything_and_of_nothing() -> None:
    host = parse_host("a.test")
    assert parse_no_proxy("*").matches(host, 1)
    for text in ("", " , ", "..", "a.test:99999999"):
        assert not parse_no_proxy(text).matches(host, 1), text


@given(st.text(max_size=40))
def test_any_text_can_be_no_proxy(text: str) -> None:
    assert parse_no_proxy(text).matches(parse_host("a.test"), 1) in (True, False)


@pytest.mark.parametrize(
    ("environment", "plain", "other"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": "p.test:1"}, "http://p.test:1", None),
        ({"HTTPS_PROXY": "http://p.test:1"}, None, "http://p.test:1"),
        ({"http_proxy": "l.test:1", "HTTP_PROXY": "u.test:1"}, "http://l.test:1", None),
        ({"https_proxy": "", "HTTPS_PROXY": "u.test:1"}, None, "http://u.test:1"),
        ({"all_proxy": "socks5h://s.test"}, "socks5h://s.test:1080", "socks5h://s.test:1080"),
        ({"ALL_PROXY": "a.test:1", "HTTPS_PROXY": "h.test:1"}, "http://a.test:1", "http://h.test:1"),
        ({"HTTPS_PROXY": "https://p.test:1"}, None, "unusable"),
    ],
)
def test_precedence_of_the_variables(environment: dict[str, str], plain: str | None, other: str | None) -> None:
    found = read_environment(environment)
    assert [None if proxy is None else str(proxy) for proxy in (found.plain, found.other)] == [plain, other]


SETTING = ParentProxy(Protocol.HTTP, parse_host("set.test"), 1)
VARIABLES = read_environment({"HTTP_PROXY": "p.test:1", "HTTPS_PROXY": "o.test:1", "NO_PROXY": "no.test"})


@pytest.mark.parametrize(
    ("setting", "host", "plain", "expected"),
    [
        (None, "a.test", True, "http://p.test:1"),
        (None, "a.test", False, "http://o.test:1"),
        (SETTING, "a.test", True, "http://set.test:1"),
        (SETTING, "a.test", False, "http://set.test:1"),
        (ParentProxy(Protocol.DIRECT), "a.test", False, None),
        (SETTING, "x.no.test", False, None),
        (SETTING, "10.0.0.1", False, "http://set.test:1"),
        (SETTING, "127.0.0.1", False, None),
        (SETTING, "::ffff:127.0.0.1", False, None),
        (SETTING, "169.254.169.254", False, None),
        (SETTING, "localhost", False, None),
        (SETTING, "a.localhost", False, None),
        (SETTING, "metadata.google.internal", True, None),
        (SETTING, "192.0.2.7", False, None),
    ],
)
def test_the_way_out(setting: ParentProxy | None, host: str, plain: bool, expected: str | None) -> None:
    own = [parse_host("192.0.2.7").address]
    of_host = [address for address in own if address is not None]
    found = choose_parent(setting, VARIABLES, parse_host(host), 443, plain=plain, host_addresses=of_host)
    assert (None if found is None else str(found)) == expected


def test_without_settings_and_variables_no_proxy_is_used() -> None:
    assert choose_parent(None, NO_PROXIES, parse_host("a.test"), 443, plain=False) is None


@pytest.mark.parametrize(
    ("setting", "environment", "warned"),
    [
        ("http://p.test:1", {}, 1), ("socks5h://p.test", {"HTTPS_PROXY": "http://q.test"}, 1),
        ("socks5://p.test", {"HTTPS_PROXY": "http://q.test"}, 0), ("direct", {"HTTPS_PROXY": "http://q.test"}, 0),
        ("", {"HTTPS_PROXY": "http://q.test"}, 1), ("", {"ALL_PROXY": "http://q.test"}, 1), ("", {}, 0),
        ("", {"http_proxy": "http://a.test", "ALL_PROXY": "socks5h://q.test"}, 2),
    ],
)  # fmt: skip
def test_a_rule_that_a_proxy_keeps_from_being_looked_at_is_told(
    setting: str, environment: dict[str, str], warned: int
) -> None:
    parent = parse_parent(setting, "parentProxy") if setting else None
    network = NetworkPolicy(denied_addresses=("10.0.0.0/8",), parent_proxy=parent)
    found = way_out_warnings(network, read_environment(environment))
    assert len(found) == warned and all("deniedResolvedAddresses" in text for text in found)
    assert set(found) <= set(describe_egress(network, read_environment(environment)))
    assert not way_out_warnings(replace(network, denied_addresses=()), read_environment(environment))
