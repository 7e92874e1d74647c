"""JSON-RPC 2.0 around jsonrpcserver: a decoded message in, an answer out.

The library does the dispatching: its shape of requests and results, its codes, what a notification is. Around it:
- its check of a message's shape is replaced: it would compile a JSON Schema, and takes three times as long as the rest;
  so the library for those, 7 % of the daemon's start, is not imported;
- each call of a batch is checked by itself, as the specification's examples want, where the library refuses them all;
- it would make a task for each request, which has one already;
- every error it makes of its own gets `data: {slug, hint}` like those of the methods."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import math
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, cast

from sandboxd.proxy.fair_share import Share
from sandboxd_client.wire import codes


class _UncheckedSchema:
    """Placeholder of a validator class of jsonschema."""

    def __init__(self, schema: object) -> None:
        self.schema = schema

    @staticmethod
    def check_schema(schema: object) -> None:
        """Accept the schema."""

    def validate(self, message: object) -> None:
        raise NotImplementedError("messages are checked in sandboxd.rpc.jsonrpc")


@contextlib.contextmanager
def _without_schemas() -> Iterator[None]:
    """Have a placeholder in the place of jsonschema, unless that is loaded."""
    names = ("jsonschema", "jsonschema.validators")
    if any(name in sys.modules for name in names):
        yield
        return
    sys.modules.update((name, ModuleType(name)) for name in names)
    sys.modules[names[1]].validator_for = lambda schema: _UncheckedSchema  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


with warnings.catch_warnings(), _without_schemas():
    # It reads its schema file with importlib.resources.read_text, deprecated in Python 3.11 and back for good in 3.13.
    warnings.simplefilter("ignore", DeprecationWarning)
    from jsonrpcserver import Error, Success
    from jsonrpcserver import Result as Result
    from jsonrpcserver.async_dispatcher import dispatch_request
    from jsonrpcserver.dispatcher import create_request, to_response
    from jsonrpcserver.response import to_serializable
    from jsonrpcserver.sentinels import NOID

MOST_IN_BATCH = 256
DEEPEST = 64
"""Levels of a message. No method needs ten; and what is nested nearly as deep as Python goes can be read at one place
and then not be copied, written or handed to another daemon at the next."""

MOST_VALUES = 250_000
"""Values of a message, about: each takes up to a hundred bytes, and three characters in its line."""
_TEXTS = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

MOST_ID = 2**64 - 1

Json = dict[str, Any]
Call = Callable[[Any, object], Awaitable[Result]]
"""A method: the context and the undecoded `params` in, what `success` or `failure` makes out. It raises nothing but
asyncio.CancelledError."""

_MEMBERS = frozenset({"jsonrpc", "method", "params", "id"})


def success(result: object) -> Result:
    return Success(result)


def failure(code: int, message: str, data: Mapping[str, Any]) -> Result:
    return Error(code, message, dict(data))


class Methods(dict[str, Callable[..., Awaitable[Result]]]):
    """The methods in the form that the library calls."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        super().__init__({name: _callable(call) for name, call in calls.items()})


def _callable(call: Call) -> Callable[..., Awaitable[Result]]:
    # The library passes an array as positional and an object as named arguments.
    async def method(context: Any, /, *positional: Any, **named: Any) -> Result:
        return await call(context, list(positional) if positional else named)

    method.__signature__ = _ANY_ARGUMENTS  # type: ignore[attr-defined]
    return method


class _AnyArguments(inspect.Signature):
    """The signature of every method, to which the library binds the arguments before each call."""

    def bind(self, /, *positional: Any, **named: Any) -> inspect.BoundArguments:
        return _NOTHING_BOUND


_ANY_ARGUMENTS = _AnyArguments()
_NOTHING_BOUND = inspect.BoundArguments(_ANY_ARGUMENTS, OrderedDict())


async def respond(
    message: object, methods: Methods, context: object, share: Share | None = None
) -> Json | list[Json] | None:
    """Return the answer to a request or batch, None for a notification.

    Raises nothing but CancelledError. `share` is the caller's of the event loop."""
    share = share or Share()
    if type(message) is not list:
        return await share.timed(_respond_one(message, methods, context))
    if not message:
        return invalid_request("the batch is empty")
    if len(message) > MOST_IN_BATCH:
        return error_message(
            codes.BUSY,
            f"the batch has {len(message)} calls, and {MOST_IN_BATCH} are accepted",
            "too_many_requests",
            "send several batches, or plain requests",
        )
    answers = await asyncio.gather(*(share.timed(_respond_one(call, methods, context)) for call in message))
    return [answer for answer in answers if answer is not None] or None


