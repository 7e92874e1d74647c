"""JSON-RPC 2.0 without a socket: messages as dictionaries in, answers out. The examples are the specification's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.rpc.jsonrpc import MOST_IN_BATCH, Methods, respond, success


async def subtract(context: object, params: Any) -> Any:
    return success(params["minuend"] - params["subtrahend"])


async def update(context: object, params: Any) -> Any:
    return success(None)


async def get_data(context: object, params: Any) -> Any:
    return success(["hello", 5])


METHODS = Methods({"subtract": subtract, "update": update, "get_data": get_data})


def ask(text: str) -> Any:
    return asyncio.run(respond(json.loads(text), METHODS, object()))


def shape(answer: Any) -> Any:
    """An answer without the texts, which are not the specification's business."""
    if isinstance(answer, list):
        return [shape(one) for one in answer]
    if isinstance(answer, dict) and "error" in answer:
        assert answer["jsonrpc"] == "2.0"
        assert answer["error"]["message"]
        assert answer["error"]["data"]["slug"]
        assert answer["error"]["data"]["hint"]
        return {"error": answer["error"]["code"], "id": answer["id"]}
    return answer


PARAMS = '"params": {"subtrahend": 23, "minuend": 42}'
SPECIFICATION: dict[str, tuple[str, Any]] = {
    "named parameters": (
        f'{{"jsonrpc": "2.0", "method": "subtract", {PARAMS}, "id": 3}}',
        {"jsonrpc": "2.0", "result": 19, "id": 3},
    ),
    "a text as id": (
        f'{{"jsonrpc": "2.0", "method": "subtract", {PARAMS}, "id": "a"}}',
        {"jsonrpc": "2.0", "result": 19, "id": "a"},
    ),
    "null as id is a request": (
        '{"jsonrpc": "2.0", "method": "get_data", "id": null}',
        {"jsonrpc": "2.0", "result": ["hello", 5], "id": None},
    ),
    "a notification": ('{"jsonrpc": "2.0", "method": "update", "params": {"a": 1}}', None),
    "a notification of no method": ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    "no such method": ('{"jsonrpc": "2.0", "method": "foobar", "id": "1"}', {"error": -32601, "id": "1"}),
    "no request": ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', {"error": -32600, "id": None}),
    "an empty batch": ("[]", {"error": -32600, "id": None}),
    "a batch of one that is none": ("[1]", [{"error": -32600, "id": None}]),
    "a batch of three that are none": ("[1,2,3]", [{"error": -32600, "id": None}] * 3),
    "a mixed batch": (
        f"""[{{"jsonrpc": "2.0", "method": "subtract", {PARAMS}, "id": "1"}},
             {{"jsonrpc": "2.0", "method": "update", "params": {{}}}},
             {{"foo": "boo"}},
             {{"jsonrpc": "2.0", "method": "foo.get", "params": {{"name": "myself"}}, "id": "5"}},
             {{"jsonrpc": "2.0", "method": "get_data", "id": "9"}}]""",
        [
            {"jsonrpc": "2.0", "result": 19, "id": "1"},
            {"error": -32600, "id": None},
            {"error": -32601, "id": "5"},
            {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"},
        ],
    ),
    "a batch of notifications": ('[{"jsonrpc": "2.0", "method": "update"}, {"jsonrpc": "2.0", "method": "x"}]', None),
}


@pytest.mark.parametrize("name", SPECIFICATION)
def test_the_examples_of_the_specification(name: str) -> None:
    text, expected = SPECIFICATION[name]
    assert shape(ask(text)) == expected


@pytest.mark.parametrize(
    "message",
    [
        "null", "true", "1", '"x"', "{}", '{"method": "update", "id": 1}',
        '{"jsonrpc": "1.0", "method": "update", "id": 1}', '{"jsonrpc": 2.0, "method": "update", "id": 1}',
        '{"jsonrpc": "2.0", "id": 1}', '{"jsonrpc": "2.0", "method": null, "id": 1}',
        '{"jsonrpc": "2.0", "method": "update", "params": null, "id": 1}',
        '{"jsonrpc": "2.0", "method": "update", "params": "x", "id": 1}',
        '{"jsonrpc": "2.0", "method": "update", "id": true}', '{"jsonrpc": "2.0", "method": "update", "id": []}',
        '{"jsonrpc": "2.0", "method": "update", "id": {}}', '{"jsonrpc": "2.0", "method": "update", "parms": {}}',
    ],
)  # fmt: skip
def test_what_is_no_request(message: str) -> None:
    assert shape(ask(message)) == {"error": -32600, "id": None}


def test_the_fault_is_named() -> None:
    answer = ask('{"jsonrpc": "2.0", "method": "update", "parms": {}, "id": 1}')
    assert "'parms'" in answer["error"]["message"]


def test_a_misspelt_method_is_recognised() -> None:
    answer = ask('{"jsonrpc": "2.0", "method": "substract", "id": 1}')
    assert answer["error"]["data"] == {"slug": "method_not_found", "hint": "did you mean subtract?"}


def test_a_batch_that_is_too_long_runs_nothing() -> None:
    ran = []

    async def count(context: object, params: Any) -> Any:
        ran.append(1)
        return success(None)

    batch = [{"jsonrpc": "2.0", "method": "count", "id": 1}] * (MOST_IN_BATCH + 1)
    answer: Any = asyncio.run(respond(batch, Methods({"count": count}), object()))
    assert answer["error"]["data"]["slug"] == "too_many_requests"
    assert ran == []


def test_parameters_may_have_any_name() -> None:
    seen = []

    async def see(context: object, params: Any) -> Any:
        seen.append(params)
        return success(None)

    names = {"context": 1, "self": 2, "method": 3, "params": 4, "": 5, "a b": 6, "class": 7}
    for params in (names, {}, [1, 2], []):
        message = {"jsonrpc": "2.0", "method": "see", "id": 1, "params": params}
        asyncio.run(respond(message, Methods({"see": see}), object()))
    assert seen == [names, {}, [1, 2], {}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON | st.fixed_dictionaries({}, optional={"jsonrpc": JSON, "method": JSON, "params": JSON, "id": JSON}))
def test_any_json_gets_an_answer_or_none(message: Any) -> None:
    answer = asyncio.run(respond(message, METHODS, object()))
    assert answer is None or isinstance(answer, (dict, list))
    json.dumps(answer)


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", str(2**64), str(-(2**64)), "1" + "0" * 400]
)
def test_a_number_that_no_answer_can_have_is_no_id(number: str) -> None:
    answer = ask(f'{{"jsonrpc": "2.0", "method": "get_data", "id": {number}}}')
    assert shape(answer) == {"error": -32600, "id": None}
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize("number", ["1.5", "1e300", str(2**64 - 1), str(-(2**63)), "0"])
def test_other_numbers_are(number: str) -> None:
    answer = ask(f'{{"jsonrpc": "2.0", "method": "get_data", "id": {number}}}')
    assert answer == {"jsonrpc": "2.0", "result": ["hello", 5], "id": json.loads(number)}


def test_the_library_for_schemas_is_not_loaded_and_can_be() -> None:
    """It takes a part of each start, and no message is checked by it."""
    code = (
        "import sys, sandboxd.rpc.jsonrpc; before = 'jsonschema' in sys.modules; import jsonschema.validators;"
        "print(before, jsonschema.validators.validator_for({}).check_schema({'type': 'object'}))"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "None"]
