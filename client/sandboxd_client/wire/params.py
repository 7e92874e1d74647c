"""Conversion between JSON objects and frozen dataclasses, by type hints.

`decode` is for parameters and refuses unknown names. `decode_result` is for results of a possibly newer daemon: unknown
names and unknown words of a `Literal` pass. A decoder is compiled once per class. Supported hints: str int float bool
None object Any, X | None and other unions, Literal, StrEnum, tuple[X, ...], list[X], dict[str, X], Mapping[str, X], and
dataclasses of these."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")
_Decoder = Callable[[object], Any]
_SHOWN = 40


class ParamsError(ValueError):
    """Error of one parameter; `name` is its path, such as `a.b[2]`, or ""."""

    slug = "invalid_params"

    def __init__(self, name: str, expected: str, got: str, hint: str = "") -> None:
        self.name = name
        self.expected = expected
        self.got = got
        self.hint = hint
        subject = f"parameter {name}" if name else "the parameters"
        self.message = f"{subject}: expected {expected}, got {got}"
        super().__init__(self.message)

    def within(self, outer: str) -> ParamsError:
        """Return this error with `outer`, a name or "[index]", before its path."""
        joint = "" if not self.name or self.name.startswith("[") else "."
        return ParamsError(f"{outer}{joint}{self.name}", self.expected, self.got, self.hint)

    @property
    def data(self) -> dict[str, str]:
        return {"parameter": self.name, "expected": self.expected, "got": self.got}


def decode(cls: type[T], value: object) -> T:
    """Return the record of parameters; None counts as {}. Raises ParamsError."""
    return typing.cast(T, _record(cls, True)({} if value is None else value))


def decode_result(cls: type[T], value: object) -> T:
    """Return the record of a result. Raises ParamsError."""
    return typing.cast(T, _record(cls, False)(value))


def encode(record: object) -> dict[str, Any]:
    """Return the JSON object of a record, with every field."""
    return {name: _plain(getattr(record, name)) for name in _names(type(record))}


def encode_params(record: object) -> dict[str, Any]:
    """Return the JSON object of a record without the fields that are None.

    None means the same as absent, and an older daemon would refuse names it does not know."""
    found = ((name, getattr(record, name)) for name in _names(type(record)))
    return {
        name: encode_params(value) if dataclasses.is_dataclass(value) else _plain(value)
        for name, value in found
        if value is not None
    }


_field_names: dict[type, tuple[str, ...]] = {}
_decoders: dict[tuple[type, bool], _Decoder] = {}


def _names(cls: type) -> tuple[str, ...]:
    names = _field_names.get(cls)
    if names is None:
        names = _field_names[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return names


_SCALARS = frozenset((str, int, float, bool, type(None)))


def _plain(value: object) -> object:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        if _SCALARS.issuperset(map(type, value)):  # fast path for an argv
            return list(value)
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return encode(value)
    return value


def _record(cls: type, strict: bool) -> _Decoder:
    decoder = _decoders.get((cls, strict))
    if decoder is None:
        decoder = _decoders[cls, strict] = _compile_record(cls, strict)
    return decoder


def _compile_record(cls: type, strict: bool) -> _Decoder:
    hints = typing.get_type_hints(cls)
    fields = tuple(
        (
            field.name,
            _compile(hints[field.name], strict),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    )
    expected = {name: _describe(hints[name]) for name, _, _ in fields}
    camel = {camel_case(name): name for name in expected}  # parameters may have such names too

    def decode_record(value: object) -> object:
        if type(value) is not dict:
            raise ParamsError("", "an object with named parameters", _kind(value))
        if strict and not expected.keys() >= value.keys():
            value = {camel.get(name, name) if camel.get(name) not in value else name: v for name, v in value.items()}
        found = {}
        for name, decoder, required in fields:
            if name in value:
                try:
                    found[name] = decoder(value[name])
                except ParamsError as error:
                    raise error.within(name) from None
            elif required:
                raise ParamsError(name, expected[name], "nothing", "it is required")
        if strict and len(found) != len(value):
            raise _unknown(next(name for name in value if name not in expected), tuple(expected))
        return cls(**found)

    return decode_record


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _unknown(name: object, known: Sequence[str]) -> ParamsError:
    import difflib

    near = difflib.get_close_matches(str(name)[:_SHOWN], known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
    return ParamsError(_sendable(name), "no parameter of that name", "one", hint)


def _sendable(name: object) -> str:
    """Return a name from outside in a form that can be sent back."""
    return str(name)[:_SHOWN].encode("utf-8", "backslashreplace").decode()


def _compile(hint: Any, strict: bool) -> _Decoder:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return _anything if strict else lambda value: value
    if hint is str and strict:
        return _text
    if hint in (str, bool, dict, list):
        return _exactly(hint)
    if hint is int:
        return _exactly(int)  # type(True) is bool, so a boolean is refused
    if hint is float:
        return _number
    if hint is None or hint is type(None):
        return _nothing
    if origin is Literal:
        return _word(args, _describe(hint), strict)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _member(hint, _describe(hint))
    if origin is Union or origin is types.UnionType:
        return _union([_compile(arm, strict) for arm in args], type(None) in args, _describe(hint))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _items(_compile(args[0], strict), tuple)
    if origin is list:
        return _items(_compile(args[0], strict), list)
    if origin in (dict, Mapping) and args[0] is str:
        return _mapping(_compile(args[1], strict))
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), strict)
    raise TypeError(f"no decoder for {hint!r}")


def _exactly(kind: type) -> _Decoder:
    expected = _describe(kind)

    def decode_exactly(value: object) -> object:
        if type(value) is not kind:
            raise ParamsError("", expected, _kind(value))
        return value

    return decode_exactly


def _text(value: object) -> object:
    """Return a string, which must not contain a lone surrogate (RFC 8259, 8.2)."""
    if type(value) is not str:
        raise ParamsError("", "a string", _kind(value))
    if not value.isascii() and not _is_whole(value):
        raise ParamsError("", "a string", "one with half a surrogate pair, which is not UTF-8")
    return value


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _anything(value: object) -> object:
    """Return a value whose strings are text and whose numbers are finite."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) is str:
            _text(item)
        elif type(item) is float:
            _number(item)
        elif type(item) is list:
            waiting += item
        elif type(item) is dict:
            waiting += item
            waiting += item.values()
    return value


