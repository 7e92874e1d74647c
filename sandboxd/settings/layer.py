"""One settings file, or the settings of one call, after parsing.

A layer holds values with their origins, and problems. `parse_layer` never raises for a bad file: a file that could not
be read gives a layer with a fatal problem, which cannot be mistaken for an empty one. The schema and its library are
imported for the first settings that are not empty: they take a quarter of the daemon's start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from sandboxd.settings import known_keys
from sandboxd.settings.jsonc import Document, JsoncError, JsonNode, parse_jsonc
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.problems import Problem, Severity, error, warning
from sandboxd.settings.rules import RuleSyntaxError, doubt_about, parse_rule
from sandboxd.settings.tools import RuleList
from sandboxd_client.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


@dataclass(frozen=True, slots=True)
class Placed:
    """A value and its origin."""

    value: Any
    origin: Origin


Entries = tuple[Placed, ...]
"""The entries of a list. The entries of an object are `Placed((key, value), origin)`."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Values by dotted key: `Placed` for scalars, `Entries` for lists and objects.

    `may_widen` is False for files that a command or another user may have written, such as project files. Their values
    that widen are ignored and reported, with `distrust` as the reason."""

    source: Source
    file: str | None = None
    values: Mapping[str, Placed | Entries] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    may_widen: bool = True
    distrust: str = ""
    content: bytes = field(default=b"", repr=False, compare=False)

    @property
    def broken(self) -> bool:
        return any(problem.fatal for problem in self.problems)


PROJECT_DISTRUST = "project settings may only tighten"


def parse_layer(
    data: bytes | str,
    source: Source,
    file: str | None = None,
    *,
    may_widen: bool | None = None,
    distrust: str = "",
    most: int | None = None,
) -> Layer:
    """Parse a settings file of at most this number of keys and values. Never raises; problems are in the result."""
    trusted, reason = _trust(source, may_widen, distrust)
    try:
        document = parse_jsonc(data, most)
    except JsoncError as fault:
        origin = Origin(source, "", file, fault.data.get("line"), fault.data.get("column"))
        problem = error(fault.slug, fault.message, origin, hint=fault.hint)
        return Layer(source, file, {}, (problem,), trusted, reason)
    return _layer(document.root.value, document, source, file, trusted, reason)


def layer_from_values(
    values: Mapping[str, Any], source: Source, *, may_widen: bool | None = None, distrust: str = ""
) -> Layer:
    """Make a layer from an object of a call or command line, which has no positions."""
    trusted, reason = _trust(source, may_widen, distrust)
    return _layer(dict(values), None, source, None, trusted, reason)


def broken_layer(problem: Problem, source: Source, file: str | None) -> Layer:
    """Make the layer of a file that could not be read."""
    trusted, reason = _trust(source, None, "")
    return Layer(source, file, {}, (problem,), trusted, reason)


def _trust(source: Source, may_widen: bool | None, distrust: str) -> tuple[bool, str]:
    trusted = source is not Source.PROJECT and may_widen is not False
    return trusted, "" if trusted else (distrust or PROJECT_DISTRUST)


def _layer(
    tree: dict[str, Any], document: Document | None, source: Source, file: str | None, trusted: bool, distrust: str
) -> Layer:
    if not tree:
        return Layer(source, file, {}, (), trusted, distrust)
    from pydantic import ValidationError

    from sandboxd.settings.schema import SettingsFile

    places = _Places(document, source, file)
    problems = [*_unknown_keys(tree, SettingsFile, (), places)]
    try:
        model: BaseModel | None = SettingsFile.model_validate(tree)
    except ValidationError as fault:
        model = None
        problems += _validation_problems(fault, tree, places)
    values = _flatten(model, tree, (), places) if model is not None else {}
    problems += _check_rules(values)
    return Layer(source, file, values, _bounded(problems, places), trusted, distrust)


MOST_PROBLEMS = 200
"""The limit for one file: problems accompany every command, and a project may cause very many."""


def _bounded(problems: Sequence[Problem], places: _Places) -> tuple[Problem, ...]:
    """Limit the number of problems; the fatal ones stay."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    kept = sorted(problems, key=lambda problem: (not problem.fatal, problem.severity is Severity.WARNING))
    kept = kept[:MOST_PROBLEMS]
    more = f"{len(problems) - MOST_PROBLEMS} more problems are not listed"
    return (*kept, warning("settings_more_problems", more, places.origin(())))


