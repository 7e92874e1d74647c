"""The SOCKS5 handshake: whole, byte by byte, with bytes sent ahead, a table of errors, and anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.hosts.host_patterns import Host, parse_host
from sandboxd.proxy.socks.socks5 import SOCKS4_REFUSED, HandshakeStep, Reply, Socks5Handshake, render_reply
from support.dialogue import splits

GREETING = b"\x05\x01\x00"
CHOSEN = b"\x05\x00"


def name_request(name: bytes, port: int = 443, command: int = 1) -> bytes:
    return bytes([5, command, 0, 3, len(name)]) + name + port.to_bytes(2, "big")


def converse(pieces: tuple[bytes, ...], handshake: Socks5Handshake | None = None) -> tuple[HandshakeStep, bytes]:
    """The last step with everything that was sent by then, and what came after the handshake."""
    handshake = handshake or Socks5Handshake()
    sent = b""
    waiting = list(pieces)
    step = HandshakeStep()
    while waiting and step.request is None and not step.ended:
        step = handshake.receive(waiting.pop(0))
        sent += step.send
    return HandshakeStep(sent, step.request, step.ended, step.fault, step.name, step.error), handshake.rest + b"".join(
        waiting
    )


@pytest.mark.parametrize("ahead", [b"", b"\x16\x03\x01hello", b"\x05\x01\x00"])
@pytest.mark.parametrize(
    ("request_bytes", "host", "port"),
    [
        (name_request(b"ok.test"), "ok.test", 443),
        (name_request(b"OK.Test.", 22), "ok.test", 22),
        (name_request(b"127.0.0.1", 80), "127.0.0.1", 80),
        (name_request(b"0x7f.1", 80), "127.0.0.1", 80),
        (name_request(b"::1", 80), "::1", 80),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x1f\x90", "127.0.0.1", 8080),
        (b"\x05\x01\x00\x04" + b"\x00" * 15 + b"\x01\x00\x50", "::1", 80),
        (b"\x05\x01\x00\x04" + b"\x00" * 10 + b"\xff\xff\x7f\x00\x00\x01\x00\x50", "127.0.0.1", 80),
    ],
)
def test_requests_in_any_pieces(request_bytes: bytes, host: str, port: int, ahead: bytes) -> None:
    for pieces in splits(GREETING + request_bytes + ahead):
        step, rest = converse(pieces)
        assert step == HandshakeStep(CHOSEN, (parse_host(host), port))
        assert rest == ahead


def test_user_and_password_are_taken_when_offered_alone() -> None:
    login = b"\x01\x04user\x06secret"
    for pieces in splits(b"\x05\x01\x02" + login + name_request(b"ok.test")):
        step, _ = converse(pieces)
        assert step.send == b"\x05\x02\x01\x00"
        assert step.request == (Host("ok.test"), 443)
    step, _ = converse((b"\x05\x01\x02\x01\x00\x00" + name_request(b"ok.test"),))
    assert step.request is not None, "empty ones as well"


def test_no_authentication_is_preferred() -> None:
    assert converse((b"\x05\x03\x01\x02\x00",))[0].send == CHOSEN


def test_a_check_makes_the_password_needed_and_decides() -> None:
    def handshake() -> Socks5Handshake:
        return Socks5Handshake(lambda user, password: (user, password) == (b"me", b"token"))

    right = b"\x05\x02\x00\x02\x01\x02me\x05token" + name_request(b"ok.test")
    assert converse((right,), handshake())[0].request == (Host("ok.test"), 443)
    wrong, _ = converse((b"\x05\x01\x02\x01\x02me\x05tokem" + name_request(b"ok.test"),), handshake())
    assert (wrong.send, wrong.request, wrong.ended) == (b"\x05\x02\x01\x01", None, True)
    none, _ = converse((GREETING,), handshake())
    assert (none.send, none.ended) == (b"\x05\xff", True)


NOT_ALLOWED_FORM = CHOSEN + render_reply(Reply.ADDRESS_TYPE_NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("data", "send"),
    [
        # other protocols
        (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", SOCKS4_REFUSED),
        (b"\x04\x01\x00\x50\x00\x00\x00\x01\x00ok.test\x00", SOCKS4_REFUSED),
        (b"\x00", b""),
        (b"\x16\x03\x01", b""),
        (b"\xff" * 600, b""),
        # authentication
        (b"\x05\x00", b"\x05\xff"),
        (b"\x05\x01\x01", b"\x05\xff"),
        (b"\x05\x02\x01\x80", b"\x05\xff"),
        (b"\x05\x01\x02\x05", b"\x05\x02\x01\x01"),
        # commands
        (GREETING + name_request(b"ok.test", command=2), CHOSEN + render_reply(Reply.COMMAND_NOT_SUPPORTED)),
        (GREETING + name_request(b"ok.test", command=3), CHOSEN + render_reply(Reply.COMMAND_NOT_SUPPORTED)),
        (GREETING + name_request(b"ok.test", command=0), CHOSEN + render_reply(Reply.COMMAND_NOT_SUPPORTED)),
        (GREETING + b"\x04\x01\x00\x03\x01a", CHOSEN + render_reply(Reply.GENERAL_FAILURE)),
        (GREETING + b"\x05\x01\x00\x02\x00", NOT_ALLOWED_FORM),
        (GREETING + b"\x05\x01\x00\x00\x00", NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok.test", port=0), CHOSEN + render_reply(Reply.GENERAL_FAILURE)),
        # names that could be read in two ways
        (GREETING + name_request(b"no.test\0.ok.test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b""), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok.test\r\nX: y"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok.test/"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok%00.test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"no.test@ok.test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok.test:80"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b".ok.test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok..test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"\xe3\x80\x82test"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"ok.test\x80"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"a" * 255), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"fe80::1%lo"), NOT_ALLOWED_FORM),
        (GREETING + name_request(b"1.2.3.4.5"), NOT_ALLOWED_FORM),
    ],
)
def test_errors_and_the_exact_reply(data: bytes, send: bytes) -> None:
    for pieces in ((data,), tuple(data[place : place + 1] for place in range(len(data)))):
        step, _ = converse(pieces)
        assert step.send == send
        assert step.ended and step.request is None and step.fault
        if len(data) < 600 and send.endswith(NOT_ALLOWED_FORM) and data[6:7] == b"\x03":
            assert step.error is not None and step.name == data[8 : 8 + data[7]]


def test_http_on_this_port_is_told_where_to_go() -> None:
    step, _ = converse((b"CONNECT ok.test:443 HTTP/1.1\r\n\r\n",))
    assert step.send.startswith(b"HTTP/1.1 400 ") and step.ended


@given(st.lists(st.binary(max_size=40) | st.sampled_from([GREETING, name_request(b"ok.test")]), max_size=6))
def test_any_bytes_lead_to_a_request_the_end_or_more_bytes(pieces: list[bytes]) -> None:
    whole, rest = converse((b"".join(pieces),)) if b"".join(pieces) else (HandshakeStep(), b"")
    split, split_rest = converse(tuple(piece for piece in pieces if piece))
    assert (whole.send, whole.request, whole.ended) == (split.send, split.request, split.ended)
    assert whole.request is None or rest == split_rest
    if whole.request is not None:
        assert parse_host(whole.request[0].uri) == whole.request[0]
