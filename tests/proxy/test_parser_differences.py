"""What the parsers of HTTP/1 and DNS understand, libraries understand in the same way.

That is what security needs: a message that is passed on must have one reading, else a server behind the proxy reads
another one. The opposite need not hold: `REFUSED_HERE` has messages that a library accepts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import dns.exception
import dns.flags
import dns.message
import h11
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError
from aiohttp.http_parser import HttpRequestParser, HttpResponseParser
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.proxy.dns.dns_message import Code, DnsAnswer, DnsSyntaxError, parse_query, render_answer
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestReader, ResponseReader, render_request, render_response
from sandboxd.proxy.http.message_body import BodyKind, BodyReader, chunk, last_chunk, request_framing, response_framing

LINES = (
    b"GET http://ok.test/a HTTP/1.1", b"POST http://ok.test/ HTTP/1.1", b"POST http://ok.test/ HTTP/1.0",
    b"POST  http://ok.test/ HTTP/1.1", b"P\tOST http://ok.test/ HTTP/1.1", b"GET http://ok.test/\xff HTTP/1.1",
    b"GET http://ok.test/ HTTP/1.1 ", b"get http://ok.test/ HTTP/1.1", b"GET http://ok.test/ http/1.1",
)  # fmt: skip
STATUS_LINES = (b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 404 No", b"HTTP/1.1 204 x", b"HTTP/1.1  200 OK")
NAMES = (
    b"Host",
    b"X-A",
    b"Content-Length",
    b"content-length",
    b"Transfer-Encoding",
    b"Te",
    b"X_b",
    b"a b",
    b"",
    b"X\0",
)
VALUES = (
    b"ok.test", b"3", b"03", b"+3", b"3, 3", b"0x3", b"chunked", b"gzip, chunked", b"chunked, gzip", b"close", b"",
    b" 3 ", b"a\tb", b"\xff", b"a\rb", b"a\nb", b"3\r\n x",
)  # fmt: skip
BODIES = (
    b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\nX-T: 1\r\n\r\n", b"03 \r\nabc\r\n0\r\n\r\n",
    b"3\nabc\n0\n\n", b"abcGET /no HTTP/1.1\r\n\r\n", b"-1\r\n\r\n", b"ffffffffffffffffff\r\n",
)  # fmt: skip
ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")
FRAMING = (b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"", b"")


@dataclass(frozen=True, slots=True)
class Reading:
    """`first` is the method and the target of a request, the status of an answer. Names of headers are lower case."""

    first: tuple[bytes, ...]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def messages(lines: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Messages in which anything may be wrong, and most is right."""
    header = st.tuples(*map(st.sampled_from, (NAMES, (b": ", b": ", b":", b" : "), VALUES, ENDS))).map(b"".join)
    good = st.sampled_from((b"Host: ok.test\r\n", b"X-A: 1\r\n"))
    headers = st.lists(good | header, max_size=4).map(b"".join)
    first = st.tuples(st.sampled_from(lines), st.sampled_from(ENDS)).map(b"".join)
    body = st.sampled_from(BODIES) | st.binary(max_size=20)
    return st.tuples(first, st.sampled_from(FRAMING), headers, st.just(b"\r\n"), body).map(b"".join)


def passed_on(data: bytes) -> tuple[Reading, bytes] | None:
    """How a request is read here and the bytes that are passed on; None where it is refused or incomplete."""
    reader = RequestReader()
    try:
        head = reader.receive_request(data)
        if head is None:
            return None
        framing = request_framing(head)
        body = BodyReader(framing)
        content = b"" if body.done else body.receive(reader.rest)
    except HttpSyntaxError:
        return None
    if not body.done:
        return None
    lower = tuple((name.lower(), value) for name, value in head.headers)
    if b"host" not in dict(lower):  # as the proxy does
        lower = ((b"host", b"ok.test"), *lower)
    sent = render_request(head.method, head.target, lower)
    if framing.kind is BodyKind.CHUNKED:
        sent += (chunk(content) if content else b"") + last_chunk(body.trailers)
    else:
        sent += content
    return Reading((head.method.encode(), head.target), lower, content), sent


