"""Where bodies end: framing from the head, and reading in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestHead, ResponseHead
from sandboxd.proxy.http.message_body import (
    NO_BODY,
    BodyKind,
    BodyReader,
    Framing,
    chunk,
    last_chunk,
    request_framing,
    response_framing,
)
from support.dialogue import splits

CHUNKED = Framing(BodyKind.CHUNKED)


def request(*headers: tuple[bytes, bytes], minor: int = 1) -> RequestHead:
    return RequestHead("POST", b"http://ok.test/", minor, headers)


def response(status: int, *headers: tuple[bytes, bytes], minor: int = 1) -> ResponseHead:
    return ResponseHead(status, b"", minor, headers)


LENGTH_3 = (b"Content-Length", b"3")
CODED = (b"Transfer-Encoding", b"chunked")


def test_requests() -> None:
    assert request_framing(request()) == NO_BODY
    assert request_framing(request(LENGTH_3)) == Framing(BodyKind.LENGTH, 3)
    assert request_framing(request((b"content-length", b"0"))) == Framing(BodyKind.LENGTH, 0)
    assert request_framing(request((b"TRANSFER-ENCODING", b"Chunked"))) == CHUNKED
    assert not Framing(BodyKind.LENGTH, 0).has_body and Framing(BodyKind.LENGTH, 3).has_body


@pytest.mark.parametrize(
    ("headers", "minor", "status"),
    [
        ([LENGTH_3, LENGTH_3], 1, 400),
        ([LENGTH_3, (b"content-length", b"4")], 1, 400),
        ([(b"Content-Length", b"3, 3")], 1, 400),
        ([LENGTH_3, CODED], 1, 400),
        ([CODED, LENGTH_3], 1, 400),
        ([CODED], 0, 400),
        ([(b"Content-Length", b"")], 1, 400),
        ([(b"Content-Length", b"+3")], 1, 400),
        ([(b"Content-Length", b"-3")], 1, 400),
        ([(b"Content-Length", b"0x3")], 1, 400),
        ([(b"Content-Length", b"3 3")], 1, 400),
        ([(b"Content-Length", b"\xb3")], 1, 400),
        ([(b"Content-Length", b"9" * 19)], 1, 400),
        ([(b"Transfer-Encoding", b"gzip, chunked")], 1, 501),
        ([(b"Transfer-Encoding", b"chunked, chunked")], 1, 501),
        ([(b"Transfer-Encoding", b"identity")], 1, 501),
        ([(b"Transfer-Encoding", b"xchunked")], 1, 501),
        ([(b"Transfer-Encoding", b"\x0bchunked")], 1, 501),
        ([(b"Transfer-Encoding", b"chunked;q=1")], 1, 501),
        ([(b"Transfer-Encoding", b"")], 1, 501),
        ([CODED, CODED], 1, 501),
        ([CODED, (b"Transfer-Encoding", b"")], 1, 501),
    ],
)
def test_two_readings_of_a_request_are_refused(headers: list[tuple[bytes, bytes]], minor: int, status: int) -> None:
    with pytest.raises(HttpSyntaxError) as caught:
        request_framing(request(*headers, minor=minor))
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("head", "method", "framing"),
    [
        (response(200, LENGTH_3), "GET", Framing(BodyKind.LENGTH, 3)),
        (response(200, LENGTH_3, LENGTH_3), "GET", Framing(BodyKind.LENGTH, 3)),
        (response(200, (b"Content-Length", b"3, 3")), "GET", Framing(BodyKind.LENGTH, 3)),
        (response(200, CODED), "GET", CHUNKED),
        (response(200, CODED, LENGTH_3), "GET", CHUNKED),
        (response(200), "GET", Framing(BodyKind.UNTIL_CLOSE)),
        (response(200, LENGTH_3), "HEAD", NO_BODY),
        (response(200, CODED), "HEAD", NO_BODY),
        (response(204, LENGTH_3), "GET", NO_BODY),
        (response(304, LENGTH_3), "GET", NO_BODY),
        (response(100), "GET", NO_BODY),
        (response(101), "GET", NO_BODY),
    ],
)
def test_responses(head: ResponseHead, method: str, framing: Framing) -> None:
    assert response_framing(head, method) == framing


@pytest.mark.parametrize(
    "head",
    [
        response(200, LENGTH_3, (b"Content-Length", b"4")),
        response(200, (b"Content-Length", b"x")),
        response(200, (b"Content-Length", b"")),
        response(200, (b"Transfer-Encoding", b"gzip, chunked")),
        response(200, CODED, minor=0),
    ],
)
def test_two_readings_of_a_response_are_refused(head: ResponseHead) -> None:
    with pytest.raises(HttpSyntaxError):
        response_framing(head, "GET")


def read(framing: Framing, pieces: tuple[bytes, ...]) -> tuple[bytes, BodyReader, bytes]:
    """Content, the reader, and what was not fed."""
    body = BodyReader(framing)
    content = b""
    waiting = list(pieces)
    while waiting and not body.done:
        content += body.receive(waiting.pop(0))
        if left := body.take_unread():
            waiting.insert(0, left)
    return content, body, b"".join(waiting)


BODY = b'5\r\nhello\r\n06 ; name="x"\r\n world\r\n0\r\nX-Sum: 1\r\nHost: evil\r\nContent-Length: 9\r\n\r\n'


@pytest.mark.parametrize(
    ("framing", "data", "content"),
    [
        (Framing(BodyKind.LENGTH, 5), b"hello", b"hello"),
        (CHUNKED, BODY, b"hello world"),
        (CHUNKED, b"0\r\n\r\n", b""),
        (CHUNKED, b"A\r\n0123456789\r\n0000\r\n\r\n", b"0123456789"),
    ],
)
@pytest.mark.parametrize("after", [b"", b"GET http://no.test/ HTTP/1.1\r\n\r\n"])
def test_bodies_in_any_pieces_and_what_follows_them(
    framing: Framing, data: bytes, content: bytes, after: bytes
) -> None:
    for pieces in splits(data + after):
        found, body, unread = read(framing, pieces)
        assert found == content and body.done and body.end()
        assert body.rest + unread == after


def test_trailers_that_mean_routing_or_framing_do_not_pass() -> None:
    _, body, _ = read(CHUNKED, (BODY,))
    assert body.trailers == ((b"X-Sum", b"1"),)
    assert last_chunk(body.trailers) == b"0\r\nX-Sum: 1\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n", b"g\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b" 1\r\n", b"1 1\r\n", b"1\n", b"1\r\nab\r\n",
        b"1\r\na\n0\r\n\r\n", b"1\r\na\rx\r\n", b"5\r\nhello0\r\n\r\n", b"1;\x00\r\n", b"1;a\rb\r\n",
        b"f" * 16 + b"\r\n", b"1;" + b"a" * 5000, b"0\r\n folded\r\n\r\n", b"0\r\nno colon\r\n\r\n",
        b"0\r\nA : b\r\n\r\n", b"0\r\nA: b\n\r\n", b"0\r\n" + b"A: bbbbbbbb\r\n" * 8000,
    ],
)  # fmt: skip
def test_malformed_chunks(data: bytes) -> None:
    for size in (len(data), 1 if len(data) < 10_000 else 1000):
        with pytest.raises(HttpSyntaxError):
            read(CHUNKED, tuple(data[place : place + size] for place in range(0, len(data), size)))


@pytest.mark.parametrize("framing", [Framing(BodyKind.LENGTH, 6), CHUNKED])
def test_an_early_end_is_not_a_complete_body(framing: Framing) -> None:
    body = BodyReader(framing)
    body.receive(b"5\r\nab")
    assert not body.end()


def test_a_body_until_the_connection_closes() -> None:
    body = BodyReader(Framing(BodyKind.UNTIL_CLOSE))
    assert body.receive(b"0\r\n\r\n") == b"0\r\n\r\n" and not body.done
    assert body.end() and body.done


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.data())
def test_written_chunks_are_read_back_in_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    written = b"".join(chunk(content) for content in contents) + last_chunk(())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    pieces = tuple(written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True))
    found, body, _ = read(CHUNKED, pieces)
    assert found == b"".join(contents) and body.done


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"5\r\n", b"hello", b"\r\n", b"0\r\n\r\n"])))
def test_any_bytes_are_a_body_or_a_clean_error(pieces: list[bytes]) -> None:
    try:
        found, _, _ = read(CHUNKED, tuple(pieces))
    except HttpSyntaxError:
        return
    assert len(found) <= sum(map(len, pieces))
