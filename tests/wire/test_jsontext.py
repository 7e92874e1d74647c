"""The fast path through the C parts gives what the module `json` gives."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd_client.wire import jsontext

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
WAYS = [(jsontext.dumps, jsontext.loads), jsontext._plain(), jsontext._fast()]


@pytest.mark.parametrize(("dumps", "loads"), WAYS, ids=["chosen", "plain", "fast"])
@given(value=VALUES)
def test_both_ways_agree_with_json(dumps: Any, loads: Any, value: object) -> None:
    text = dumps(value)
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert loads(text) == json.loads(text)


@given(text=st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u\n', max_size=30))
def test_texts_are_accepted_and_refused_alike(text: str) -> None:
    results = []
    for loads in (jsontext._fast()[1], jsontext._plain()[1]):
        try:
            results.append(("value", repr(loads(text))))
        except (ValueError, RecursionError):
            results.append(("refused", ""))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "nul", '"a', "1 2", "NaN", "[Infinity]", "{1:2}", "'a'", "\ufeff1"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(jsontext.JsonTextError) as caught:
        jsontext.loads(text)
    assert caught.value.slug == "parse_error"
    assert caught.value.message


def test_depth_has_a_limit_and_no_crash() -> None:
    with pytest.raises(jsontext.JsonTextError):
        jsontext.loads("[" * 200_000)
    deep: list[object] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(jsontext.JsonTextError):
        jsontext.dumps(deep)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, b"x", [object()]])
def test_what_cannot_be_json_is_refused(value: object) -> None:
    with pytest.raises(jsontext.JsonTextError) as caught:
        jsontext.dumps(value)
    assert caught.value.slug == "not_encodable"