@dataclass(frozen=True, slots=True)
class _Places:
    document: Document | None
    source: Source
    file: str | None

    def origin(self, path: Sequence[str | int], *, at_key: bool = False) -> Origin:
        """Return the origin of a value, or of its key. Indexes are not part of the key."""
        key = ".".join(step for step in path if isinstance(step, str))
        if self.document is None:
            return Origin(self.source, key, self.file)
        line, column = self.document.position(self._offset(path, at_key))
        return Origin(self.source, key, self.file, line, column)

    def entry_origins(self, path: tuple[str, ...], count: int) -> list[Origin]:
        """Return the origins of all entries of a list, with one look-up."""
        key = ".".join(path)
        node = self.document.find(*path) if self.document is not None else None
        if self.document is None or node is None:
            return [Origin(self.source, key, self.file)] * count
        positions = (self.document.position(item.start) for item in node.items)
        return [Origin(self.source, key, self.file, line, column) for line, column in positions]

    def _offset(self, path: Sequence[str | int], at_key: bool) -> int:
        assert self.document is not None
        if at_key and path and isinstance(path[-1], str):
            parent = self.document.find(*path[:-1])
            member = parent.member(path[-1]) if parent else None
            if member is not None:
                return member.key.start
        node: JsonNode | None = None
        length = len(path)
        while node is None and length >= 0:
            node, length = self.document.find(*path[:length]), length - 1
        return node.start if node else 0


def _flatten(
    model: BaseModel, tree: Mapping[str, Any], path: tuple[str, ...], places: _Places
) -> dict[str, Placed | Entries]:
    from sandboxd.settings.schema import Section

    values: dict[str, Placed | Entries] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        inner_path = (*path, name)
        if value is None:
            continue
        if isinstance(value, Section):
            values |= _flatten(value, tree[name], inner_path, places)
        elif isinstance(value, list):
            values[".".join(inner_path)] = tuple(map(Placed, value, places.entry_origins(inner_path, len(value))))
        elif isinstance(value, dict):
            key = ".".join(inner_path)
            values[key] = tuple(
                Placed(
                    (name, tuple(entry) if isinstance(entry, list) else entry),
                    _renamed(places, (*inner_path, name), key),
                )
                for name, entry in value.items()
            )
        else:
            values[".".join(inner_path)] = Placed(value, places.origin(inner_path))
    return values


def _renamed(places: _Places, path: tuple[str, ...], key: str) -> Origin:
    origin = places.origin(path, at_key=True)
    return Origin(origin.source, key, origin.file, origin.line, origin.column)


def _check_rules(values: dict[str, Placed | Entries]) -> list[Problem]:
    """Report permission rules that cannot be parsed, and drop those that allow."""
    problems = []
    for kind in RuleList:
        key = f"permissions.{kind.value}"
        entries = values.get(key)
        if not isinstance(entries, tuple):
            continue
        good = []
        for entry in entries:
            try:
                rule = parse_rule(entry.value)
            except RuleSyntaxError as fault:
                fatal = kind is not RuleList.ALLOW
                problems.append(error("rule_syntax", fault.message, entry.origin, hint=fault.hint, fatal=fatal))
                continue
            good.append(entry)
            doubt = doubt_about(rule, kind)
            if doubt is not None and doubt.restricts and kind is not RuleList.ALLOW:
                problems.append(error(RESTRICTION_UNKNOWN, doubt.message, entry.origin, hint=doubt.hint, fatal=False))
            elif doubt is not None:
                problems.append(warning("rule_without_effect", doubt.message, entry.origin, hint=doubt.hint))
        values[key] = tuple(good)
    return problems


# --- wrong types ---

_EXPECTED = {
    "bool_type": "true or false",
    "string_type": "a text in double quotes",
    "string_too_short": "a text that is not empty",
    "string_too_long": "a shorter text",
    "int_type": "a whole number",
    "list_type": "a list in [ ]",
    "too_long": "a shorter list",
    "dict_type": "an object in {{ }}",
    "model_type": "an object in {{ }}",
    "model_attributes_type": "an object in {{ }}",
    "literal_error": "one of {expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "a range such as 8000-8010",
    "value_error": "{error}",
}


