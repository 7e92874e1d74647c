"""JSON objects to records, with errors that name the parameter, what was expected and what came."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from sandboxd_client.wire import params
from sandboxd_client.wire.messages.methods import METHODS
from sandboxd_client.wire.messages.wrap import OverridesRecord, WrapParams
from sandboxd_client.wire.params import ParamsError, decode, decode_result, encode, encode_params


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Outer:
    text: str
    count: int = 1
    share: float = 0.5
    flag: bool = False
    word: Literal["one", "two"] = "one"
    colour: Colour | None = None
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    names: list[str] = field(default_factory=list)
    table: Mapping[str, int] = field(default_factory=dict)
    either: str | int = 0
    anything: Any = None


FULL = {
    "text": "é",
    "count": 3,
    "share": 1,
    "flag": True,
    "word": "two",
    "colour": "blue",
    "inner": {"name": "a", "size": 2},
    "many": [{"name": "b"}],
    "names": ["x"],
    "table": {"k": 1},
    "either": "s",
    "anything": [{"deep": None}],
}


def test_every_kind_of_field() -> None:
    record = decode(Outer, FULL)
    assert record == Outer(
        text="é",
        count=3,
        share=1.0,
        flag=True,
        word="two",
        colour=Colour.BLUE,
        inner=Inner("a", 2),
        many=(Inner("b"),),
        names=["x"],
        table={"k": 1},
        either="s",
        anything=[{"deep": None}],
    )
    assert type(record.share) is float


def test_what_is_absent_has_its_default() -> None:
    assert decode(Outer, {"text": ""}) == Outer("")


def test_a_record_survives_the_way_there_and_back() -> None:
    record = decode(Outer, FULL)
    assert decode(Outer, encode(record)) == record
    assert encode(Outer("", colour=Colour.RED))["colour"] == "red"


@pytest.mark.parametrize(
    ("value", "name", "expected", "got"),
    [
        ({}, "text", "a string", "nothing"),
        ({"text": None}, "text", "a string", "null"),
        ({"text": 1}, "text", "a string", "a number"),
        ({"text": "", "count": True}, "count", "an integer", "true"),
        ({"text": "", "count": 1.5}, "count", "an integer", "a number"),
        ({"text": "", "count": "1"}, "count", "an integer", "a string"),
        ({"text": "", "share": "1"}, "share", "a number", "a string"),
        ({"text": "", "share": 10**400}, "share", "a number", "one that is infinite or too large"),
        ({"text": "", "share": False}, "share", "a number", "false"),
        ({"text": "", "flag": 0}, "flag", "true or false", "a number"),
        ({"text": "", "word": "three"}, "word", "one of 'one', 'two'", "'three'"),
        ({"text": "", "word": 1}, "word", "one of 'one', 'two'", "a number"),
        ({"text": "", "colour": "green"}, "colour", "one of 'red', 'blue'", "'green'"),
        ({"text": "", "inner": []}, "inner", "an object with named parameters", "an array"),
        ({"text": "", "inner": {"name": 1}}, "inner.name", "a string", "a number"),
        ({"text": "", "inner": {}}, "inner.name", "a string", "nothing"),
        ({"text": "", "many": {}}, "many", "an array", "an object"),
        ({"text": "", "many": [{"name": ""}, {"name": "", "size": ""}]}, "many[1].size", "an integer", "a string"),
        ({"text": "", "names": ["", None]}, "names[1]", "a string", "null"),
        ({"text": "", "table": {"k": "v"}}, "table.k", "an integer", "a string"),
        ({"text": "", "either": []}, "either", "a string or an integer", "an array"),
        ({"text": "", "nmaes": []}, "nmaes", "no parameter of that name", "one"),
        ({"text": "", "inner": {"name": "", "x": 1}}, "inner.x", "no parameter of that name", "one"),
        ([], "", "an object with named parameters", "an array"),
        ("x", "", "an object with named parameters", "a string"),
    ],
)
def test_errors_name_the_place(value: object, name: str, expected: str, got: str) -> None:
    with pytest.raises(ParamsError) as caught:
        decode(Outer, value)
    error = caught.value
    assert (error.name, error.expected, error.got) == (name, expected, got)
    assert error.slug == "invalid_params"
    assert error.data == {"parameter": name, "expected": expected, "got": got}
    assert name in error.message and expected in error.message and got in error.message


def test_an_unknown_name_gets_the_nearest_one_as_a_hint() -> None:
    with pytest.raises(ParamsError) as caught:
        decode(WrapParams, {"comand": "ls"})
    assert caught.value.hint == "did you mean command?"


def test_values_of_strings_are_not_shown() -> None:
    with pytest.raises(ParamsError) as caught:
        decode(Outer, {"text": "", "word": "a secret that is longer than any word could be, by far"})
    assert "secret" not in caught.value.message


def test_no_parameters_are_an_empty_object() -> None:
    assert decode(METHODS["status"].params, None) == METHODS["status"].params()


def test_results_may_have_more_than_is_known() -> None:
    record = decode_result(Outer, {**FULL, "new": 1, "word": "three", "inner": {"name": "a", "new": []}})
    assert str(record.word) == "three"
    assert record.inner == Inner("a")
    with pytest.raises(ParamsError):
        decode_result(Outer, {"text": 1})


def test_params_are_sent_without_what_is_none() -> None:
    sent = encode_params(WrapParams(command="ls", overrides=OverridesRecord(allow_write=("/x",))))
    assert sent == {
        "command": "ls",
        "overrides": {"allow_domains": [], "allow_write": ["/x"], "allow_read": []},
    }
    assert decode(WrapParams, sent) == WrapParams(command="ls", overrides=OverridesRecord(allow_write=("/x",)))


@pytest.mark.parametrize("method", METHODS)
def test_every_message_has_a_decoder(method: str) -> None:
    for record in (METHODS[method].params, METHODS[method].result):
        params._record(record, True)
        params._record(record, False)


def test_a_hint_without_a_decoder_is_our_own_mistake() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: complex

    Odd.__annotations__["value"] = complex
    with pytest.raises(TypeError, match="no decoder"):
        decode(Odd, {"value": 1})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"text": "a\ud800"}, "text"),
        ({"text": "a", "names": ["b", "\udcff"]}, "names[1]"),
        ({"text": "a", "table": {"\ud800": 1}}, "table.\\ud800"),
        ({"text": "a", "anything": [{"b": {"\ud800": 1}}]}, "anything"),
        ({"text": "a", "\ud800": 1}, "\\ud800"),
    ],
)
def test_half_a_surrogate_pair_is_no_text(value: object, name: str) -> None:
    with pytest.raises(ParamsError) as caught:
        decode(Outer, value)
    assert caught.value.name == name
    assert str(caught.value).encode()  # it can be told
    assert decode(Outer, {"text": "\U0001f600", "anything": {"é": ["€"]}}).text == "\U0001f600"
