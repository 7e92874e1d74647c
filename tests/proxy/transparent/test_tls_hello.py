"""The server name of a TLS greeting, as real clients send it, and malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.proxy.transparent.tls_hello import NOT_TLS, UNREADABLE, HelloReader, Opening
from support.dialogue import feed, splits
from support.greetings import client_hello


def in_records(hello: bytes, size: int) -> bytes:
    """The same greeting in records of `size` bytes."""
    body = hello[5:]
    parts = [body[place : place + size] for place in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def with_extensions(extensions: bytes) -> bytes:
    body = b"\x03\x03" + b"r" * 32 + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake


def names(*found: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in found)
    content = len(entries).to_bytes(2, "big") + entries
    return b"\x00\x00" + len(content).to_bytes(2, "big") + content


@pytest.mark.parametrize("name", ["ok.test", "a.b.no.test", None])
def test_greetings_of_openssl_in_any_pieces(name: str | None) -> None:
    expected = Opening(True, server_name=name.encode() if name else None)
    for pieces in splits(client_hello(name)):
        assert feed(HelloReader().receive, pieces)[0] == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 40, 100])
def test_a_greeting_split_over_records(size: int) -> None:
    data = in_records(client_hello("no.test"), size)
    for pieces in ((data,), tuple(data[place : place + 1] for place in range(len(data)))):
        assert feed(HelloReader().receive, pieces)[0] == Opening(True, server_name=b"no.test")


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-x", b"GET / HTTP/1.1\r\n", b"\0", b"\x15\x03\x01\x00\x02", b"\x16\x02\x00", b"\x80\x2e\x01\x03\x01"],
)
def test_what_is_not_tls(data: bytes) -> None:
    assert HelloReader().receive(data) == NOT_TLS
    assert feed(HelloReader().receive, [data[place : place + 1] for place in range(len(data))])[0] == NOT_TLS


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",  # a ServerHello
        b"\x16\x03\x01\x00\x00",  # an empty record
        b"\x16\x03\x01\xff\xff\x02",  # no ClientHello, known early
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",  # 16 MB of greeting
        b"\x16\x03\x01\x00\x02\x01\x00\x17\x03\x01",  # another kind of record in the middle
        b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03",  # shorter than its fields
        with_extensions(names(b"ok.test", b"no.test")),
        with_extensions(names(b"ok.test") + names(b"no.test")),
        with_extensions(b"\x00\x00\x00\x09\x00\x05"),
        with_extensions(b"\x00\x00\x00\x02\x00\x09"),
    ],
)
def test_greetings_that_cannot_be_read(data: bytes) -> None:
    assert HelloReader().receive(data) == UNREADABLE
    assert feed(HelloReader().receive, [data[place : place + 1] for place in range(len(data))])[0] == UNREADABLE


def test_other_kinds_of_names_and_extensions_do_not_matter() -> None:
    protocols = b"\x00\x10\x00\x05\x00\x03\x02h2"
    assert HelloReader().receive(with_extensions(protocols)) == Opening(True, protocols=(b"h2",))
    other = b"\x00\x11\x00\x05\x00\x03\x02h2"
    assert HelloReader().receive(with_extensions(other)) == Opening(True)
    assert HelloReader().receive(with_extensions(names(b"x", kind=9))) == Opening(True)
    found = HelloReader().receive(with_extensions(other + names(b"ok.test") + other))
    assert found == Opening(True, server_name=b"ok.test")


def test_with_encrypted_client_hello_the_outer_name_counts() -> None:
    """RFC 9849: the outer greeting names the front; the true one is out of reach."""
    inner = b"\x00\x00\x01\x00\x01\x07" + b"\x00\x20" + b"k" * 32 + b"\x00\x40" + b"c" * 64
    encrypted = b"\xfe\x0d" + len(inner).to_bytes(2, "big") + inner
    for data in splits(with_extensions(names(b"front.test") + encrypted)):
        assert feed(HelloReader().receive, data)[0] == Opening(True, server_name=b"front.test")
    assert HelloReader().receive(with_extensions(encrypted)) == Opening(True)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\x16\x03\x01", client_hello("ok.test")[:80]]), max_size=6))
def test_any_bytes_and_any_split_lead_to_the_same(pieces: list[bytes]) -> None:
    whole = HelloReader().receive(b"".join(pieces))
    assert feed(HelloReader().receive, pieces)[0] == whole
