"""Runs the Scheme of a Seatbelt profile: what is left over is a list of rules.

The part of TinyScheme that profiles use: definitions, `let`, `lambda`, conditions, strings and lists, quoting, and the
profile language on top (`allow`, `deny`, `with`, `with-filter`, `param`, `import`, filters as procedures, operations as
variables). Anything else is an unbound variable, hence an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

from support.sbpl_filters import FILTERS, Filter, make_filter
from support.sbpl_operations import CONSTANTS, OPERATIONS
from support.sbpl_reader import Datum, Form, SbplError, Symbol, Text, read_profile
from support.sbpl_regex import quote_regex

MODIFIERS = frozenset(
    {"report", "no-report", "no-log", "message", "send-signal", "telemetry", "partial-symbolication", "grant",
     "no-callout", "backtrace", "telemetry-backtrace", "user-approval", "EPERM"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    name: str


@dataclass(frozen=True, slots=True)
class Modifier:
    name: str
    argument: object = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One `allow` or `deny`. Without a filter it is about every request of its operations."""

    action: str
    operations: tuple[str, ...]
    filter: Filter | None
    modifiers: tuple[Modifier, ...]
    line: int

    @property
    def message(self) -> str | None:
        for modifier in self.modifiers:
            if modifier.name == "message":
                return str(modifier.argument)
        return None

    def filters(self) -> list[Filter]:
        return [] if self.filter is None else self.filter.walk()


class Environment(dict[str, Any]):
    def __init__(self, outer: Environment | None = None, **names: Any) -> None:
        super().__init__(names)
        self._outer = outer

    def find(self, name: str) -> Environment | None:
        scope: Environment | None = self
        while scope is not None and name not in scope:
            scope = scope._outer
        return scope


@dataclass
class Procedure:
    parameters: list[str]
    rest: str | None
    body: list[Datum]
    scope: Environment


