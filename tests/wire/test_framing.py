"""Lines in, any split of the bytes; what breaks the framing is one typed error, and the next line is fine."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd_client.wire.framing import (
    MAX_LINE,
    FrameError,
    JsonTextError,
    LineDecoder,
    LineTooLong,
    NotUtf8,
    encode_line,
)


def lines_of(decoder: LineDecoder) -> list[str]:
    found = []
    while (line := decoder.next_line()) is not None:
        found.append(line)
    return found


def results_of(decoder: LineDecoder) -> list[str | type[FrameError]]:
    """Lines and errors in the order they came."""
    found: list[str | type[FrameError]] = []
    while True:
        try:
            line = decoder.next_line()
        except FrameError as error:
            found.append(type(error))
            continue
        if line is None:
            return found
        found.append(line)


def test_one_line() -> None:
    decoder = LineDecoder()
    decoder.feed(b'{"a":1}\n')
    assert lines_of(decoder) == ['{"a":1}']
    assert not decoder.partial


def test_one_byte_at_a_time() -> None:
    decoder = LineDecoder()
    found = []
    for byte in '{"é":1}\n[2]\n'.encode():
        decoder.feed(bytes([byte]))
        found += lines_of(decoder)
    assert found == ['{"é":1}', "[2]"]


def test_bytes_after_the_last_newline_stay() -> None:
    decoder = LineDecoder()
    decoder.feed(b"1\n2\n3")
    assert lines_of(decoder) == ["1", "2"]
    assert decoder.partial
    decoder.feed(b"4\n")
    assert lines_of(decoder) == ["34"]


def test_blank_lines_are_passed_over() -> None:
    decoder = LineDecoder()
    decoder.feed(b"\n\r\n  \n7\n")
    assert lines_of(decoder) == ["7"]


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_too_long_line_is_one_error(newline: bytes) -> None:
    decoder = LineDecoder(limit=8)
    decoder.feed(b"123456789" + newline)
    with pytest.raises(LineTooLong) as caught:
        decoder.next_line()
    assert caught.value.slug == "line_too_long"
    if not newline:
        for _ in range(3):
            decoder.feed(b"x" * 100)
            assert decoder.next_line() is None
        assert decoder.partial
        decoder.feed(b"\n")
    decoder.feed(b"12345678\n")
    assert lines_of(decoder) == ["12345678"]


def test_bytes_that_are_no_utf_8() -> None:
    decoder = LineDecoder()
    decoder.feed(b'"\xff"\n"ok"\n')
    with pytest.raises(NotUtf8) as caught:
        decoder.next_line()
    assert caught.value.slug == "not_utf8"
    assert lines_of(decoder) == ['"ok"']


def test_the_limit_is_four_mebibytes() -> None:
    decoder = LineDecoder()
    decoder.feed(b"1" * MAX_LINE + b"\n")
    assert lines_of(decoder) == ["1" * MAX_LINE]
    assert MAX_LINE == 4 * 1024 * 1024


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_random_bytes_give_the_same_whatever_the_split(data: bytes, cuts: list[int]) -> None:
    whole = LineDecoder(limit=20)
    whole.feed(data)
    expected = results_of(whole)
    split = LineDecoder(limit=20)
    found = []
    positions = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in pairwise(positions):
        split.feed(data[start:end])
        found += results_of(split)
    assert found == expected


def test_encoding_is_one_line_whatever_is_inside() -> None:
    line = encode_line({"text": "a\nb\r\u2028é\0"})
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    decoder = LineDecoder()
    decoder.feed(line)
    assert lines_of(decoder) == ['{"text":"a\\nb\\r\u2028é\\u0000"}']


def test_encoding_refuses_what_has_no_frame() -> None:
    with pytest.raises(NotUtf8):
        encode_line("\udcff")
    with pytest.raises(LineTooLong):
        encode_line("x" * MAX_LINE)
    with pytest.raises(JsonTextError) as caught:
        encode_line({"a": object()})
    assert caught.value.slug == "not_encodable"


@given(st.binary(max_size=200), st.integers(0, 200))
def test_another_decoder_goes_on_anywhere(data: bytes, cut: int) -> None:
    whole, first = LineDecoder(limit=20), LineDecoder(limit=20)
    whole.feed(data)
    first.feed(data[:cut])
    found = results_of(first)
    second = LineDecoder.resumed(*first.state, limit=20)
    second.feed(data[cut:])
    assert found + results_of(second) == results_of(whole)
