"""Values of credentials in heads of requests, and none in those of answers."""

from __future__ import annotations

import base64
import contextlib
from urllib.parse import quote

import pytest

from sandboxd.proxy.credentials.request_heads import Placing, Secret, mentions, put_in, take_out, taken_out

VALUE, STAND_IN = b"ghp_r/al+v=1~", b"ghp_StandInStandIn"
SECRET = Secret(VALUE, STAND_IN)
HEADER = Placing("header", b"Authorization", b"Bearer {value}", SECRET)
KEY = Placing("header", b"X-Key", b"{value}", SECRET)
BASIC = Placing("basic", b"me", b"", SECRET)
QUERY = Placing("query", b"key", b"", SECRET)
QUOTED = quote(VALUE, safe="").encode()


def basic(text: bytes) -> bytes:
    return b"Basic " + base64.b64encode(text)


@pytest.mark.parametrize(
    ("placing", "target", "sent", "got_target", "got"),
    [
        (HEADER, b"/", [], b"/", [(b"Authorization", b"Bearer " + VALUE)]),
        (KEY, b"/", [], b"/", [(b"X-Key", VALUE)]),
        (BASIC, b"/", [], b"/", [(b"Authorization", basic(b"me:" + VALUE))]),
        (QUERY, b"/a", [], b"/a?key=" + QUOTED, []),
        (QUERY, b"/a?b=1", [], b"/a?b=1&key=" + QUOTED, []),
        # a placeholder, wherever the program has put it in that place
        (HEADER, b"/", [(b"authorization", b"token " + STAND_IN)], b"/", [(b"authorization", b"token " + VALUE)]),
        (HEADER, b"/", [(b"A", b"1"), (b"Authorization", basic(b"x:" + STAND_IN))], b"/",
         [(b"A", b"1"), (b"Authorization", basic(b"x:" + VALUE))]),
        (BASIC, b"/", [(b"Authorization", basic(STAND_IN + b":"))], b"/", [(b"Authorization", basic(VALUE + b":"))]),
        (QUERY, b"/?key=" + STAND_IN + b"&x=1", [], b"/?key=" + QUOTED + b"&x=1", []),
        (QUERY, b"/?k%65y=%67hp_StandInStandIn", [], b"/?k%65y=" + QUOTED, []),
        # what the program says itself, and other places
        (HEADER, b"/", [(b"Authorization", b"mine")], b"/", [(b"Authorization", b"mine")]),
        (QUERY, b"*", [], b"*", []),
        (QUERY, b"/?key=mine", [], b"/?key=mine", []),
        (KEY, b"/" + STAND_IN, [(b"X-Key", b"mine"), (b"Y", STAND_IN)], b"/" + STAND_IN,
         [(b"X-Key", b"mine"), (b"Y", STAND_IN)]),
    ],
)  # fmt: skip
def test_a_value_goes_to_its_place_alone(
    placing: Placing,
    target: bytes,
    sent: list[tuple[bytes, bytes]],
    got_target: bytes,
    got: list[tuple[bytes, bytes]],
) -> None:
    assert put_in([placing], target, sent) == (got_target, got)


def test_the_first_credential_fills_a_header() -> None:
    other = Placing("basic", b"you", b"", Secret(b"another-value", b"another-placeholder"))
    assert put_in([HEADER, other], b"/", []) == (b"/", [(b"Authorization", b"Bearer " + VALUE)])
    sent = [(b"Authorization", basic(b"you:another-placeholder"))]
    assert put_in([HEADER, other], b"/", sent) == (b"/", [(b"Authorization", basic(b"you:another-value"))])


@pytest.mark.parametrize("before", [b"", b"u", b"uu", b"user:", b"x-access-token:"])
@pytest.mark.parametrize("after", [b"", b"t", b"tail"])
def test_no_echo_of_a_value_is_left(before: bytes, after: bytes) -> None:
    text = before + VALUE + after
    for echo in (
        text,
        quote(text, safe="").encode(),
        quote(text, safe="").lower().encode(),
        b"%72".join(text.split(b"r")),  # encoded in part
        text.hex().encode(),
        base64.b64encode(text),
        base64.urlsafe_b64encode(text).rstrip(b"="),
        quote(base64.b64encode(text), safe="").encode(),  # a header of Basic authentication in a URL
        quote(quote(text, safe=""), safe="").encode(),
    ):
        [(_, left)] = taken_out([SECRET], [(b"Location", b"https://evil.test/?x=" + echo)])
        assert VALUE not in left and echo not in left
        encoded = left.rpartition(b"=")[2] if not left.endswith(b"=") else left.partition(b"?x=")[2]
        for decode in (base64.b64decode, base64.urlsafe_b64decode):
            with contextlib.suppress(ValueError):
                assert VALUE not in decode(encoded + b"=" * (-len(encoded) % 4))


def test_a_value_that_begins_another_leaves_no_rest() -> None:
    longer = Secret(VALUE + b"-and-more", b"longer-stand-in")
    assert take_out([SECRET, longer], b"a=" + VALUE + b"-and-more b=" + VALUE) == b"a=longer-stand-in b=" + STAND_IN


def test_other_answers_stay_as_they_are() -> None:
    headers = [
        (b"Location", b"https://ok.test/a%20b"),
        (b"Set-Cookie", b"a=" + STAND_IN),
        (b"X", base64.b64encode(b"abc")),
    ]
    assert taken_out([SECRET], headers) == headers and take_out([SECRET], b"OK") == b"OK"
    assert taken_out([Secret(b"12345678", b"x")], [(b"Content-Length", b"12345678")]) == [
        (b"Content-Length", b"12345678")
    ]
    assert taken_out([SECRET], [(b"X-" + VALUE.upper(), b"1")]) == []


def test_where_a_placeholder_is_seen() -> None:
    assert mentions(STAND_IN, b"/?a=%67hp_StandInStandIn", [])
    assert mentions(STAND_IN, b"/", [(b"A", basic(b"me:" + STAND_IN))]) and mentions(STAND_IN, b"/", [(b"A", STAND_IN)])
    assert not mentions(STAND_IN, b"/?a=1", [(b"A", basic(b"me:you"))])
    assert "ghp_r" not in repr(SECRET) and "ghp_r" not in repr(BASIC)
