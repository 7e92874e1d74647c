"""Conversion of frozen records to JSON and back, by their type hints.

A field of type `Descriptor` becomes its position in a list of descriptors. A missing field takes its default and an
unknown one is ignored, so a record may grow by fields with defaults. A renamed field keeps its former name in documents
(`metadata={"recorded": …}`). Any other change needs another version (`document`).

Understood hints: str int float bool None Any, bytes, Descriptor, Enum, IP addresses, Optional[X], tuple[X, ...],
tuple[X, Y], named tuples, frozenset[X], Mapping[str, X] and dataclasses of these. Text may hold lone surrogates, as
paths do."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NewType, TypeVar, Union

T = TypeVar("T")
Descriptor = NewType("Descriptor", int)
"""Open file descriptor that is handed over; -1 for none."""
NO_DESCRIPTOR = Descriptor(-1)

_ADDRESSES = frozenset({IPv4Address, IPv6Address})


class RecordError(ValueError):
    """Value that is not such a record. The message names the field."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """Writer and reader of the values of one hint."""

    write: Callable[[Any, list[int]], Any]
    read: Callable[[Any, Sequence[int]], Any]


def write_record(record: object) -> tuple[dict[str, Any], list[int]]:
    """Return the JSON object of a record, and its descriptors by position."""
    descriptors: list[int] = []
    kind: Any = type(record)
    return _form(kind).write(record, descriptors), descriptors


def read_record(cls: type[T], value: object, descriptors: Sequence[int]) -> T:
    """Read a record. Raises RecordError."""
    kind: Any = cls
    try:
        return typing.cast(T, _form(kind).read(value, descriptors))
    except RecordError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise RecordError(f"{cls.__name__}: {error}") from error


@cache
def _form(hint: Any) -> _Form:
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if hint is Descriptor:
        return _Form(_write_descriptor, _read_descriptor)
    if hint is Any or hint is object:
        return _Form(lambda value, _: value, lambda value, _: value)
    if hint in (str, bool, int):
        return _Form(lambda value, _: value, _exactly(hint))
    if hint is float:
        return _Form(lambda value, _: value, lambda value, _: float(_exactly(int, float)(value, ())))
    if hint is bytes:
        return _Form(lambda value, _: base64.b64encode(value).decode("ascii"), _read_bytes)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _Form(lambda value, _: value.value, lambda value, _: hint(value))
    if origin is Union or origin is types.UnionType:
        return _union(frozenset(arms))
    if hint in _ADDRESSES:
        return _Form(lambda value, _: str(value), lambda value, _: ip_address(value))
    if origin is tuple and len(arms) == 2 and arms[1] is Ellipsis:
        return _sequence(_form(arms[0]), tuple)
    if origin is frozenset:
        return _sequence(_form(arms[0]), frozenset)
    if origin is tuple:
        return _fixed([_form(arm) for arm in arms])
    if origin in (dict, Mapping) and arms[0] is str:
        return _mapping(_form(arms[1]))
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _named(hint)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint))
    raise TypeError(f"no form for {hint!r}")


def _write_descriptor(value: int, descriptors: list[int]) -> int:
    if value < 0:
        return -1
    descriptors.append(value)
    return len(descriptors) - 1


def _read_descriptor(value: Any, descriptors: Sequence[int]) -> int:
    position = _exactly(int)(value, ())
    if not -1 <= position < len(descriptors):
        raise RecordError(f"there is no descriptor {position}")
    return -1 if position < 0 else descriptors[position]


def _read_bytes(value: Any, _: Sequence[int]) -> bytes:
    try:
        return base64.b64decode(_exactly(str)(value, ()), validate=True)
    except binascii.Error as error:
        raise RecordError(f"no base64: {error}") from error


def _exactly(*kinds: type) -> Callable[[Any, Sequence[int]], Any]:
    def read(value: Any, _: Sequence[int]) -> Any:
        if type(value) not in kinds:
            raise RecordError(f"{kinds[-1].__name__} expected, not {type(value).__name__}")
        return value

    return read


def _union(arms: frozenset[Any]) -> _Form:
    rest = arms - {type(None)}
    if rest <= _ADDRESSES:
        inner = _form(IPv4Address)
    elif len(rest) == 1:
        inner = _form(next(iter(rest)))
    else:
        raise TypeError(f"no form for one of {arms!r}")
    if rest == arms:
        return inner
    return _Form(
        lambda value, descriptors: None if value is None else inner.write(value, descriptors),
        lambda value, descriptors: None if value is None else inner.read(value, descriptors),
    )


def _sequence(item: _Form, kind: type) -> _Form:
    def read(value: Any, descriptors: Sequence[int]) -> Any:
        return kind(item.read(one, descriptors) for one in _exactly(list)(value, ()))

    return _Form(lambda value, descriptors: [item.write(one, descriptors) for one in value], read)


def _fixed(items: list[_Form]) -> _Form:
    def read(value: Any, descriptors: Sequence[int]) -> Any:
        found = _exactly(list)(value, ())
        return tuple(item.read(one, descriptors) for item, one in zip(items, found, strict=True))

    return _Form(
        lambda value, descriptors: [item.write(one, descriptors) for item, one in zip(items, value, strict=True)], read
    )


def _named(cls: Any) -> _Form:
    fixed = _fixed([_form(hint) for hint in typing.get_type_hints(cls).values()])
    return _Form(fixed.write, lambda value, descriptors: cls(*fixed.read(value, descriptors)))


def _mapping(item: _Form) -> _Form:
    def read(value: Any, descriptors: Sequence[int]) -> Any:
        return {key: item.read(one, descriptors) for key, one in _exactly(dict)(value, ()).items()}

    return _Form(lambda value, descriptors: {key: item.write(one, descriptors) for key, one in value.items()}, read)


def _record(cls: type) -> _Form:
    hints = typing.get_type_hints(cls)
    fields = [
        (field.name, field.metadata.get("recorded", field.name), _has_default(field))
        for field in dataclasses.fields(cls)
        if field.init
    ]

    def write(value: Any, descriptors: list[int]) -> Any:
        return {recorded: _form(hints[name]).write(getattr(value, name), descriptors) for name, recorded, _ in fields}

    def read(value: Any, descriptors: Sequence[int]) -> Any:
        _exactly(dict)(value, ())
        found = {}
        for name, recorded, has_default in fields:
            if recorded in value:
                try:
                    found[name] = _form(hints[name]).read(value[recorded], descriptors)
                except (TypeError, ValueError, KeyError) as error:
                    raise RecordError(f"{cls.__name__}.{name}: {error}") from error
            elif not has_default:
                raise RecordError(f"{cls.__name__} without {name}")
        return cls(**found)

    return _Form(write, read)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
