"""Conversion between JSON text and values by the C part of the `json` module.

`import json` costs about 6 ms (it needs `re` and `enum`), half of what a bare interpreter takes to start, and `sandboxd
run` starts one for every command. The built-in module `_json` holds the functions that `json.loads` and `json.dumps`
call. Where it is missing or changed, `json` serves, with the same results (`tests/wire/test_jsontext.py`)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class JsonTextError(ValueError):
    """Text that is not JSON, or a value that JSON cannot express."""

    def __init__(self, slug: str, message: str) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


class _ScannerOptions:
    """Options of the C scanner, with the attribute names of json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


_WHITESPACE = " \t\n\r"


def _fast() -> tuple[Callable[[object], str], Callable[[str], object]]:
    import _json

    encode = _json.make_encoder(None, _no_default, _json.encode_basestring, None, ":", ",", False, False, False)
    scan = _json.make_scanner(_ScannerOptions)  # type: ignore[arg-type]

    def dumps(value: object) -> str:
        return "".join(encode(value, 0))

    def loads(text: str) -> object:
        stripped = text.strip(_WHITESPACE)
        try:
            value, end = scan(stripped, 0)
        except StopIteration as error:
            raise ValueError(f"expected a value at character {error.value}") from None
        if end != len(stripped):
            raise ValueError(f"extra data at character {end}")
        return value

    if loads(dumps({"a": [1, "é", None, True]})) != {"a": [1, "é", None, True]}:
        raise TypeError
    return dumps, loads


def _plain() -> tuple[Callable[[object], str], Callable[[str], object]]:
    import json

    encoder = json.JSONEncoder(
        check_circular=False, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_no_default
    )
    return encoder.encode, json.JSONDecoder(parse_constant=_refuse_constant).decode


def _no_default(value: object) -> object:
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


try:
    _dumps, _loads = _fast()
except (ImportError, AttributeError, TypeError, ValueError):  # another interpreter, or a changed `_json`
    _dumps, _loads = _plain()


def dumps(value: object) -> str:
    """Return compact JSON on one line. Raises JsonTextError."""
    try:
        return _dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonTextError("not_encodable", f"cannot be written as JSON: {error or 'nested too deeply'}") from error


def loads(text: str) -> object:
    """Return the value of strict JSON (RFC 8259). Raises JsonTextError."""
    try:
        return _loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonTextError("parse_error", f"not JSON: {error}") from error
