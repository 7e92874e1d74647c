"""What is around every handler: parameters checked, errors as the wire has them, nothing internal given away."""

from __future__ import annotations

import dataclasses
import errno
import os
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxd import errors
from sandboxd.rpc.call import MethodCall, Route
from sandboxd.rpc.dispatch import METHODS, Dispatcher
from sandboxd.rpc.peer import Caller, MethodAccess
from sandboxd_client.wire import codes
from sandboxd_client.wire.messages.methods import METHODS as RECORDS
from support.rpc import Log


@dataclass(frozen=True, slots=True)
class Params:
    name: str
    count: int = 0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    nested: tuple[Params, ...] = ()


class FakeClient:
    caller = Caller(1000, 1000, 4242)

    def restrict(self) -> None:
        raise AssertionError

    def notify(self, method: str, params: dict[str, Any]) -> None:
        raise AssertionError


class Restricted(FakeClient):
    caller = Caller(1000, 1000, 4242, frozenset({MethodAccess.ASK}))


async def ask(
    handler: Any, params: Any, access: MethodAccess = MethodAccess.ASK, client: Any = None
) -> tuple[Any, Log]:
    log = Log()
    dispatcher = Dispatcher({"m": Route(Params, handler, access)}, None, log.logger)  # type: ignore[arg-type]
    message = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}
    return await dispatcher.respond(message, client or FakeClient()), log


async def echo(call: MethodCall, params: Params) -> Answer:
    return Answer(params.name * params.count, (params,))


def raising(error: Exception) -> Any:
    async def handler(call: MethodCall, params: Params) -> Answer:
        raise error

    return handler


async def test_records_in_and_out() -> None:
    answer, _ = await ask(echo, {"name": "ab", "count": 2, "tags": ["x"]})
    assert answer["result"] == {"text": "abab", "nested": [{"name": "ab", "count": 2, "tags": ["x"]}]}


@pytest.mark.parametrize(
    ("params", "parameter", "hint"),
    [
        ({}, "name", "it is required"),
        ({"name": 1}, "name", ""),
        ({"name": None}, "name", ""),
        ({"name": "a", "count": "1"}, "count", ""),
        ({"name": "a", "count": True}, "count", ""),
        ({"name": "a", "count": 1.5}, "count", ""),
        ({"name": "a", "tags": "x"}, "tags", ""),
        ({"name": "a", "tags": ["x", 1]}, "tags[1]", ""),
        ({"name": "a", "counts": 1}, "counts", "did you mean count?"),
        (["a"], "", ""),
    ],
)
async def test_wrong_parameters_name_the_parameter(params: Any, parameter: str, hint: str) -> None:
    answer, log = await ask(echo, params)
    error = answer["error"]
    assert error["code"] == codes.INVALID_PARAMS
    assert error["data"]["slug"] == "invalid_params"
    assert error["data"]["parameter"] == parameter
    assert hint in error["data"]["hint"]
    assert "traceback" not in log.text.lower()


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (errors.CallerError, codes.CALLER),
        (errors.SettingsError, codes.SETTINGS),
        (errors.PolicyError, codes.POLICY),
        (errors.HostError, codes.HOST),
        (errors.LaunchError, codes.LAUNCH),
    ],
)
async def test_errors_say_whose_fault_it_was(kind: type[errors.DaemonError], number: int) -> None:
    error = kind("some_slug", "what happened", hint="what to do", data={"file": "/f"})
    answer, _ = await ask(raising(error), {"name": ""})
    assert answer["error"] == {
        "code": number,
        "message": "what happened",
        "data": {"slug": "some_slug", "hint": "what to do", "file": "/f"},
    }


async def test_a_slug_of_the_table_has_its_own_number() -> None:
    answer, _ = await ask(raising(errors.CallerError("not_permitted", "no")), {"name": ""})
    assert answer["error"]["code"] == codes.DENIED


async def test_errors_are_safe_to_print() -> None:
    answer, _ = await ask(raising(errors.SettingsError("s", "key \x1b[31m\u202e", hint="\n\x07")), {"name": ""})
    assert answer["error"]["message"] == "key \\x1b[31m\\u202e"
    assert answer["error"]["data"]["hint"] == "\\x0a\\x07"


@pytest.mark.parametrize("error", [ValueError("secret detail"), KeyError("secret detail"), RecursionError()])
async def test_our_own_bugs_are_told_by_number_only(error: Exception) -> None:
    answer, log = await ask(raising(error), {"name": "private"})
    told = answer["error"]
    assert told["code"] == codes.INTERNAL_ERROR
    assert told["data"]["slug"] == "internal_error"
    assert "secret detail" not in str(answer)
    assert "Traceback" not in str(answer)
    (record,) = log.records
    assert record["incident"] == told["data"]["incident"]
    assert record["incident"] in told["data"]["hint"]
    assert record["method"] == "m"
    assert "Traceback" in record["exception"]
    assert "private" not in log.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EIO, errno.EROFS])
async def test_what_the_machine_refuses_is_no_bug(number: int) -> None:
    answer, log = await ask(raising(OSError(number, "", "/secret/path")), {"name": ""})
    told = answer["error"]
    assert (told["code"], told["data"]["slug"]) == (codes.HOST, "host_exhausted")
    assert os.strerror(number) in told["message"] and told["data"]["hint"] and "secret" not in str(told)
    assert "/secret/path" in log.records[0]["exception"]
    other, _ = await ask(raising(OSError(errno.EBADF, "")), {"name": ""})
    assert other["error"]["data"]["slug"] == "internal_error"


async def test_an_answer_that_is_no_record_is_our_bug() -> None:
    async def handler(call: MethodCall, params: Params) -> Any:
        return object()

    answer, _ = await ask(handler, {"name": ""})
    assert answer["error"]["data"]["slug"] == "internal_error"


async def test_a_method_asks_for_access() -> None:
    answer, _ = await ask(echo, {"name": ""}, MethodAccess.CONTROL, Restricted())
    assert answer["error"]["data"]["slug"] == "not_permitted"
    assert answer["error"]["code"] == codes.DENIED


async def test_control_is_logged() -> None:
    _, log = await ask(echo, {"name": ""}, MethodAccess.CONTROL)
    assert [(r["event"], r["method"], r["peer"]) for r in log.records] == [("control", "m", 4242)]


def test_every_method_has_the_records_of_the_wire() -> None:
    assert set(METHODS) <= set(RECORDS)
    for name, method in METHODS.items():
        assert method.params is RECORDS[name].params, name
        assert dataclasses.is_dataclass(RECORDS[name].result)
