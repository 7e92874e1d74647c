"""The host parser and the patterns: one canonical form, nothing ambiguous."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.policy.hosts.host_patterns import (
    Host,
    HostPattern,
    HostPatternError,
    HostSyntaxError,
    parse_authority,
    parse_host,
    parse_wire_authority,
    parse_wire_host,
    quote,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ok.test", "ok.test"),
        ("OK.Test", "ok.test"),
        ("ok.test.", "ok.test"),
        ("localhost", "localhost"),
        ("_dmarc.ok.test", "_dmarc.ok.test"),
        ("a--b.ok.test", "a--b.ok.test"),
        ("ends-.ok.test", "ends-.ok.test"),
        ("1.2.3.4.ok.test", "1.2.3.4.ok.test"),
        ("0xg.ok", "0xg.ok"),
        # international names, and what the mapping turns into ASCII
        ("bücher.test", "xn--bcher-kva.test"),
        ("BÜCHER.TEST", "xn--bcher-kva.test"),
        ("xn--bcher-kva.test", "xn--bcher-kva.test"),
        ("XN--BCHER-KVA.TEST", "xn--bcher-kva.test"),
        ("straße.test", "xn--strae-oqa.test"),
        ("ok\u3002test", "ok.test"),
        ("ok\uff0etest", "ok.test"),
        ("ok\uff61test", "ok.test"),
        ("\uff4f\uff4b.test", "ok.test"),
        ("ok.te\u00adst", "ok.test"),
        # IPv4 in its spellings
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.0.0.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0177.0.0.01", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("\uff11\uff12\uff17.0.0.1", "127.0.0.1"),
        # IPv6
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("[2001:DB8:0:0::0:1]", "2001:db8::1"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ("[::ffff:7f00:1]", "127.0.0.1"),
        ("[0:0:0:0:0:ffff:127.0.0.1]", "127.0.0.1"),
    ],
)
def test_canonical_form(text: str, name: str) -> None:
    host = parse_host(text)
    assert host.name == name
    assert (host.address is not None) == ((name[0].isdigit() and not name.endswith("ok.test")) or ":" in name) or (
        name == "0xg.ok"
    )
    assert parse_host(host.uri) == host, "the canonical form reads as itself"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".ok.test",
        "ok..test",
        "ok.test..",
        "a" * 64 + ".test",
        ".".join(["a" * 49] * 6),
        "a" * 2000,
        "-ok.test",
        "user@no.test",
        "ok.test@no.test",
        "ok.test:80",
        "ok.test/",
        "ok.test\\",
        "ok test",
        " ok.test",
        "ok.test ",
        "ok.test\t",
        "ok.test\r\nX: y",
        "no.test\0.ok.test",
        "ok%2etest",
        "no.test%00.ok.test",
        "ok.test?",
        "ok.test#",
        "*.ok.test",
        "ok,test",
        "[ok.test]",
        "[127.0.0.1]",
        "[::1",
        "::1]",
        "[::1%lo]",
        "[fe80::1%25eth0]",
        "fe80::1%1",
        "[::1]x",
        "[]",
        ":::",
        "1.2.3.4.5",
        "256.256.256.256",
        "1.2.3.256",
        "4294967296",
        "08.1.1.1",
        "0x",
        "0x.1",
        "1..1",
        "ok.1",
        "ok.0x1",
        "ok.0x",
        "xn--",
        "xn--ok-.test",
        "xn--\x7f.test",
        "℀.test",
        "☃.test",
        "\ud800.test",
        "a\u202eb.test",
    ],
)
def test_ambiguous_or_malformed_is_refused(text: str) -> None:
    with pytest.raises(HostSyntaxError) as caught:
        parse_host(text)
    assert caught.value.slug == "host_invalid"
    assert caught.value.message.isascii() and caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "default", "expected"),
    [
        ("ok.test:443", None, ("ok.test", 443)),
        ("ok.test", 80, ("ok.test", 80)),
        ("ok.test:8080", 80, ("ok.test", 8080)),
        ("[::1]:8443", None, ("::1", 8443)),
        ("[::1]", 80, ("::1", 80)),
        ("2130706433:1", None, ("127.0.0.1", 1)),
        ("ok.test.:65535", None, ("ok.test", 65535)),
    ],
)
def test_authority(text: str, default: int | None, expected: tuple[str, int]) -> None:
    host, port = parse_authority(text, default)
    assert (host.name, port) == expected
    assert parse_authority(host.authority(port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "ok.test", "ok.test:", "ok.test:0", "ok.test:65536", "ok.test:080", "ok.test:+80", "ok.test:8 0", "ok.test:٣",
        "ok.test:http", "ok.test:-1", "ok.test:80:80", "::1:443", "::1", "[::1]443", "[::1:443", ":80", "", "[::1]:",
        "user@ok.test:80", "ok.test:80/", "ok.test:100000000000000000000",
    ],
)  # fmt: skip
def test_authority_without_doubt_or_none(text: str) -> None:
    with pytest.raises(HostSyntaxError):
        parse_authority(text)


@pytest.mark.parametrize("raw", [b"b\xc3\xbccher.test", b"ok.test\xff", b"\xe3\x80\x82", b"no.test\0.ok.test", b""])
def test_bytes_from_the_wire_are_ascii(raw: bytes) -> None:
    with pytest.raises(HostSyntaxError):
        parse_wire_host(raw)
    with pytest.raises(HostSyntaxError):
        parse_wire_authority(raw + b":80")


def test_quoting_is_one_printable_line() -> None:
    assert quote("a\r\nb\x1b[2J\u202e") == r"'a\r\nb\x1b[2J\u202e'"
    assert quote(b"\xff\0") == r"'\xff\x00'"
    assert quote("x" * 500).endswith("...") and len(quote("x" * 500)) < 100


_HOSTLIKE = st.text(
    st.sampled_from("aAzZ019.-_:[]%@/\\x0X \t\r\n\0*#?")
    | st.sampled_from("ü\u3002\uff0eß\uff11\uff21\u202e\u00ad℀")
    | st.characters(),
    max_size=40,
)


@given(_HOSTLIKE)
@example("127.0.0.1.")
@example("0x7f.1")
def test_whatever_is_read_has_one_form_and_dials_as_it_matches(text: str) -> None:
    """Parsing is idempotent, and agrees with the C library on addresses."""
    try:
        host = parse_host(text)
    except HostSyntaxError:
        return
    assert parse_host(host.uri) == host
    assert parse_host(host.uri.upper()) == host
    assert host.name.isascii() and host.name == host.name.lower()
    assert not set(host.name) & set(" \t\r\n\0/@%\\#?*,[]")
    if host.address is None:
        assert len(host.name) <= 253 and all(0 < len(label) <= 63 for label in host.name.split("."))
        with pytest.raises(OSError):
            socket.inet_aton(host.name)
    else:
        assert ip_address(host.name) == host.address


_NUMBER = st.integers(0, 2**33).flatmap(
    lambda number: st.sampled_from(
        [str(number), hex(number), f"0{number:o}", str(number % 256), f"0x0{number % 256:x}"]
    )
)


@given(st.lists(_NUMBER, min_size=1, max_size=5).map(".".join))
@example("0x.1")
@example("127.0.0.1.")
def test_numbers_are_read_as_the_c_library_reads_them(text: str) -> None:
    try:
        raw = socket.inet_aton(text)
    except OSError:
        if not text.endswith("."):
            with pytest.raises(HostSyntaxError):
                parse_host(text)
        return
    try:
        host = parse_host(text)
    except HostSyntaxError:
        return  # stricter is fine: refused, nothing is dialled
    assert host.address == IPv4Address(raw)


@given(st.ip_addresses())
def test_every_address_reads_as_itself(address: IPv4Address | IPv6Address) -> None:
    host = Host.of_address(address)
    assert parse_host(host.uri) == host
    if isinstance(address, IPv4Address):
        for spelling in (str(int(address)), hex(int(address)), f"0{int(address):o}", f"[::ffff:{address}]"):
            assert parse_host(spelling) == host


# rules


@pytest.mark.parametrize(
    ("rule", "host", "matched"),
    [
        # one table for WebFetch rules, allowed and denied domains
        ("ok.test", "ok.test", True),
        ("ok.test", "OK.TEST.", True),
        ("ok.test", "a.ok.test", False),
        ("ok.test", "xok.test", False),
        ("ok.test", "ok.test.no.test", False),
        ("*.ok.test", "ok.test", False),
        ("*.ok.test", "a.ok.test", True),
        ("*.ok.test", "a.b.ok.test", True),
        ("*.ok.test", "xok.test", False),
        ("*.ok.test", "evilx.ok.test.no.test", False),
        (".ok.test", "ok.test", True),
        (".ok.test", "a.b.ok.test", True),
        (".ok.test", "xok.test", False),
        ("*.test", "ok.test", True),
        ("*.test", "a.b.ok.test", True),
        ("*.test", "test", False),
        ("*", "anything.at.all", True),
        ("*", "127.0.0.1", True),
        ("*", "[::1]", True),
        ("OK.Test.", "ok.test", True),
        ("bücher.test", "xn--bcher-kva.test", True),
        ("*.bücher.test", "a.xn--bcher-kva.test", True),
        ("ok\u3002test", "ok.test", True),
        ("127.0.0.1", "2130706433", True),
        ("0x7f000001", "127.0.0.1", True),
        ("127.0.0.1", "[::ffff:127.0.0.1]", True),
        ("127.0.0.1", "127.0.0.1.ok.test", False),
        ("[::1]", "::1", True),
        ("[2001:db8::1]", "[2001:DB8:0::1]", True),
        # numeric hosts match numeric rules only
        ("*.0.0.1.test", "127.0.0.1", False),
    ],
)
def test_rules_match(rule: str, host: str, matched: bool) -> None:
    assert HostPattern.parse(rule).matches(parse_host(host), 443) is matched
    assert HostPattern.parse(rule).matches(parse_host(host), None) is matched


@pytest.mark.parametrize(
    ("rule", "host", "port", "matched"),
    [
        ("ok.test:8443", "ok.test", 8443, True),
        ("ok.test:8443", "ok.test", 22, False),
        ("ok.test:8443", "ok.test", None, False),
        ("*.ok.test:443", "a.ok.test", 443, True),
        ("*.ok.test:443", "a.ok.test", 80, False),
        ("[::1]:8443", "::1", 8443, True),
        ("[::1]:8443", "::1", 443, False),
        ("*:443", "any.test", 443, True),
        ("*:443", "any.test", 80, False),
        ("*", "any.test", 80, True),
    ],
)
def test_rules_with_a_port(rule: str, host: str, port: int | None, matched: bool) -> None:
    assert HostPattern.parse(rule).matches(parse_host(host), port) is matched


PORT = "write HOST or HOST:PORT, the port as a number from 1 to 65535"


@pytest.mark.parametrize(
    ("text", "slug", "hint"),
    [
        ("https://ok.test/path", "host_pattern_url", "write ok.test (or ok.test:443 for that port only)"),
        ("http://*.ok.test", "host_pattern_url", "write *.ok.test (or *.ok.test:80 for that port only)"),
        ("https://u:p@ok.test:8443/x?y#z", "host_pattern_url", "write ok.test:8443"),
        ("ok.test/", "host_pattern_url", "write ok.test"),
        ("ok.test/path", "host_pattern_url", "write ok.test"),
        ("//ok.test", "host_pattern_url", "write the host name alone"),
        (" ok.test ", "host_pattern_invalid", "write ok.test"),
        ("ok.test\n", "host_pattern_invalid", "write ok.test"),
        ("", "host_pattern_invalid", "remove it, or name a host"),
        ("  ", "host_pattern_invalid", "remove it, or name a host"),
        ("*.com", "host_pattern_public_suffix", "name the registered domain, for example *.example.com"),
        (".com", "host_pattern_public_suffix", "name the registered domain, for example *.example.com"),
        ("*.co.uk", "host_pattern_public_suffix", "name the registered domain, for example *.example.co.uk"),
        ("*.com:443", "host_pattern_public_suffix", "name the registered domain, for example *.example.com"),
        ("::1:443", "host_pattern_ambiguous", "write [::1:443] for that address, [::1]:443 for a port of another"),
        ("::1", "host_pattern_ambiguous", "write [::1] for that address"),
        ("*.127.0.0.1", "host_pattern_invalid", "write 127.0.0.1"),
        ("*.[::1]", "host_pattern_invalid", "write * alone or as the first label: * or *.example.test"),
        ("a*.ok.test", "host_pattern_invalid", "write * alone or as the first label: * or *.example.test"),
        ("ok.*", "host_pattern_invalid", "write * alone or as the first label: * or *.example.test"),
        ("*.*.ok.test", "host_pattern_invalid", "write * alone or as the first label: * or *.example.test"),
        ("**.ok.test", "host_pattern_invalid", "write .example.test for a name and those below it"),
        ("ok.test:0443", "host_pattern_invalid", "write HOST or HOST:PORT, the port as a number from 1 to 65535"),
        ("*ok.test", "host_pattern_invalid", "write * alone or as the first label: * or *.example.test"),
        ("ok.test:0", "host_pattern_invalid", PORT),
        ("ok.test:99999", "host_pattern_invalid", PORT),
        ("ok..test", "host_pattern_invalid", ""),
        ("user@ok.test", "host_pattern_invalid", "write the host alone, without user and path"),
        ("git@ok.test:x", "host_pattern_invalid", "write the host alone, without user and path"),
        ("ok.test,no.test", "host_pattern_invalid", "write one host in each entry"),
        ("ok.test no.test", "host_pattern_invalid", "write one host in each entry"),
        ("ok.test:443-450", "host_pattern_invalid", "write one rule for each port, or none for every port"),
        ("ok.test:http", "host_pattern_invalid", PORT),
        ("☃.test", "host_pattern_invalid", "write its ASCII (xn--) form"),
    ],
)
def test_rules_that_cannot_work_say_what_was_meant(text: str, slug: str, hint: str) -> None:
    with pytest.raises(HostPatternError) as caught:
        HostPattern.parse(text)
    assert (caught.value.slug, caught.value.hint) == (slug, hint)
    assert quote(text) in caught.value.message or not text.strip()


def test_a_network_is_not_a_host() -> None:
    with pytest.raises(HostPatternError) as caught:
        HostPattern.parse("10.0.0.0/8")
    assert "deniedResolvedAddresses" in caught.value.hint


def test_a_denial_may_cover_a_public_suffix() -> None:
    assert HostPattern.parse("*.zip", public_suffix=True).matches(parse_host("a.zip"), 443)


@pytest.mark.parametrize(
    ("rule", "broad"),
    [
        ("*", True), ("*:443", True), ("*.test", True), ("*.internal", True), ("*.github.io", True),
        ("*.ok.test", False), ("ok.test", False), ("github.io", False), ("*.a.github.io", False), ("127.0.0.1", False),
    ],
)  # fmt: skip
def test_broad_rules_are_known_as_such(rule: str, broad: bool) -> None:
    assert HostPattern.parse(rule).is_broad is broad


def test_the_text_of_a_rule_stays_its_authors() -> None:
    assert HostPattern.parse("Bücher.TEST.").text == "Bücher.TEST."


@given(_HOSTLIKE)
def test_any_text_is_a_rule_or_a_clean_error(text: str) -> None:
    try:
        pattern = HostPattern.parse(text)
    except HostPatternError as error:
        assert error.slug.startswith("host_pattern_")
        assert (error.message + error.hint).isascii() and (error.message + error.hint).isprintable()
    else:
        if pattern.host is not None and pattern.apex:
            assert pattern.matches(pattern.host, pattern.port)
