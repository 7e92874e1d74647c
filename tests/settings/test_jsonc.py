"""JSON with comments: values, places, and a clear refusal of everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.settings.jsonc import MAX_BYTES, MAX_DEPTH, JsoncError, parse_jsonc


def refused(text: str | bytes) -> tuple[str, Any, Any]:
    with pytest.raises(JsoncError) as caught:
        parse_jsonc(text)
    return caught.value.slug, caught.value.data.get("line"), caught.value.data.get("column")


def test_comments_trailing_commas_and_a_byte_order_mark() -> None:
    text = (
        b'\xef\xbb\xbf// head\n{ /* a\n b */ "a": [1, 2.5, -3e2, true, false, null,], // one\n "b": {"c": "d",},\n}\n//'
    )
    document = parse_jsonc(text)
    assert document.root.value == {"a": [1, 2.5, -300.0, True, False, None], "b": {"c": "d"}}
    assert document.had_mark
    assert not parse_jsonc("{}").had_mark


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "// no comment"}',
        '{"a": "/* no */"}',
        '{"a,}": "]"}',
        '{"a": "\\"//\\\\"}',
        "{//}\n}",
        "{/**/}",
        "{/***/}",
    ],
)
def test_strings_and_comments_are_told_apart(text: str) -> None:
    parse_jsonc(text)


def test_places_count_from_one_in_characters() -> None:
    document = parse_jsonc('{\n\t"é€😀": "x", "b": [\r\n  1,\n  {"c": 2}]}')
    position = document.position
    member = document.root.member("é€😀")
    assert member is not None
    assert position(member.key.start) == (2, 2)
    assert position(member.node.start) == (2, 9)
    found = document.find("b", 1, "c")
    assert found is not None
    assert position(found.start) == (4, 9)
    assert document.find("b", 2) is None
    assert document.find("b", "c") is None
    assert document.find("nope", "c") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("settings_empty", 1, 1)),
        (" \n// only a comment\n", ("settings_empty", 1, 1)),
        (b"\xef\xbb\xbf", ("settings_empty", 1, 1)),
        ("[]", ("settings_not_an_object", 1, 1)),
        ("3", ("settings_not_an_object", 1, 1)),
        ("{} x", ("settings_syntax", 1, 4)),
        ("{}{}", ("settings_syntax", 1, 3)),
        ("{", ("settings_syntax", 1, 2)),
        ('{"a"', ("settings_syntax", 1, 5)),
        ('{"a":', ("settings_syntax", 1, 6)),
        ('{"a":}', ("settings_syntax", 1, 6)),
        ('{"a":1', ("settings_syntax", 1, 7)),
        ('{"a":1 "b":2}', ("settings_syntax", 1, 8)),
        ("{a:1}", ("settings_syntax", 1, 2)),
        ("{'a':1}", ("settings_syntax", 1, 2)),
        ('{"a":[1 2]}', ("settings_syntax", 1, 9)),
        ('{"a":[,]}', ("settings_syntax", 1, 7)),
        ("{,}", ("settings_syntax", 1, 2)),
        ('{"a":1,,}', ("settings_syntax", 1, 8)),
        ('{"a":01}', ("settings_syntax", 1, 6)),
        ('{"a":+1}', ("settings_syntax", 1, 6)),
        ('{"a":.5}', ("settings_syntax", 1, 6)),
        ('{"a":0x1}', ("settings_syntax", 1, 6)),
        ('{"a":NaN}', ("settings_syntax", 1, 6)),
        ('{"a":-Infinity}', ("settings_syntax", 1, 6)),
        ('{"a":True}', ("settings_syntax", 1, 6)),
        ('{"a":truex}', ("settings_syntax", 1, 6)),
        ('{"a":"b\nc"}', ("settings_syntax", 1, 6)),
        ('{"a":"\tb"}', ("settings_syntax", 1, 6)),
        ('{"a":"b', ("settings_syntax", 1, 6)),
        ('{"a":"\\x"}', ("settings_syntax", 1, 6)),
        ('{"a":"\\u12"}', ("settings_syntax", 1, 6)),
        ('{"a":"\\ud800"}', ("settings_syntax", 1, 6)),
        ('{"a":"\\udc00\\ud800"}', ("settings_syntax", 1, 6)),
        ("{\n /* x", ("settings_syntax", 2, 2)),
        ('{"a":1}\0', ("settings_nul", 1, 8)),
        ('{"a":"\\u0000"}', ("settings_nul", 1, 6)),
        (b'{"a": "\xff"}', ("settings_not_utf8", 1, 8)),
        (b'{"\xc3\xa9":\n "\xe2\x82"}', ("settings_not_utf8", 2, 3)),
        (b"\xff\xfe{\x00}\x00", ("settings_not_utf8", 1, 1)),
        ('{"a":' + "1" * 100 + "}", ("settings_syntax", 1, 6)),
    ],
)
def test_what_is_refused_has_a_place(text: str | bytes, expected: tuple[str, int, int]) -> None:
    assert refused(text) == expected


def test_a_duplicate_key_names_both_places() -> None:
    with pytest.raises(JsoncError) as caught:
        parse_jsonc('{"a": {\n "b": 1,\n  "\\u0062": 2}}')
    error = caught.value
    assert error.slug == "settings_duplicate_key"
    assert (error.data["first_line"], error.data["first_column"]) == (2, 2)
    assert (error.data["line"], error.data["column"]) == (3, 3)
    assert "line 2, column 2" in error.message
    parse_jsonc('{"a": {"b": 1}, "c": {"b": 1}}')


def test_nesting_has_a_limit_and_no_recursion_error() -> None:
    fits = MAX_DEPTH - 1
    parse_jsonc('{"a":' + "[" * fits + "]" * fits + "}")
    assert refused('{"a":' + "[" * 100_000)[0] == "settings_too_deep"
    assert refused('{"a":' * 100_000)[0] == "settings_too_deep"


def test_size_has_a_limit() -> None:
    assert refused(b" " * (MAX_BYTES + 1))[0] == "settings_too_large"


@pytest.mark.parametrize("kind", ["1,", '"a",', "[],", "{},", "[1],", '{"a":1},', "true,"])
def test_the_number_of_values_has_a_limit(kind: str) -> None:
    text = '{"list": [' + kind * 1000 + "]}"
    parse_jsonc(text, 3003)
    parse_jsonc(text)
    with pytest.raises(JsoncError, match="more than 999 keys and values") as caught:
        parse_jsonc(text, 999)
    assert caught.value.slug == "settings_too_large" and "pattern" in caught.value.hint


def test_surrogate_pairs_are_one_character() -> None:
    assert parse_jsonc('{"a":"\\ud83d\\ude00 \\u00e9\\/\\n"}').root.value == {"a": "😀 é/\n"}


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc", min_size=1), _json, max_size=4), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_reads_what_the_standard_library_writes(tree: Any, ascii_only: bool, indent: Any) -> None:
    assert parse_jsonc(json.dumps(tree, ensure_ascii=ascii_only, indent=indent)).root.value == tree


@given(st.text('{}[]",:/*\\ \n\ta1-e.tfu') | st.binary(max_size=60))
def test_any_text_is_read_as_json_or_refused_with_its_place(text: str | bytes) -> None:
    try:
        value = parse_jsonc(text).root.value
    except JsoncError as error:
        assert error.slug.startswith("settings_")
        if error.slug != "settings_too_large":
            assert error.data["line"] >= 1 and error.data["column"] >= 1
        value = None
    try:
        strict = json.loads(text)
    except ValueError:
        return
    if isinstance(strict, dict) and value is not None:
        assert value == strict


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"a": 1,\n"b": {"c": 2}', "the { of line 1, column 1 is not closed"),
        ('{"a": 1,\n"b": [1, [2]\n', "the [ of line 2, column 6 is not closed"),
        ('{"a": 1,\n<<<<<<< HEAD\n"b": 1}', "finish the merge: keep one of the two versions"),
        ('{"a": True}', "write true, false or null, in small letters"),
        ('{"a": None}', "write true, false or null, in small letters"),
        ("{a: 1}", "put keys and texts in double quotes"),
        ("# x\n{}", "begin comments with //"),
        ('{"a": .5}', "write a number as 12 or 0.5"),
        ("{\u201ca\u201d: 1}", 'write the quotes of JSON: "'),
        ('{\u00a0"a": 1}', "write a plain space in place of this white space"),
        ('{"a": 1;}', "separate values by commas"),
        ('{"a": [[1], [2]], "b" 2}', ""),
    ],
)
def test_what_to_write_instead(text: str, hint: str) -> None:
    """The position, and what to do."""
    with pytest.raises(JsoncError) as caught:
        parse_jsonc(text)
    assert caught.value.hint == hint
    assert caught.value.data["line"] >= 1