async def _respond_one(message: object, methods: Methods, context: object) -> Json | None:
    if type(message) is dict and not _can_be_sent(message.get("id")):
        return invalid_request('the member "id" is no text or number that an answer can have')
    if fault := _fault(message):
        return invalid_request(fault)
    request = create_request(cast("Json", message))
    _, result = await dispatch_request(methods, context, request)
    if request.id is NOID:
        return None
    answer = cast("Json", to_serializable(to_response(request, result)))
    if "error" in answer and not isinstance(answer["error"].get("data"), dict):
        _explain(answer, methods)
    return answer


def _can_be_sent(value: object) -> bool:
    """Return whether an answer can have this id.

    Half a surrogate pair and a number beyond a double (`1e999`) cannot be written as JSON."""
    if type(value) is float:
        return math.isfinite(value)
    try:
        return type(value) is not str or value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _fault(message: object) -> str:
    """Return the fault of a message as a JSON-RPC 2.0 request, empty for none."""
    if type(message) is not dict:
        return "a request is an object"
    if message.get("jsonrpc") != "2.0":
        return 'the member "jsonrpc" must be "2.0"'
    if type(message.get("method")) is not str:
        return 'the member "method" must be a string'
    if "params" in message and type(message["params"]) not in (dict, list):
        return 'the member "params" must be an object'
    if "id" in message and not _can_be_id(message["id"]):
        return 'the member "id" must be a string, a number of at most 64 bits or null'
    if not message.keys() <= _MEMBERS:
        unknown = next(name for name in message if name not in _MEMBERS)
        return f"a request has no member {unknown[:40]!r}"
    return ""


def _can_be_id(value: object) -> bool:
    """Return whether a value can be an id.

    1e999 is read as infinity, which JSON cannot write (RFC 8259)."""
    if type(value) is int:
        return -MOST_ID <= value <= MOST_ID
    return value is None or type(value) is str or (type(value) is float and math.isfinite(value))


def _explain(answer: Json, methods: Iterable[str]) -> None:
    """Give an error of the library a slug, a hint and a precise message."""
    error = answer["error"]
    match error["code"]:
        case codes.METHOD_NOT_FOUND:
            name = str(error.get("data"))[:80]
            near = difflib.get_close_matches(name, list(methods), 1)
            hint = f"did you mean {near[0]}?" if near else "hello tells the methods of this daemon"
            answer["error"] = _error(error["code"], f"there is no method {name!r}", "method_not_found", hint)
        case _:
            answer["error"] = _error(codes.INTERNAL_ERROR, "the call failed", "internal_error", "see the daemon's log")


_SHAPE = 'send {"jsonrpc": "2.0", "id": …, "method": "…", "params": {…}}'


def invalid_request(fault: str) -> Json:
    return error_message(codes.INVALID_REQUEST, f"not a JSON-RPC 2.0 request: {fault}", "invalid_request", _SHAPE)


def error_message(code: int, message: str, slug: str, hint: str = "", request_id: object = None) -> Json:
    """Return an error response; `request_id` is null when it is not known."""
    return {"jsonrpc": "2.0", "error": _error(code, message, slug, hint), "id": request_id}


def _error(code: int, message: str, slug: str, hint: str) -> Json:
    return {"code": code, "message": message, "data": {"slug": slug, "hint": hint}}


def is_too_deep(text: str, message: object) -> bool:
    """Return whether the message of this text is nested too deep (`DEEPEST`)."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    level = [message]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(one, (dict, list)) for one in level)


def has_too_many_values(text: str) -> bool:
    """Return whether a message is not to be read, because of the number of its values (`MOST_VALUES`)."""
    return _count_values(text) > MOST_VALUES and _count_values(_TEXTS.sub("", text)) > MOST_VALUES


def _count_values(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def is_response(message: object) -> bool:
    """Return whether a message is an answer to a request of the daemon."""
    return type(message) is dict and "method" not in message and ("result" in message or "error" in message)
