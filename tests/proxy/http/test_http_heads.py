"""What becomes of headers on their way, without a proxy around it."""

from __future__ import annotations

import pytest

from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.proxy.http.http1 import Headers, RequestHead, ResponseHead
from sandboxd.proxy.http.http_heads import origin_stays, to_client, to_origin, upgrade_of, wants_close
from sandboxd.proxy.http.http_target import Target
from sandboxd.proxy.http.message_body import NO_BODY, BodyKind, Framing

TARGET = Target(parse_host("ok.test"), 8080, b"/x")
LENGTH = Framing(BodyKind.LENGTH, 5)
CHUNKED = Framing(BodyKind.CHUNKED)


def headers(*lines: bytes) -> Headers:
    pairs = (line.split(b": ", 1) for line in lines)
    return tuple((name, value) for name, value in pairs)


def request(*lines: bytes, minor: int = 1) -> RequestHead:
    return RequestHead("POST", b"http://ok.test:8080/x", minor, headers(*lines))


def answer(*lines: bytes, status: int = 200, minor: int = 1) -> ResponseHead:
    return ResponseHead(status, b"", minor, headers(*lines))


@pytest.mark.parametrize(
    ("lines", "framing", "passed_on"),
    [
        ((b"Host: other.test", b"Accept: a"), NO_BODY, (b"Accept: a",)),
        ((b"Proxy-Authorization: Basic x", b"Proxy-Connection: close", b"Keep-Alive: 5"), NO_BODY, ()),
        ((b"Connection: X-Mine", b"X-Mine: 1", b"X-Other: 2"), NO_BODY, (b"X-Other: 2",)),
        ((b"Content-Length: 05",), LENGTH, (b"Content-Length: 5",)),
        ((b"Transfer-Encoding: chunked",), CHUNKED, (b"Transfer-Encoding: chunked",)),
        (
            (b"Connection: Upgrade", b"Upgrade: websocket"), NO_BODY,
            (b"Upgrade: websocket", b"Connection: Upgrade"),
        ),
        ((b"Upgrade: websocket",), NO_BODY, ()),
        ((b"TE: trailers, deflate",), NO_BODY, (b"TE: trailers", b"Connection: TE")),
        ((b"Expect: 100-continue",), NO_BODY, (b"Expect: 100-continue",)),
    ],
)  # fmt: skip
def test_a_request(lines: tuple[bytes, ...], framing: Framing, passed_on: tuple[bytes, ...]) -> None:
    assert tuple(to_origin(request(*lines), framing, TARGET)) == headers(b"Host: ok.test:8080", *passed_on)


def test_who_speaks_http_1_0_cannot_wait_for_100() -> None:
    assert to_origin(request(b"Expect: 100-continue", minor=0), NO_BODY, TARGET) == [(b"Host", b"ok.test:8080")]


@pytest.mark.parametrize(
    ("lines", "framing", "options", "passed_on"),
    [
        ((b"Content-Length: 5",), LENGTH, {}, (b"Content-Length: 5",)),
        ((b"Transfer-Encoding: chunked",), CHUNKED, {"chunked": True}, (b"Transfer-Encoding: chunked",)),
        ((b"Transfer-Encoding: chunked",), CHUNKED, {"close": True}, (b"Connection: close",)),
        ((b"Content-Length: 7",), NO_BODY, {}, (b"Content-Length: 7",)),  # to HEAD
        ((b"X-Sandboxd-Decision: allow", b"X-Sandboxd-Error: x", b"X-A: 1"), NO_BODY, {}, (b"X-A: 1",)),
        ((b"Connection: X-Mine", b"X-Mine: 1", b"Upgrade: h2c", b"Proxy-Authenticate: Basic"), NO_BODY, {}, ()),
    ],
)
def test_an_answer(
    lines: tuple[bytes, ...], framing: Framing, options: dict[str, bool], passed_on: tuple[bytes, ...]
) -> None:
    assert tuple(to_client(answer(*lines), framing, **options)) == headers(*passed_on)


@pytest.mark.parametrize("status", [103, 204])
def test_answers_that_never_have_content_say_no_length(status: int) -> None:
    assert to_client(answer(b"Content-Length: 0", status=status)) == []


@pytest.mark.parametrize(
    ("lines", "minor", "stays"),
    [
        ((), 1, True),
        ((), 0, False),
        ((b"Connection: Close",), 1, False),
        ((b"Transfer-Encoding: chunked", b"Content-Length: 3"), 1, False),
        ((b"Transfer-Encoding: chunked",), 1, True),
    ],
)
def test_the_connection_to_an_origin_is_used_again(lines: tuple[bytes, ...], minor: int, stays: bool) -> None:
    assert origin_stays(answer(*lines, minor=minor)) is stays


@pytest.mark.parametrize(
    ("lines", "minor", "closes"),
    [
        ((), 1, False),
        ((), 0, True),
        ((b"Connection: keep-alive, Close",), 1, True),
        ((b"Proxy-Connection: close",), 1, True),
    ],
)
def test_a_client_that_has_said_all(lines: tuple[bytes, ...], minor: int, closes: bool) -> None:
    assert wants_close(request(*lines, minor=minor)) is closes


def test_an_upgrade_is_one_when_connection_says_so() -> None:
    assert upgrade_of(headers(b"Upgrade: a", b"Connection: x, upgrade")) == [b"a"]
    assert upgrade_of(headers(b"Upgrade: a")) == []