@dataclass
class Interpreter:
    """`run` adds to `rules`. `used` are the parameters that were asked for."""

    parameters: Mapping[str, str]
    imports: Mapping[str, str] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    version: int | None = None
    _line: int = 0
    _around: list[Filter] = field(default_factory=list)
    _top: Environment = field(default_factory=Environment)

    def __post_init__(self) -> None:
        top = self._top
        top.update({name: Operation(name) for name in OPERATIONS})
        top.update({name: Symbol(name) for name in CONSTANTS})
        for name in FILTERS:
            top[name] = lambda *given, _name=name: make_filter(_name, list(given))
        top.update(_BUILT_IN)
        top.update(
            {
                "allow": lambda *given: self._rule("allow", given),
                "deny": lambda *given: self._rule("deny", given),
                "param": self._param,
                "version": self._version,
                "import": self._import,
                "debug": lambda *given: None,
                "trace": lambda *given: None,
            }
        )

    def run(self, text: str) -> None:
        """Raises SbplError."""
        for form in read_profile(text):
            self._evaluate(form, self._top)

    # the profile language

    def _rule(self, action: str, given: tuple[Any, ...]) -> None:
        operations = tuple(item.name for item in given if isinstance(item, Operation))
        filters = [item for item in given if isinstance(item, Filter)]
        modifiers = tuple(item for item in given if isinstance(item, Modifier))
        if len(operations) + len(filters) + len(modifiers) != len(given):
            raise SbplError(f"{action} takes operations, filters and modifiers", self._line)
        if not operations:
            raise SbplError(f"{action} without an operation", self._line)
        found: Filter | None = filters[0] if filters else None
        if len(filters) > 1:
            found = Filter("require-any", (), tuple(filters))
        for around in self._around:
            found = around if found is None else Filter("require-all", (), (around, found))
        self.rules.append(Rule(action, operations, found, modifiers, self._line))

    def _param(self, name: object) -> object:
        if not isinstance(name, str):
            raise SbplError("param takes a string", self._line)
        self.used.add(name)
        return self.parameters.get(name, False)

    def _version(self, number: object) -> None:
        if number not in (1, 2, 3):
            raise SbplError(f"unsupported version {number!r}", self._line)
        self.version = int(str(number))

    def _import(self, name: object) -> None:
        text = self.imports.get(str(name).rpartition("/")[2])
        if text is None:
            raise SbplError(f"cannot import {name!r}", self._line)
        self.run(text)

    # Scheme

    def _evaluate(self, form: Datum, scope: Environment) -> Any:
        if isinstance(form, Symbol):
            found = scope.find(form)
            if found is None:
                raise SbplError(f"unbound variable: {form}", self._line)
            return found[form]
        if isinstance(form, Text):
            return form.value
        if not isinstance(form, Form):
            return form
        if not form:
            raise SbplError("an empty form", form.line)
        self._line = form.line
        head = form[0]
        if isinstance(head, Symbol) and head in _SPECIAL and scope.find(head) is None:
            return _SPECIAL[head](self, form, scope)
        procedure = self._evaluate(head, scope)
        arguments = [self._evaluate(item, scope) for item in form[1:]]
        self._line = form.line
        return self._apply(procedure, arguments)

    def _apply(self, procedure: Any, arguments: list[Any]) -> Any:
        if isinstance(procedure, Procedure):
            count = len(procedure.parameters)
            if len(arguments) < count or (len(arguments) > count and procedure.rest is None):
                raise SbplError(f"a procedure of {count} arguments was given {len(arguments)}", self._line)
            inner = Environment(procedure.scope, **dict(zip(procedure.parameters, arguments, strict=False)))
            if procedure.rest is not None:
                inner[procedure.rest] = arguments[count:]
            return self._body(procedure.body, inner)
        if procedure in (_APPLY, _MAP, _FOR_EACH):
            return self._higher(procedure, arguments)
        if not callable(procedure):
            raise SbplError(f"not a procedure: {procedure!r}", self._line)
        try:
            return procedure(*arguments)
        except SbplError as error:
            raise SbplError(error.message, error.line or self._line) from error
        except (TypeError, IndexError, ValueError, AttributeError) as error:
            raise SbplError(f"wrong argument: {error}", self._line) from error

    def _higher(self, which: object, arguments: list[Any]) -> Any:
        procedure, *rest = arguments
        if which is _APPLY:
            return self._apply(procedure, [*rest[:-1], *rest[-1]])
        return [self._apply(procedure, list(items)) for items in zip(*rest, strict=True)]

    def _body(self, forms: list[Datum], scope: Environment) -> Any:
        value: Any = None
        for form in forms:
            value = self._evaluate(form, scope)
        return value

    def _define(self, form: Form, scope: Environment) -> None:
        target = form[1]
        if isinstance(target, Form):
            scope[str(target[0])] = self._procedure(Form(list(target[1:]), target.line), form[2:], scope)
        else:
            scope[str(target)] = self._evaluate(form[2], scope)

    def _define_once(self, form: Form, scope: Environment) -> None:
        target = form[1][0] if isinstance(form[1], Form) else form[1]
        if scope.find(str(target)) is None:
            self._define(form, scope)

    def _lambda(self, form: Form, scope: Environment) -> Procedure:
        return self._procedure(form[1], form[2:], scope)

    def _procedure(self, names: Datum, body: list[Datum], scope: Environment) -> Procedure:
        if isinstance(names, Symbol):
            return Procedure([], str(names), body, scope)
        assert isinstance(names, Form)
        words = [str(name) for name in names]
        if "." in words:
            return Procedure(words[: words.index(".")], words[-1], body, scope)
        return Procedure(words, None, body, scope)

    def _set(self, form: Form, scope: Environment) -> None:
        found = scope.find(str(form[1]))
        if found is None:
            raise SbplError(f"unbound variable: {form[1]}", form.line)
        found[str(form[1])] = self._evaluate(form[2], scope)

    def _let(self, form: Form, scope: Environment) -> Any:
        if isinstance(form[1], Symbol):  # a loop
            names, body = _bindings(form[2]), form[3:]
            inner = Environment(scope)
            inner[str(form[1])] = Procedure([name for name, _ in names], None, body, inner)
            return self._apply(inner[str(form[1])], [self._evaluate(value, scope) for _, value in names])
        sequential = form[0] != "let"
        inner = Environment(scope)
        for name, value in _bindings(form[1]):
            inner[name] = self._evaluate(value, inner if sequential else scope)
        return self._body(form[2:], inner)

    def _if(self, form: Form, scope: Environment) -> Any:
        if self._evaluate(form[1], scope) is not False:
            return self._evaluate(form[2], scope)
        return self._evaluate(form[3], scope) if len(form) > 3 else None

    def _when(self, form: Form, scope: Environment) -> Any:
        wanted = form[0] == "when"
        if (self._evaluate(form[1], scope) is not False) is wanted:
            return self._body(form[2:], scope)
        return None

    def _cond(self, form: Form, scope: Environment) -> Any:
        for clause in form[1:]:
            assert isinstance(clause, Form)
            if clause[0] == "else" or self._evaluate(clause[0], scope) is not False:
                return self._body(clause[1:], scope)
        return None

    def _and(self, form: Form, scope: Environment) -> Any:
        value: Any = form[0] == "and"
        for part in form[1:]:
            value = self._evaluate(part, scope)
            if (value is False) is (form[0] == "and"):
                return value
        return value

    def _begin(self, form: Form, scope: Environment) -> Any:
        return self._body(form[1:], scope)

    def _quote(self, form: Form, scope: Environment) -> Any:
        return _plain(form[1])

    def _quasiquote(self, form: Form, scope: Environment) -> Any:
        def fill(datum: Datum) -> Any:
            if not isinstance(datum, Form):
                return _plain(datum)
            if datum and datum[0] == "unquote":
                return self._evaluate(datum[1], scope)
            filled: list[Any] = []
            for item in datum:
                if isinstance(item, Form) and item and item[0] == "unquote-splicing":
                    filled += self._evaluate(item[1], scope)
                else:
                    filled.append(fill(item))
            return filled

        return fill(form[1])

    def _defined(self, form: Form, scope: Environment) -> bool:
        return scope.find(str(self._evaluate(form[1], scope))) is not None

    def _with(self, form: Form, scope: Environment) -> Modifier:
        name = str(form[1])
        if name not in MODIFIERS:
            raise SbplError(f"unknown modifier: {name}", form.line)
        argument = self._evaluate(form[2], scope) if len(form) > 2 and name == "message" else None
        if name == "message" and not isinstance(argument, str):
            raise SbplError("message takes a string", form.line)
        return Modifier(name, argument)

    def _with_filter(self, form: Form, scope: Environment) -> Any:
        around = self._evaluate(form[1], scope)
        if not isinstance(around, Filter):
            raise SbplError("with-filter takes a filter", form.line)
        self._around.append(around)
        try:
            return self._body(form[2:], scope)
        finally:
            self._around.pop()


