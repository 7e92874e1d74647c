"""`hello`: the versions of both sides, and the role of the connection."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from sandboxd import __version__
from sandboxd.errors import CallerError
from sandboxd.rpc.call import MethodCall
from sandboxd_client.wire.messages.hello import PROTOCOL, HelloParams, HelloResult, Role
from sandboxd_client.wire.params import ParamsError, decode

PROTOCOL_OLDEST = 1
_LONGEST = 64 << 10
_MEMBERS = {"jsonrpc", "method", "params", "id"}


def gives_powers_up(message: object, text: str) -> bool:
    """Return whether a message restricts its connection, whatever becomes of it.

    A `hello` that is not understood does: a client that asked for the role `agent` may ignore the error. `text` is that
    of the message; a name that stands twice in it can be read in two ways."""
    if len(text) > _LONGEST:
        return "hello" in text and any(_hellos(message))
    return not all(map(_keeps_powers, _hellos(message))) or ("hello" in text and _names_twice(text))


def may_be_hello(text: str) -> bool:
    """Return whether a line that is no JSON names a role."""
    return "hello" in text and "role" in text


def _hellos(message: object) -> Iterator[dict[str, object]]:
    level = [message]
    while level:
        one = level.pop()
        if isinstance(one, list):
            level += [inner for inner in one if isinstance(inner, (list, dict))]
        elif isinstance(one, dict) and isinstance(name := one.get("method"), str) and _is_hello(name):
            yield one


def _is_hello(name: str) -> bool:
    return name.strip().casefold() == "hello"


def _keeps_powers(call: dict[str, object]) -> bool:
    if call["method"] != "hello" or not call.keys() <= _MEMBERS:
        return False
    try:
        return decode(HelloParams, call.get("params", {})).role != "agent"
    except ParamsError:
        return False


def _names_twice(text: str) -> bool:
    found = False

    def members(pairs: list[tuple[str, object]]) -> object:
        nonlocal found
        found = found or len(dict(pairs)) < len(pairs)
        return None

    json.loads(text, object_pairs_hook=members)
    return found


class HelloMethods:
    """`hello`."""

    async def hello(self, call: MethodCall, params: HelloParams) -> HelloResult:
        """Tell the client the protocol of the daemon, or refuse one that is too old."""
        if params.protocol < PROTOCOL_OLDEST:
            raise CallerError(
                "wrong_version",
                f"the client speaks protocol {params.protocol}, this daemon {PROTOCOL_OLDEST} to {PROTOCOL}",
                hint="update sandboxd-client",
                data={"protocol": PROTOCOL, "protocol_oldest": PROTOCOL_OLDEST},
            )
        if params.role == "full" and call.caller.restricted:
            raise CallerError(
                "not_permitted", "this connection has given its powers up", hint="connect again without the role agent"
            )
        names = tuple(name for name, method in call.methods.items() if method.access in call.caller.access)
        role: Role = "agent" if call.caller.restricted else "full"
        return HelloResult("sandboxd", __version__, PROTOCOL, PROTOCOL_OLDEST, os.getpid(), names, role)
