"""HTTP/1.1 heads: whole, byte by byte, with bytes after them, a table of errors, and anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.proxy.http.http1 import (
    MAX_HEAD,
    HttpSyntaxError,
    RequestHead,
    RequestReader,
    ResponseReader,
    end_to_end,
    render_request,
    render_response,
    tokens,
    values,
)
from support.dialogue import feed, splits

REQUEST = (
    b"POST http://ok.test:8080/a?b HTTP/1.1\r\nHost: ok.test:8080\r\nX-Empty:\r\nX-Spaces: \t a b \t\r\n"
    b"Content-Length: 3\r\n\r\n"
)
RESPONSE = b"HTTP/1.1 200 OK fine\r\nContent-Type: text/plain\r\nSet-Cookie: a\r\nset-cookie: b\r\n\r\n"


@pytest.mark.parametrize("after", [b"", b"abc", b"GET http://no.test/ HTTP/1.1\r\n\r\n"])
def test_a_request_head_in_any_pieces_and_what_follows_it(after: bytes) -> None:
    for pieces in splits(REQUEST + after):
        reader = RequestReader()
        head, unread = feed(reader.receive_request, pieces)
        assert head == RequestHead(
            "POST",
            b"http://ok.test:8080/a?b",
            1,
            (
                (b"Host", b"ok.test:8080"),
                (b"X-Empty", b""),
                (b"X-Spaces", b"a b"),
                (b"Content-Length", b"3"),
            ),
        )
        assert reader.rest + unread == after


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_response_head_in_any_pieces(end: bytes) -> None:
    for pieces in splits(RESPONSE.replace(b"\r\n", end) + b"body"):
        reader = ResponseReader()
        head, unread = feed(reader.receive_response, pieces)
        assert head is not None
        assert (head.status, head.reason, head.minor) == (200, b"OK fine", 1)
        assert values(head.headers, b"set-cookie") == [b"a", b"b"]
        assert reader.rest + unread == b"body"


@pytest.mark.parametrize("line", [b"HTTP/1.1 204 ", b"HTTP/1.1 204", b"HTTP/1.0 204 No", b"HTTP/1.1 204 \xfc"])
def test_reasons_are_optional(line: bytes) -> None:
    head = ResponseReader().receive_response(line + b"\r\n\r\n")
    assert head is not None and head.status == 204


def test_empty_lines_before_a_request_are_skipped() -> None:
    reader = RequestReader()
    assert reader.receive_request(b"\r\n") is None and reader.is_empty
    for pieces in splits(b"\r\n\r\nGET http://ok.test/ HTTP/1.0\r\n\r\n"):
        head, _ = feed(RequestReader().receive_request, pieces)
        assert head is not None and head.minor == 0


@pytest.mark.parametrize(
    ("data", "status", "part"),
    [
        # not this protocol, known at once
        (b"\x05\x01\x00", 400, "not HTTP"),
        (b"\x16\x03\x01\x02", 400, "TLS"),
        (b"\xff", 400, "not HTTP"),
        (b"\0", 400, "not HTTP"),
        (b" GET /", 400, "not HTTP"),
        # versions
        (b"GET /\r\n", 505, "0.9"),
        (b"GET http://ok.test/\r\n", 505, "0.9"),
        (b"PRI * HTTP/2.0\r\n", 505, "HTTP/2"),
        (b"GET http://ok.test/ HTTP/1.2\r\n", 505, "version"),
        (b"GET http://ok.test/ HTTP/0.9\r\n", 505, "version"),
        (b"GET http://ok.test/ HTTP/11\r\n", 400, "request line"),
        (b"GET http://ok.test/ http/1.1\r\n", 400, "request line"),
        (b"GET http://ok.test/ HTTP/1.1 \r\n", 400, "request line"),
        # request line
        (b"GET  http://ok.test/ HTTP/1.1\r\n", 400, "request line"),
        (b"GET\thttp://ok.test/\tHTTP/1.1\r\n", 400, "request line"),
        (b"GET http://ok.test/ x HTTP/1.1\r\n", 400, "request line"),
        (b"GET http://ok.test/\x01 HTTP/1.1\r\n", 400, "request line"),
        (b"G(T http://ok.test/ HTTP/1.1\r\n", 400, "request line"),
        (b"GET:http://ok.test/ HTTP/1.1\r\n", 400, "request line"),
        (b"A" * 65 + b" http://ok.test/ HTTP/1.1\r\n", 400, "request line"),
        # line ends
        (b"GET http://ok.test/ HTTP/1.1\nHost: ok.test\n\n", 400, "bare LF"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400, "bare LF"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA: b\rC: d\r\n\r\n", 400, "bare CR"),
        (b"GET http://ok.test/ HTTP/1.1\r\r\n", 400, "bare CR"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA: b\0\r\n", 400, "NUL"),
        # header lines
        (b"GET http://ok.test/ HTTP/1.1\r\nA: b\r\n c\r\n", 400, "obs-fold"),
        (b"GET http://ok.test/ HTTP/1.1\r\n A: b\r\n", 400, "obs-fold"),
        (b"GET http://ok.test/ HTTP/1.1\r\n\tA: b\r\n", 400, "obs-fold"),
        (b"GET http://ok.test/ HTTP/1.1\r\nContent-Length : 3\r\n", 400, "colon"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA\t: b\r\n", 400, "colon"),
        (b"GET http://ok.test/ HTTP/1.1\r\nno colon\r\n", 400, "colon"),
        (b"GET http://ok.test/ HTTP/1.1\r\n: b\r\n", 400, "header name"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA B: c\r\n", 400, "header name"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA\xfc: c\r\n", 400, "header name"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA: \x1b[2J\r\n", 400, "control"),
        (b"GET http://ok.test/ HTTP/1.1\r\nA: \x7f\r\n", 400, "control"),
        (b"GET http://ok.test/ HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400, "Host"),
        # size
        (b"GET http://ok.test/" + b"a" * MAX_HEAD, 431, "longer"),
        (b"GET http://ok.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 201, 431, "200 header lines"),
        (b"GET http://ok.test/ HTTP/1.1\r\n" + b"A: bcdef\r\n" * 12000, 431, "200 header lines"),
        (b"\r\n" * 40000, 431, "200 header lines"),
    ],
)
def test_refused_requests(data: bytes, status: int, part: str) -> None:
    for pieces in ((data,), tuple(data[place : place + 1] for place in range(len(data)))):
        with pytest.raises(HttpSyntaxError) as caught:
            reader = RequestReader()
            for piece in pieces:
                assert reader.receive_request(piece) is None
        assert caught.value.status == status
        assert part in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"hello", b"ICY 200 OK\r\n", b"HTTP/2 200\r\n", b"HTTP/1.1 20 OK\r\n", b"HTTP/1.1 2000 OK\r\n",
        b"HTTP/1.1 099 x\r\n", b"HTTP/1.1  200 OK\r\n", b"HTTP/1.1 200\tOK\r\n", b"HTTP/1.1 200 a\x01\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n", b"HTTP/1.1 200 OK\r\nA : b\r\n", b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n",
        b"HTTP/1.1 200 OK\r\nA: \0\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 12000,
    ],
)  # fmt: skip
def test_refused_responses(data: bytes) -> None:
    with pytest.raises(HttpSyntaxError):
        ResponseReader().receive_response(data)


def test_hop_by_hop_headers_stay_behind() -> None:
    head = RequestReader().receive_request(
        b"GET http://ok.test/ HTTP/1.1\r\nConnection: close, X-Private\r\nX-Private: 1\r\nKeep-Alive: 5\r\n"
        b"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nUpgrade: x\r\n"
        b"connection: x-other\r\nX-Other: 2\r\nAccept: */*\r\nCookie: c\r\n\r\n"
    )
    assert head is not None
    assert end_to_end(head.headers) == [(b"Accept", b"*/*"), (b"Cookie", b"c")]
    assert end_to_end(head.headers, drop=[b"cookie"]) == [(b"Accept", b"*/*")]
    assert tokens(head.headers, b"connection") == [b"close", b"x-private", b"x-other"]


_NAME = st.text("abcXYZ-_019", min_size=1, max_size=12).map(str.encode)
_VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=20).map(
    lambda text: text.encode("latin-1")
)


@given(st.lists(st.tuples(_NAME, _VALUE), max_size=6), st.integers(200, 599), _VALUE)
def test_what_is_written_is_read_back(headers: list[tuple[bytes, bytes]], status: int, reason: bytes) -> None:
    request = render_request("GET", b"/path", headers)
    if sum(name.lower() == b"host" for name, _ in headers) < 2:
        head = RequestReader().receive_request(request)
        assert head == RequestHead("GET", b"/path", 1, tuple(headers))
    answer = ResponseReader().receive_response(render_response(status, reason, headers))
    assert answer is not None and (answer.status, answer.reason, answer.headers) == (status, reason, tuple(headers))


@given(st.lists(st.binary(max_size=50) | st.sampled_from([b"\r\n", b"GET ", b"http://ok.test/ HTTP/1.1", b"A: b"])))
def test_any_bytes_are_a_head_or_a_clean_error(pieces: list[bytes]) -> None:
    for receive in (RequestReader().receive_request, ResponseReader().receive_response):
        try:
            for piece in pieces:
                if receive(piece) is not None:
                    break
        except HttpSyntaxError as error:
            assert error.status in (400, 431, 505)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_splitting_changes_nothing(noise: bytes, place: int) -> None:
    data = REQUEST[:60] + noise + b"\r\n\r\n"

    def outcome(*pieces: bytes) -> object:
        reader = RequestReader()
        try:
            head, unread = feed(reader.receive_request, pieces)
        except HttpSyntaxError as error:
            return error.message
        return head, reader.rest + unread

    assert outcome(data) == outcome(data[:place], data[place:])