def _bindings(form: Datum) -> list[tuple[str, Datum]]:
    assert isinstance(form, Form)
    return [(str(pair[0]), pair[1]) for pair in form if isinstance(pair, Form)]


def _plain(datum: Datum) -> Any:
    if isinstance(datum, Form):
        return [_plain(item) for item in datum]
    return datum.value if isinstance(datum, Text) else datum


def _string_append(*parts: Any) -> str:
    for part in parts:
        if not isinstance(part, str) or isinstance(part, Symbol):
            raise SbplError(f"string-append takes strings, not {part!r}")
    return "".join(parts)


def _is_string(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, Symbol)


def _equal(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def _chain(compare: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    return lambda *given: all(compare(left, right) for left, right in pairwise(given))


_APPLY, _MAP, _FOR_EACH = object(), object(), object()
_BUILT_IN: dict[str, Any] = {
    "apply": _APPLY, "map": _MAP, "for-each": _FOR_EACH,
    "string-append": _string_append, "string=?": _chain(_equal), "string?": _is_string,
    "string-length": len, "substring": lambda text, start, end: text[start:end],
    "string->number": int, "number->string": str, "symbol->string": str, "string->symbol": Symbol,
    "regex-quote": quote_regex, "not": lambda value: value is False,
    "eq?": _equal, "eqv?": _equal, "equal?": _equal,
    "null?": lambda value: value == [], "pair?": lambda value: isinstance(value, list) and bool(value),
    "list?": lambda value: isinstance(value, list), "symbol?": lambda value: isinstance(value, Symbol),
    "boolean?": lambda value: isinstance(value, bool), "procedure?": callable,
    "list": lambda *given: list(given), "cons": lambda first, rest: [first, *rest],
    "car": lambda items: items[0], "cdr": lambda items: items[1:], "cadr": lambda items: items[1],
    "append": lambda *lists: [item for items in lists for item in items], "length": len,
    "reverse": lambda items: items[::-1],
    "member": lambda item, items: items[items.index(item) :] if item in items else False,
    "+": lambda *given: sum(given),
    "-": lambda first, *rest: reduce(lambda a, b: a - b, rest, first) if rest else -first,
    "=": _chain(lambda a, b: a == b), "<": _chain(lambda a, b: a < b), ">": _chain(lambda a, b: a > b),
    "<=": _chain(lambda a, b: a <= b), ">=": _chain(lambda a, b: a >= b),
}  # fmt: skip
_SPECIAL: dict[str, Callable[[Interpreter, Form, Environment], Any]] = {
    "define": Interpreter._define, "define-once": Interpreter._define_once, "lambda": Interpreter._lambda,
    "set!": Interpreter._set, "let": Interpreter._let, "let*": Interpreter._let, "letrec": Interpreter._let,
    "if": Interpreter._if, "when": Interpreter._when, "unless": Interpreter._when, "cond": Interpreter._cond,
    "and": Interpreter._and, "or": Interpreter._and, "begin": Interpreter._begin, "quote": Interpreter._quote,
    "quasiquote": Interpreter._quasiquote, "defined?": Interpreter._defined, "with": Interpreter._with,
    "with-filter": Interpreter._with_filter,
}  # fmt: skip