def _number(value: object) -> float:
    """Return a finite number: `1e999` decodes as infinity, which is not JSON."""
    try:
        if type(value) in (float, int) and math.isfinite(found := float(value)):  # type: ignore[arg-type]
            return found
    except OverflowError:
        pass
    if type(value) in (float, int):
        raise ParamsError("", "a number", "one that is infinite or too large")
    raise ParamsError("", "a number", _kind(value))


def _nothing(value: object) -> None:
    if value is not None:
        raise ParamsError("", "null", _kind(value))


def _word(words: tuple[object, ...], expected: str, strict: bool) -> _Decoder:
    kinds = frozenset(type(word) for word in words)

    def decode_word(value: object) -> object:
        if type(value) in kinds and (value in words or not strict):
            return value
        raise ParamsError("", expected, _shown(value))

    return decode_word


def _member(cls: type[enum.Enum], expected: str) -> _Decoder:
    def decode_member(value: object) -> object:
        try:
            return cls(value)
        except ValueError:
            raise ParamsError("", expected, _shown(value)) from None

    return decode_member


def _union(arms: list[_Decoder], nullable: bool, expected: str) -> _Decoder:
    solid = [arm for arm in arms if arm is not _nothing]

    def decode_union(value: object) -> object:
        if value is None and nullable:
            return None
        if len(solid) == 1:
            return solid[0](value)  # its error names the place inside
        for arm in solid:
            try:
                return arm(value)
            except ParamsError:
                continue
        raise ParamsError("", expected, _kind(value))

    return decode_union


def _items(item: _Decoder, build: Callable[[list[Any]], Any]) -> _Decoder:
    def decode_items(value: object) -> object:
        if type(value) is not list:
            raise ParamsError("", "an array", _kind(value))
        try:
            return build([item(each) for each in value])
        except ParamsError:
            pass
        for index, each in enumerate(value):
            try:
                item(each)
            except ParamsError as error:
                raise error.within(f"[{index}]") from None
        raise AssertionError("a decoder gave two answers")

    return decode_items


def _mapping(item: _Decoder) -> _Decoder:
    def decode_mapping(value: object) -> object:
        if type(value) is not dict:
            raise ParamsError("", "an object", _kind(value))
        found = {}
        for key, each in value.items():
            try:
                _text(key)
                found[key] = item(each)
            except ParamsError as error:
                raise error.within(_sendable(key)) from None
        return found

    return decode_mapping


_WORDS: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "an array",
    None: "null",
    type(None): "null",
}


def _describe(hint: Any) -> str:
    if hint in _WORDS:
        return _WORDS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args)) if len(args) > 1 else repr(args[0])
    if origin is Union or origin is types.UnionType:
        return " or ".join(_describe(arm) for arm in args)
    if origin in (tuple, list):
        return "an array"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(repr(member.value) for member in hint)
    return "an object"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def _shown(value: object) -> str:
    """Return a short string quoted; of any other value, maybe secret, the kind."""
    if isinstance(value, str) and len(value) <= _SHOWN:
        return repr(value)
    return _kind(value)
