"""Dataclasses with slots whose methods are written at their first use.

`dataclasses.dataclass` compiles six functions for each class at its import, which took 0.4 of a daemon's start; most
records are never compared or printed. Type checkers see the decorator of the standard library, and its `fields`,
`asdict`, `replace` and `is_dataclass` know these classes. Left out, because unused: order, unsafe_hash, keyword-only
fields, ClassVar, InitVar, and a docstring for classes that have none."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, field
    from typing import Any

__all__ = ["dataclass", "field"]

_REQUIRED = object()
_FIELDS, _OPTIONS = "__record_fields__", "__record_options__"


class _Field:
    """Arguments of `dataclasses.field`."""

    __slots__ = ("keywords",)

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


class _FirstUse:
    """Attribute of a class that is made when something asks for it."""

    __slots__ = ("make", "name", "owner")

    def __init__(self, make: Callable[[type], object]) -> None:
        self.make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: object, owner: type) -> object:
        made = self.make(self.owner)
        setattr(self.owner, self.name, made)
        return made.__get__(instance, owner) if hasattr(made, "__get__") else made


def _dataclass(
    *, slots: bool, frozen: bool = False, eq: bool = True, weakref_slot: bool = False
) -> Callable[[type], type]:
    options = {"slots": slots, "frozen": frozen, "eq": eq, "weakref_slot": weakref_slot}
    if not slots:
        raise TypeError("records have slots")
    return lambda cls: _record(cls, options)


def _record(cls: type, options: dict[str, bool]) -> type:
    namespace, fields, taken = dict(cls.__dict__), {}, set[str]()
    for base in cls.__mro__[-2:0:-1]:
        fields.update(base.__dict__.get(_FIELDS, ()))
        taken.update(base.__dict__.get("__slots__", ()))
    for name, hint in cls.__annotations__.items():
        given = namespace.pop(name, _REQUIRED)
        is_whole = type(given) is _Field or given is _REQUIRED
        fields[name] = hint, (given.keywords if type(given) is _Field else {} if is_whole else {"default": given})
    namespace.pop("__dict__", None)
    namespace.pop("__weakref__", None)
    slots = (*fields, "__weakref__") if options["weakref_slot"] else fields
    namespace["__slots__"] = tuple(name for name in slots if name not in taken)
    namespace[_FIELDS], namespace[_OPTIONS] = fields, options
    made = {"__init__": _init, "__repr__": _repr, "__match_args__": _match_args}
    if options["eq"]:
        if namespace.get("__hash__", _REQUIRED) is (None if "__eq__" in namespace else _REQUIRED):
            namespace["__hash__"] = _FirstUse(_hash) if options["frozen"] else None
        made["__eq__"] = _eq
    for name, make in made.items():
        if name not in namespace:
            namespace[name] = _FirstUse(make)
    namespace["__dataclass_fields__"] = _FirstUse(lambda cls: _plain(cls, _FIELDS_ALONE).__dataclass_fields__)
    namespace["__dataclass_params__"] = _FirstUse(lambda cls: _plain(cls, options).__dataclass_params__)
    if options["frozen"]:
        namespace |= _FROZEN | {name: namespace[name] for name in ("__getstate__", "__setstate__") if name in namespace}
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _refuse(_: object, name: str, *value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, name) for name in getattr(self, _FIELDS)]


def _set_state(self: Any, state: list[object]) -> None:
    for name, value in zip(getattr(self, _FIELDS), state, strict=False):
        object.__setattr__(self, name, value)


_FROZEN = {"__setattr__": _refuse, "__delattr__": _refuse, "__getstate__": _get_state, "__setstate__": _set_state}


_FIELDS_ALONE = {"init": False, "repr": False, "eq": False, "match_args": False}
"""Options that let the library compile nothing."""


def _plain(cls: Any, options: dict[str, bool]) -> Any:
    """Return a dataclass of the standard library with the same fields."""
    import dataclasses

    fields = getattr(cls, _FIELDS)
    namespace: dict[str, Any] = {name: dataclasses.field(**keywords) for name, (_, keywords) in fields.items()}
    namespace |= {"__module__": cls.__module__, "__annotations__": {name: hint for name, (hint, _) in fields.items()}}
    namespace["__doc__"] = ""  # else the library writes one, which takes longer than the rest
    return dataclasses.dataclass(**options)(type(cls.__name__, (), namespace))


def _names(cls: Any, option: str) -> tuple[str, ...]:
    return tuple(name for name, (_, keywords) in getattr(cls, _FIELDS).items() if keywords.get(option, True))


def _match_args(cls: type) -> tuple[str, ...]:
    return _names(cls, "init")


def _init(cls: Any) -> object:
    heads, lines, scope = [], [], {"_unset": _REQUIRED, "_set": object.__setattr__}
    for name, (_, keywords) in getattr(cls, _FIELDS).items():
        head = value = name
        if "default_factory" in keywords:
            scope[f"_make_{name}"] = keywords["default_factory"]
            head, value = f"{name}=_unset", f"_make_{name}() if {name} is _unset else {name}"
        elif "default" in keywords:
            scope[f"_default_{name}"] = keywords["default"]
            head = f"{name}=_default_{name}"
        if keywords.get("init", True):
            heads.append(head)
        elif head == name:
            continue  # set by `__post_init__`
        else:
            value = head.partition("=")[2] if "default" in keywords else f"_make_{name}()"
        lines.append(f"_set(self, {name!r}, {value})" if getattr(cls, _OPTIONS)["frozen"] else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    return _compiled(cls, "__init__", ", ".join(["self", *heads]), lines or ["pass"], scope)


def _repr(cls: type) -> object:
    from reprlib import recursive_repr

    shown = ", ".join(f"{name}={{self.{name}!r}}" for name in _names(cls, "repr"))
    line = f"return f'{{self.__class__.__qualname__}}({shown})'"
    return recursive_repr("...")(_compiled(cls, "__repr__", "self", [line]))


def _compared(cls: Any, of: str) -> str:
    return "(" + "".join(f"{of}.{name}, " for name in _names(cls, "compare")) + ")"


def _eq(cls: type) -> object:
    equal = f"{_compared(cls, 'self')} == {_compared(cls, 'other')}"
    line = f"return {equal} if other.__class__ is self.__class__ else NotImplemented"
    return _compiled(cls, "__eq__", "self, other", [line])


def _hash(cls: type) -> object:
    return _compiled(cls, "__hash__", "self", [f"return hash({_compared(cls, 'self')})"])


def _compiled(cls: type, name: str, head: str, lines: list[str], scope: dict[str, Any] | None = None) -> Any:
    scope = scope or {}
    exec(f"def {name}({head}):\n " + "\n ".join(lines), scope)  # noqa: S102 - names of fields only, written in the source
    made = scope[name]
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


if not TYPE_CHECKING:
    dataclass, field = _dataclass, _Field
