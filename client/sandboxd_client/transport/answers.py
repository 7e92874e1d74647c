"""Records of the daemon's results and notifications."""

from __future__ import annotations

from typing import Any, TypeVar

from sandboxd_client.errors import WrongVersion
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.methods import NOTIFICATIONS, Method
from sandboxd_client.wire.params import ParamsError, decode_result

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification; `params` is the record that belongs to `method`."""

    method: str
    params: Any


def notification_record(method: str, params: object) -> Notification | None:
    """Return the record, or None for an unknown method. Raises WrongVersion."""
    kind = NOTIFICATIONS.get(method)
    return None if kind is None else Notification(method, _record(kind, params, f"the notification {method}"))


def result_record(method: Method[Any, R], result: object) -> R:
    """Return the record of a result. Raises WrongVersion."""
    return _record(method.result, result, f"the answer to {method.name}")


def _record(kind: type[R], value: object, label: str) -> R:
    try:
        return decode_result(kind, value)
    except ParamsError as error:
        problem = f"{error.name or 'it'} is {error.got}, expected {error.expected}"
        raise WrongVersion(f"cannot read {label} from sandboxd: {problem}") from error