def read_by_h11(data: bytes) -> Reading | None:
    """Raises h11.RemoteProtocolError."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    head = connection.next_event()
    assert isinstance(head, h11.Request)
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    assert connection.trailing_data[0] == b""
    return Reading((head.method, head.target), tuple(head.headers), body)


def read_by_aiohttp(data: bytes) -> Reading:
    """Raises HttpProcessingError."""

    async def read() -> Reading:
        loop = asyncio.get_running_loop()
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16, max_line_size=65536, max_field_size=65536)
        ((head, payload),), upgraded, tail = parser.feed_data(data)
        assert not upgraded and tail == b""
        body = b"" if not hasattr(payload, "read") else await asyncio.wait_for(payload.read(), 5)
        first = (head.method.encode(), head.path.encode("utf-8", "surrogateescape"))
        return Reading(first, tuple((name.lower(), value) for name, value in head.raw_headers), body)

    return asyncio.run(read())


LIBRARIES: list[tuple[Callable[[bytes], Reading | None], type[Exception]]] = [
    (read_by_h11, h11.RemoteProtocolError),
    (read_by_aiohttp, HttpProcessingError),
]


@pytest.mark.parametrize(("read", "refusal"), LIBRARIES)
@given(data=messages(LINES))
def test_a_request_that_is_passed_on_has_one_reading(
    read: Callable[[bytes], Reading | None], refusal: type[Exception], data: bytes
) -> None:
    understood = passed_on(data)
    if understood is None:
        return
    mine, sent = understood
    try:
        other = read(sent)
    except refusal:
        assert mine.first[0].islower() or b"\xff" in mine.first[1], "only these are refused by a library"
        return
    assert other == mine


@pytest.mark.parametrize(("read", "refusal"), LIBRARIES)
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_ordinary_requests_are_read_by_all(
    read: Callable[[bytes], Reading | None], refusal: type[Exception], framing: bytes
) -> None:
    body = {b"": b"", b"C": b"abc", b"T": b"3\r\nabc\r\n0\r\n\r\n"}[framing[:1]]
    understood = passed_on(
        b"POST http://ok.test/a HTTP/1.1\r\nHost: ok.test\r\nX-A:\t1 \r\n" + framing + b"\r\n" + body
    )
    assert understood is not None
    assert read(understood[1]) == understood[0]


@pytest.mark.parametrize("name", [b"Content-Length", b"Transfer-Encoding"])
def test_every_spelling_of_a_length_has_one_reading_or_none(name: bytes) -> None:
    readings = 0
    for first in VALUES:
        for second in (b"", *VALUES):
            for body in BODIES:
                fields = b"".join(b"%b: %b\r\n" % (name, value) for value in (first, second) if value)
                understood = passed_on(b"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n" + fields + b"\r\n" + body)
                if understood is not None:
                    assert read_by_h11(understood[1]) == understood[0]
                    readings += 1
    assert readings


REFUSED_HERE = [
    b"GET http://ok.test/ HTTP/1.1\nHost: ok.test\n\n",
    b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nX-A: 1\r\n 2\r\n\r\n",
    b"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3, 3\r\n\r\nabc",
]


@pytest.mark.parametrize("data", REFUSED_HERE)
def test_what_a_library_repairs_is_refused_here(data: bytes) -> None:
    assert passed_on(data) is None
    assert read_by_h11(data) is not None


def answer_of_h11(data: bytes) -> tuple[int, bytes]:
    """Raises h11.RemoteProtocolError."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "ok.test")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    answer = connection.next_event()
    assert isinstance(answer, h11.Response)
    found = b""
    connection.receive_data(b"")
    while isinstance(event := connection.next_event(), h11.Data):
        found += bytes(event.data)
    return answer.status_code, found


def answer_of_aiohttp(data: bytes) -> tuple[int, bytes]:
    """Raises HttpProcessingError."""

    async def read() -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        parser = HttpResponseParser(
            BaseProtocol(loop), loop, 2**16, read_until_eof=True, max_line_size=65536, max_field_size=65536
        )
        ((head, payload),), _, _ = parser.feed_data(data)
        parser.feed_eof()
        body = b"" if not hasattr(payload, "read") else await asyncio.wait_for(payload.read(), 5)
        return head.code, body

    return asyncio.run(read())


ANSWERS: list[tuple[Callable[[bytes], tuple[int, bytes]], tuple[type[Exception], ...]]] = [
    (answer_of_h11, (h11.RemoteProtocolError,)),
    (answer_of_aiohttp, (HttpProcessingError, PayloadEncodingError)),
]


