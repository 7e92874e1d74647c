"""Records of what the daemon sends: results and notifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from sandboxd_client.errors import WrongVersion
from sandboxd_client.wire.messages.methods import NOTIFICATIONS, Method
from sandboxd_client.wire.params import ParamsError, decode_result

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Notification:
    """A message of the daemon that answers no request; `params` is the record that belongs to `method`."""

    method: str
    params: Any


def notification_record(method: str, params: object) -> Notification | None:
    """Return None for one that this client does not know. Raises WrongVersion when its parameters do not fit."""
    kind = NOTIFICATIONS.get(method)
    return None if kind is None else Notification(method, _record(kind, params, f"notification {method}"))


def result_record(method: Method[Any, R], result: object) -> R:
    """Return the record of a result. Raises WrongVersion when it does not fit."""
    return _record(method.result, result, f"answer to {method.name}")


def _record(kind: type[R], value: object, what: str) -> R:
    try:
        return decode_result(kind, value)
    except ParamsError as error:
        problem = f"{error.name or 'it'} should be {error.expected} and is {error.got}"
        raise WrongVersion(f"sandboxd's {what} is not understood: {problem}") from error
