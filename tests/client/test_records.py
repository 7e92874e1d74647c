"""Records against dataclasses of the standard library: shapes by chance, and each record of the project."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandboxd_client import records

_DEFAULTS = ("", " = 1", " = None", " = field(default=2)", " = field(default_factory=list)", " = 'x'")
_LATE = (
    *_DEFAULTS[1:],
    " = field(default=3, repr=False)",
    " = field(default=3, compare=False)",
    " = field(default_factory=dict, init=False)",
    " = field(default=4, init=False, metadata={'a': 1})",
)
_METHODS = (
    "",
    "    def __post_init__(self): object.__setattr__(self, self.__slots__[0], 'changed')\n",
    "    def __eq__(self, other): return True\n",
    "    def __hash__(self): return 7\n",
    "    def __repr__(self): return 'own'\n",
    "    def __init__(self, *given): object.__setattr__(self, self.__slots__[0], given)\n",
)
_NAMES = ("a", "b", "c", "d", "e")


@st.composite
def _classes(draw: st.DrawFn) -> str:
    """Return the text of a record, and often of one that inherits from it."""
    frozen, eq, weakref = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())

    def one(head: str, names: list[str], defaults: tuple[str, ...], weakref_slot: bool) -> str:
        body = "".join(f"    {name}: int{draw(st.sampled_from(defaults))}\n" for name in names)
        options = f"frozen={frozen}, eq={eq}, slots=True, weakref_slot={weakref_slot}"
        return f"@dataclass({options})\nclass {head}:\n{body}{draw(st.sampled_from(_METHODS))}    pass\n"

    first = draw(st.lists(st.sampled_from(_NAMES), min_size=1, unique=True))
    required = draw(st.integers(0, len(first)))
    text = one("Record", first[:required] or first, _DEFAULTS[:1], weakref)
    if 0 < required < len(first) or required == 0:
        text = one("Record", first, _LATE, weakref)
    if draw(st.booleans()):
        text += one("Heir(Record)", draw(st.lists(st.sampled_from(_NAMES), unique=True)), _LATE, False)
        text += "class Plain(Heir):\n    pass\n"
    return text + "class Other(Record):\n    pass\n"


def _made(text: str, dataclass: object, field: object) -> types.ModuleType:
    module = types.ModuleType("made_by_chance")
    module.__dict__.update(dataclass=dataclass, field=field)
    with _imported(module):
        exec(compile("from __future__ import annotations\n" + text, "made", "exec"), module.__dict__)  # noqa: S102
    return module


@contextmanager
def _imported(module: types.ModuleType) -> Iterator[None]:
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]


def _shown(action: Callable[[], Any]) -> tuple[str, object]:
    """Return what an action gives, in a form that does not name the class objects."""
    try:
        found = action()
    except Exception as error:
        if str(error).startswith("super(type, obj)"):  # of a frozen class with slots, before Python 3.14
            return "FrozenInstanceError", ""
        return type(error).__name__, "" if isinstance(error, dataclasses.FrozenInstanceError) else str(error)
    return type(found).__name__, found if isinstance(found, str | int | tuple | dict | bool) else repr(found)


def _matched(one: Any) -> object:
    names = type(one).__match_args__
    return names, [getattr(one, name, "absent") for name in names]


def _behaviour(cls: Any, given: tuple[int, ...]) -> list[tuple[str, object]]:
    def make(*others: int) -> Any:
        return cls(*(others or given))

    def changed(name: str) -> str:
        one = make()
        setattr(one, name, "set")
        return repr(getattr(one, name))

    def deleted(name: str) -> str:
        one = make()
        delattr(one, name)
        return repr(one)

    looks: list[Callable[[], Any]] = [
        lambda: repr(make()),
        lambda: make() == make(),
        lambda: make() == make(*given[:-1], 77),
        lambda: make() != object(),
        lambda: cls.__hash__ is object.__hash__ or hash(make()),
        lambda: [(one.name, one.kind, one.default is one.empty) for one in inspect.signature(cls).parameters.values()],
        lambda: cls(unknown=1),
        lambda: repr(dataclasses.replace(make(), a=9)),
        lambda: dataclasses.asdict(make()),
        lambda: dataclasses.astuple(make()),
        lambda: dataclasses.is_dataclass(cls),
        lambda: [_field(each) for each in dataclasses.fields(cls)],
        lambda: repr(cls.__dataclass_params__),
        lambda: repr(copy.copy(make())),
        lambda: repr(copy.deepcopy(make())),
        lambda: repr(pickle.loads(pickle.dumps(make()))),  # noqa: S301
        lambda: _matched(make()),
        lambda: cls.__slots__,
        lambda: hasattr(make(), "__dict__"),
        lambda: weakref.ref(make()) is not None,
        lambda: sorted(name for name in vars(cls) if name not in _OWN),
        *(lambda name=name: changed(name) for name in (*_NAMES, "unknown")),
        *(lambda name=name: deleted(name) for name in (*_NAMES, "unknown")),
    ]
    return [_shown(look) for look in looks]


_OWN = ("__record_fields__", "__record_options__", "__doc__", "__weakref__")


def _field(one: dataclasses.Field[Any]) -> str:
    names = ("name", "type", "default", "default_factory", "init", "repr", "compare", "metadata")
    return " ".join(str(getattr(one, name)) for name in names)


@given(_classes(), st.lists(st.integers(0, 3), max_size=6).map(tuple), st.randoms(use_true_random=False))
def test_a_record_does_what_a_dataclass_does(text: str, given: tuple[int, ...], chance: Any) -> None:
    try:
        expected = _made(text, dataclasses.dataclass, dataclasses.field)
    except TypeError:
        return  # the library refuses the class: so do type checkers
    found = _made(text, records.dataclass, records.field)
    names = [name for name in ("Record", "Heir", "Plain", "Other") if hasattr(expected, name)]
    chance.shuffle(names)  # methods are made at their first use, whichever class comes first
    for name in names:
        answers = []
        for module in (expected, found):
            with _imported(module):
                answers.append(_behaviour(getattr(module, name), given))
        assert answers[1] == answers[0], (name, text)


_EACH = """
import dataclasses, inspect, json, sys
import sandboxd, sandboxd_client
from sandboxd_client import records
if sys.argv[1:]:
    records.dataclass, records.field = dataclasses.dataclass, dataclasses.field
import sandboxd.app.macos, sandboxd.app.process, sandboxd.app.linux, sandboxd_client.aio_rpc, sandboxd_client.client
found = {}
for name, module in list(sys.modules.items()):
    for cls in list(vars(module).values()) if name.startswith("sandboxd") else ():
        if isinstance(cls, type) and cls.__module__ == name and "__dataclass_fields__" in vars(cls):
            found[f"{name}.{cls.__name__}"] = [
                [[one.name, one.type, one.init, one.repr, one.compare] for one in dataclasses.fields(cls)],
                list(inspect.signature(cls).parameters), repr(cls.__dataclass_params__),
                cls.__match_args__, vars(cls).get("__slots__"), cls.__hash__ is None, cls.__hash__ is object.__hash__,
                cls.__eq__ is object.__eq__,
            ]
print(json.dumps(found))
"""


def test_each_record_has_the_parts_of_a_dataclass() -> None:
    found, expected = (
        json.loads(subprocess.run([sys.executable, "-c", _EACH, *more], capture_output=True, check=True).stdout)
        for more in ((), ("library",))
    )
    assert len(found) > 400
    assert {name: parts for name, parts in found.items() if parts != expected[name]} == {}
    assert found.keys() == expected.keys()