@pytest.mark.parametrize(("read", "refusals"), ANSWERS)
@given(data=messages(STATUS_LINES))
def test_an_answer_that_is_passed_on_has_one_reading(
    read: Callable[[bytes], tuple[int, bytes]], refusals: tuple[type[Exception], ...], data: bytes
) -> None:
    reader = ResponseReader()
    try:
        head = reader.receive_response(data)
        if head is None:
            return
        framing = response_framing(head, "GET")
        body = BodyReader(framing)
        content = b"" if body.done else body.receive(reader.rest)
    except HttpSyntaxError:
        return
    if not body.end():
        return
    sent = render_response(head.status, head.reason, head.headers)
    if framing.kind is BodyKind.CHUNKED:
        sent += (chunk(content) if content else b"") + last_chunk(body.trailers)
    else:
        sent += content
    try:
        answer = read(sent)
    except refusals:
        return
    assert answer == (head.status, content)


@pytest.mark.parametrize(("read", "refusals"), ANSWERS)
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_ordinary_answers_are_read_by_all(
    read: Callable[[bytes], tuple[int, bytes]], refusals: tuple[type[Exception], ...], framing: bytes
) -> None:
    body = b"3\r\nabc\r\n0\r\n\r\n" if framing.startswith(b"T") else b"abc"
    assert read(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n" + framing + b"\r\n" + body) == (200, b"abc")


@given(
    st.lists(st.binary(min_size=1, max_size=63), max_size=4),
    st.integers(1, 255),
    st.sampled_from((b"", b"\0\0\x29\x10\0\0\0\0\0\0\0", b"\0\0\x29\x10\0\0\1\0\0\0\0", b"x", b"\xc0\x0c\0\1\0\1")),
    st.integers(0, 2),
    st.sampled_from((0x0100, 0x0000, 0x0110, 0x2800, 0x8180)),
)
def test_a_dns_query_that_is_answered_has_one_reading(
    labels: list[bytes], kind: int, behind: bytes, more: int, flags: int
) -> None:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    data = b"\0\7" + flags.to_bytes(2, "big") + b"\0\1\0\0\0\0" + more.to_bytes(2, "big") + name
    data += kind.to_bytes(2, "big") + b"\0\1" + behind
    try:
        query = parse_query(data)
    except DnsSyntaxError:
        return
    if query.fault or query.question is None:
        return
    try:
        theirs = dns.message.from_wire(data)
    except dns.exception.DNSException:
        return
    (asked,) = theirs.question
    assert (*query.question.labels, b"") == asked.name.labels
    assert (query.question.kind, query.question.class_) == (asked.rdtype, asked.rdclass)
    assert (query.udp_size is None) == (theirs.edns < 0)


def test_an_ordinary_dns_query_is_read_by_both() -> None:
    wire = dns.message.make_query("a.ok.test", "AAAA", use_edns=0, payload=1400).to_wire()
    query = parse_query(wire)
    assert query.question is not None and not query.fault
    assert (query.question.labels, query.question.kind, query.udp_size) == ((b"a", b"ok", b"test"), 28, 1400)


@given(
    st.lists(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address), max_size=90),
    st.sampled_from(Code),
    st.text(max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_dns_answers_are_read_by_a_library(
    addresses: list[IPv4Address | IPv6Address], code: Code, explanation: str, edns: bool, stream: bool
) -> None:
    asked = dns.message.make_query("oK.TesT", "ANY", use_edns=0 if edns else False, payload=4096)
    if code is Code.BADVERS and not edns:
        return  # cannot be said without EDNS
    answer = DnsAnswer(code, tuple(addresses), ttl=60, explanation=explanation)
    data = render_answer(parse_query(asked.to_wire()), answer, stream=stream)
    read = dns.message.from_wire(data)
    assert read.id == asked.id and read.question == asked.question and int(read.rcode()) == int(code)
    assert read.question[0].name.labels == (b"oK", b"TesT", b"")
    found = {ip_address(item.to_text()) for rrset in read.answer for item in rrset}
    if not read.flags & dns.flags.TC:
        assert found == set(addresses)
    assert stream or len(data) <= (1232 if edns else 512)