def _validation_problems(fault: ValidationError, tree: Mapping[str, Any], places: _Places) -> list[Problem]:
    """Convert pydantic errors, one problem for each place."""
    found: dict[tuple[str | int, ...], list[str]] = {}
    values: dict[tuple[str | int, ...], Any] = {}
    for item in fault.errors(include_url=False):
        path, value = _existing(item["loc"], tree)
        context = item.get("ctx", {})
        expected = _EXPECTED.get(item["type"], item["msg"])
        found.setdefault(path, []).append(expected.format(**context))
        values[path] = value
    problems = []
    for path, expectations in found.items():
        wanted = " or ".join(dict.fromkeys(expectations))
        origin = places.origin(path)
        problems.append(
            error("settings_wrong_type", f"{origin.key} must be {wanted}, not {_shown(values[path])}", origin)
        )
    return problems


def _existing(location: tuple[str | int, ...], tree: Any) -> tuple[tuple[str | int, ...], Any]:
    """Return the part of a pydantic location that exists in the tree, and its value."""
    path: list[str | int] = []
    for step in location:
        keyed = isinstance(tree, dict) and step in tree
        indexed = isinstance(tree, list) and isinstance(step, int) and step < len(tree)
        if not (keyed or indexed):
            break
        tree = tree[step]
        path.append(step)
    return tuple(path), tree


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


# --- unknown keys ---

RESTRICTION_UNKNOWN = "restriction_unknown"
"""The slug for a key that restricts commands and is not enforced."""


def _unknown_keys(
    tree: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...], places: _Places
) -> list[Problem]:
    from sandboxd.settings.schema import section_of

    problems: list[Problem] = []
    for name, value in tree.items():
        inner_path = (*path, name)
        if name in model.model_fields:
            inner = section_of(model, name)
            if inner is not None and isinstance(value, dict):
                problems += _unknown_keys(value, inner, inner_path, places)
            continue
        kind = known_keys.kind_of(inner_path, value)
        if kind is known_keys.UnknownKeyKind.FOREIGN:
            continue
        in_known_section = inner_path[0] in ("sandbox", "permissions")
        is_searched = len(problems) < _MOST_HINTS
        doubt = "which by its name restricts commands"
        if kind is known_keys.UnknownKeyKind.UNKNOWN and in_known_section and not is_searched:
            kind = known_keys.kind_of_unsearched(value)
            doubt = "which may be misspelt, as are very many keys here"
        if len(problems) > _MOST_UNKNOWN and kind is not known_keys.UnknownKeyKind.RESTRICTING:
            continue
        dotted, origin = ".".join(inner_path), places.origin(inner_path, at_key=True)
        if kind is known_keys.UnknownKeyKind.UNSUPPORTED:
            message = f"{dotted} is not supported and has no effect: what it would allow stays denied"
            problems.append(warning("settings_unsupported_key", message, origin))
            continue
        nearest = nearest_key(dotted) if is_searched else None
        hint = f"did you mean {nearest}?" if nearest else ""
        misspelt = in_known_section and nearest is not None and known_keys.restricts(nearest, value)
        if misspelt or kind is known_keys.UnknownKeyKind.RESTRICTING:
            message = f"cannot enforce {dotted}, {doubt}"
            problems.append(error(RESTRICTION_UNKNOWN, message, origin, hint=hint, fatal=False))
        else:
            message = f"unknown key {dotted} has no effect"
            problems.append(warning("settings_unknown_key", message, origin, hint=hint))
    return problems


_LONGEST_KEY = 100
_MOST_UNKNOWN = 1_000
"""The limit for one section, beside keys that restrict: finding the place of each takes a while."""
_MOST_HINTS = 20
"""The limit for one file: a project's file may be full of unknown keys, and each search takes milliseconds."""


def nearest_key(dotted: str) -> str | None:
    """Return the known key that an unknown one likely means, by name and section."""
    if len(dotted) > _LONGEST_KEY:
        return None
    section, _, name = dotted.rpartition(".")
    name = name.lower()

    def score(key: str) -> float:
        other_section, _, other = key.rpartition(".")
        other = other.lower()
        likeness = SequenceMatcher(None, name, other).ratio()
        same_start = next(
            (i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other))
        )
        if same_start >= 3 and same_start >= 0.7 * min(len(name), len(other)):
            likeness = max(likeness, 0.9)
        return likeness + (0.15 if other_section == section else 0.0)

    best = max(_keys_and_sections(), key=score)
    return best if score(best) >= 0.75 else None


def _keys_and_sections() -> list[str]:
    from sandboxd.settings.schema import all_keys

    names: dict[str, None] = {}
    for key in all_keys():
        parts = key.split(".")
        for length in range(1, len(parts) + 1):
            names[".".join(parts[:length])] = None
    return list(names)
